"""`Steps`: several forwards, one after another, such as the steps of a generation, each with a run of its own.

So a misplaced read is an error in its step and never slips into the next. This module does not know what the forwards
are or what becomes of their results: a `Forwards` object does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from torch import nn

from cutaway.errors import NoRunError, NotReachedError
from cutaway.named import Alias, Value
from cutaway.trace.bound import get, put_back
from cutaway.trace.edits import Edits, EditSpec, When
from cutaway.trace.reads import Reduce, RunValues
from cutaway.trace.run import Run
from cutaway.trace.torch_state import TorchState

InputValues = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class Forwards(Protocol):
    """Makes the forwards of the steps, and takes their results."""

    def next_forward(self) -> Callable[[], Any] | None:
        """The next step's forward, without arguments; None when there is no further step."""
        ...

    def accept(self, result: Any) -> Any:
        """Take what a step's forward returned; what this returns is the step's `accepted`."""
        ...


class StepRun(Run):
    """The run of one step.

    `index` counts from 0; `phase` is ``"prompt"`` at 0 and ``"decode"`` after it; `accepted` is what `Forwards.accept`
    returned, once the step is over.
    """

    _OWN = Run._OWN | {"index", "phase", "accepted"}

    def __init__(self, root: nn.Module, forward: Callable[[], Any], index: int, **options: Any) -> None:
        super().__init__(root, forward, **options)
        self.index, self.phase, self.accepted = index, "decode" if index else "prompt", None


class Steps:
    """One forward after another: ``with Steps(...) as run: for step in run: …``.

    In the loop, values are read and assigned on the model, or on `step`. When the loop body is over, the step's
    forward runs to its end. After `break` the remaining steps run at the end of the `with` block, with the edits;
    after an error in the body they do not run.

    - `edits`: by address or pattern; `when` says at which steps, for edits that do not say it themselves.
    - `input_values`: values that come from the inputs, by address, or a function that returns those of the next step.
    - `attributes`: further attributes of every step, by name.
    """

    def __init__(
        self,
        root: nn.Module,
        forwards: Forwards,
        *,
        grad: bool = False,
        edits: EditSpec | None = None,
        when: When = "all",
        input_values: InputValues | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.root, self.forwards, self.grad = root, forwards, grad
        self.step: StepRun | None = None
        self.count = 0
        self._edits = Edits.of(root, edits, when)
        self._input_values, self._attributes = input_values or {}, attributes
        self._state: TorchState | None = None

    def __enter__(self) -> Self:
        if self._state is not None:
            raise NoRunError("A run can be opened once. Make another one to generate again.")
        self._state = TorchState().for_forward(grad=self.grad)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish_step()
                self._run_rest()
                self._check_edits()
        finally:
            if self.step is not None:
                self.step.close()
            self.step = None

    def __iter__(self) -> Iterator[StepRun]:
        return self

    def __next__(self) -> StepRun:
        self._finish_step()
        forward = self._next_forward()
        if forward is None:
            raise StopIteration
        self.step = self._open(forward)
        return self.step

    def _open(self, forward: Callable[[], Any]) -> StepRun:
        """Open the run of the next step."""
        values = self._input_values
        step = StepRun(
            self.root,
            forward,
            self.count,
            grad=self.grad,
            edits=self._edits.for_step(self.count),
            input_values=values() if callable(values) else values,
            attributes=self._attributes,
        )
        self.count += 1
        assert self._state is not None
        step.open(copy(self._state))
        return step

    def collect(self, read: str | Sequence[str], *, reduce: Reduce | Mapping[str, Reduce] | None = None) -> RunValues:
        """Many values of the current step in one go, as `Run.collect` gives them."""
        return self._open_step("collect").collect(read, reduce=reduce)

    def _next_forward(self) -> Callable[[], Any] | None:
        if self._state is None:
            raise NoRunError("The steps run inside `with model.generate(...) as run:`; open it first.")
        return self._state.run(self.forwards.next_forward)

    def _finish_step(self) -> None:
        step, self.step = self.step, None
        if step is None:
            return
        try:
            result = step.finish()
        finally:
            step.close()
        step.accepted = self._accept(result)

    def _accept(self, result: Any) -> Any:
        assert self._state is not None
        return self._state.run(partial(self.forwards.accept, result))

    def _run_rest(self) -> None:
        """Run the remaining steps, which no body sees."""
        while (forward := self._next_forward()) is not None:
            self.step = self._open(forward)
            self._finish_step()

    def _check_edits(self) -> None:
        """Raise for an edit whose value was computed at none of the steps that it was for."""
        unapplied = self._edits.first_unapplied() if self.count else None
        if unapplied is not None:
            raise NotReachedError(
                f"`edit` has `{unapplied.address}`, which was computed at no step that the edit is for. "
                f"{unapplied.value.why_absent} Values of images and videos are computed only at step 0, the prompt: "
                f"see `when`. See docs/errors/not-reached.md."
            )

    def __setattr__(self, name: str, new: Any) -> None:
        if isinstance(getattr(type(self.__dict__.get("root")), name, None), Value | Alias):
            put_back(self._open_step(name), self.root, name, new)
        else:
            object.__setattr__(self, name, new)

    def _open_step(self, name: str) -> StepRun:
        if self.step is None:
            raise NoRunError(f"`{name}` belongs to a step, and no step is open. Read it inside `for step in run:`.")
        return self.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        declared = getattr(type(self), name, None)
        if isinstance(declared, property):  # its own error led here: raise that one
            return declared.__get__(self)
        if hasattr(type(self.root), name) or name in dict(self.root.named_children()):
            return get(self._open_step(name), self.root, name)
        return getattr(self.forwards, name)
