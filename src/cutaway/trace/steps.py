"""`Steps`: a run of several forwards, one after another, such as the steps of a generation.

Each step has a `Run` of its own, so that a misplaced read is an error there and never slips to the next. This module
does not know what the forwards are or what is made of their results: a `Forwards` object does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from torch import nn

from cutaway.errors import NoRunError, NotReachedError
from cutaway.named import Alias, Value
from cutaway.trace.bound import get, put
from cutaway.trace.edits import Edits, EditSpec, When
from cutaway.trace.reads import Reduce, RunValues
from cutaway.trace.run import Run
from cutaway.trace.torch_state import TorchState
from cutaway.trace.values import Watch

Anytime = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class Forwards(Protocol):
    """What gives the forwards of the steps, and takes their results."""

    def next_forward(self) -> Callable[[], Any] | None:
        """The next step's forward, without arguments; None when there is no further step."""
        ...

    def accept(self, result: Any) -> Any:
        """Takes what a step's forward returned; what this returns is the step's `accepted`."""
        ...


class StepRun(Run):
    """The run of one step.

    `index` counts from 0; `phase` is ``"prompt"`` at 0 and ``"decode"`` after it; `accepted` is what was made of the
    step's result, once the step is over.
    """

    _OWN = Run._OWN | {"index", "phase", "accepted"}

    def __init__(self, root: nn.Module, forward: Callable[[], Any], index: int, **given: Any) -> None:
        super().__init__(root, forward, **given)
        self.index, self.phase, self.accepted = index, "decode" if index else "prompt", None


class Steps:
    """A run of one forward after another: ``with Steps(...) as run: for step in run: …``.

    Within the loop values are read and assigned on the model, or on `step`. A step's forward runs to its end when its
    body is over. After `break` the remaining steps run untraced, at the end of the `with` block, edits included; after
    an error in the body they do not.

    - `edits`: by address or pattern; `when` says at which steps those are made that do not say it themselves.
    - `anytime`: values that come off the inputs, by address, or a function that gives those of the current step.
    - `attributes`: what else every step is to carry, by name.
    """

    def __init__(
        self,
        root: nn.Module,
        forwards: Forwards,
        *,
        grad: bool = False,
        edits: EditSpec | None = None,
        when: When = "all",
        input_values: Anytime | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.root, self.forwards, self.grad = root, forwards, grad
        self.step: StepRun | None = None
        self.count = 0
        self._edits = Edits.of(root, edits, when)
        self._anytime, self._attributes = input_values or {}, attributes
        self._state: TorchState | None = None

    def __enter__(self) -> Steps:
        if self._state is not None:
            raise NoRunError("A run can be opened once; make another one to generate again.")
        self._state = TorchState().forward(grad=self.grad)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish_step()
                self._run_on()
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
        self.step = StepRun(
            self.root,
            forward,
            self.count,
            grad=self.grad,
            edits=self._edits.at(self.count),
            input_values=self._anytime() if callable(self._anytime) else self._anytime,
            attributes=self._attributes,
        )
        self.count += 1
        assert self._state is not None
        self.step.open(copy(self._state))
        return self.step

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

    def _run_on(self) -> None:
        """Runs the steps that are left, untraced."""
        while (forward := self._next_forward()) is not None:
            assert self._state is not None
            result = Watch(self._edits.at(self.count)).run(forward, self._state)
            self.count += 1
            self._accept(result)

    def _check_edits(self) -> None:
        """Raises when an edit was for steps that there were, and none of them computed its value."""
        idle = self._edits.unmade() if self.count else None
        if idle is not None:
            raise NotReachedError(
                f"`edit` has `{idle.address}`, and at no step that it was for was that value computed. "
                f"{idle.value.why_absent} What belongs to images exists at step 0 (the prompt) alone: see `when`. "
                f"See docs/errors/not-reached.md."
            )

    def __setattr__(self, name: str, new: Any) -> None:
        if isinstance(getattr(type(self.__dict__.get("root")), name, None), Value | Alias):
            put(self._open_step(name), self.root, name, new)
        else:
            object.__setattr__(self, name, new)

    def _open_step(self, name: str) -> StepRun:
        if self.step is None:
            raise NoRunError(f"`{name}` belongs to a step, and none is open. Ask for it inside `for step in run:`.")
        return self.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(type(self.root), name) or name in dict(self.root.named_children()):
            return get(self._open_step(name), self.root, name)
        return getattr(self.forwards, name)
