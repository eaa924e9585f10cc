"""`Traceable`: gives an object with a module tree the methods `trace`, `run`, `values` and `support`.

It does not know what the inputs are made of: a subclass prepares them.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cutaway.errors import InputError
from cutaway.trace.edits import EditSpec
from cutaway.trace.listing import ValueTable, support, table, tree
from cutaway.trace.reads import Reduce, RunValues
from cutaway.trace.run import Run, run_values


class Traceable(ABC):
    """A module tree, `root`, that is called with one prepared batch.

    Names that are neither the class's nor in `OWN` are those of the tree, read and assigned alike.
    """

    OWN: frozenset[str] = frozenset({"root"})
    root: Any

    @abstractmethod
    def prepare(self, prompt: Any = None, images: Any = None, videos: Any = None, **options: Any) -> Any:
        """The batch that `root` is called with, made from what a caller passes."""

    @abstractmethod
    def input_values(self, inputs: Any) -> Mapping[str, Any]:
        """The values that come from a batch, by address."""

    @abstractmethod
    def require_weights(self, what: str) -> None:
        """Raise if there are no weights to compute with; `what` names the attempt."""

    def __getattr__(self, name: str) -> Any:
        if name in self.OWN or (name.startswith("__") and name.endswith("__")):  # while a copy is being made
            raise AttributeError(name)
        declared = getattr(type(self), name, None)
        if isinstance(declared, property):  # its own error led here: raise that one
            return declared.__get__(self)
        value = getattr(self.root, name)
        return self._returning_self(value) if inspect.ismethod(value) and value.__self__ is self.root else value

    def _returning_self(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the tree; where it returns the tree, as `to` and `eval` do, this object is returned instead."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self if result is self.root else result

        return call

    def __setattr__(self, name: str, new: Any) -> None:
        if name in self.OWN:
            object.__setattr__(self, name, new)
        else:
            setattr(self.root, name, new)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.root)})

    def __repr__(self) -> str:
        return tree(self.root)

    def values(self) -> ValueTable:
        """Every value: address, axes, dtype, where it is computed, whether it is available and editable."""
        return table(self.root)

    def support(self) -> dict[str, str | None]:
        """For every value, by address, why it is unavailable; None where it is available."""
        return support(self.root)

    def trace(
        self,
        prompt: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        grad: bool = False,
        edit: EditSpec | None = None,
        **options: Any,
    ) -> Run:
        """Open a forward that the reads and edits of a `with` block step; the arguments are those of `prepare`.

        Inside the block, values are read and assigned on the model, or on the run that the block gets. The run's
        `collect` reads many values in one go; its `geometry` says where each token lies in an image or video.

        - `grad`: whether to record gradients.
        - `edit`: changes by address or pattern, made before the block sees the value.
        """
        self.require_weights("A trace")
        _refuse_foreign_options("trace", options, ("grad", "edit"))
        inputs = self.prepare(prompt, images, videos, **options)
        return Run(
            self.root,
            lambda: self.root(inputs),
            grad=grad,
            edits=edit,
            input_values=self.input_values(inputs),
            attributes={"geometry": getattr(inputs, "geometry", None)},
        )

    def run(
        self,
        prompt: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        read: str | Sequence[str] = (),
        edit: EditSpec | None = None,
        reduce: Reduce | Mapping[str, Reduce] | None = None,
        grad: bool = False,
        to_end: bool = False,
        **options: Any,
    ) -> RunValues:
        """Run one forward and return the values at the addresses or patterns in `read`, in any order.

        `edit`, `reduce`, `grad` and `to_end` are those of `cutaway.trace.run.run_values`. The logits are the `result`
        if nothing is read, or with `to_end`.
        """
        self.require_weights("A run")
        _refuse_foreign_options("run", options, ("read", "edit", "reduce", "grad", "to_end"))
        inputs = self.prepare(prompt, images, videos, **options)
        return run_values(
            self.root,
            lambda: self.root(inputs),
            read=read,
            edit=edit,
            reduce=reduce,
            input_values=self.input_values(inputs),
            grad=grad,
            to_end=to_end,
        )


_TAKEN_BY_OTHERS = {
    "read": "`model.run(..., read=…)` reads by address; inside `with model.trace(...):` the body reads.",
    "reduce": "`model.run(..., read=…, reduce=…)` takes it.",
    "to_end": "`model.run(..., to_end=True)` takes it; in a trace, `run.finish()` does the same.",
    "when": "It is for the steps of `model.generate(..., edit=…, when=…)`; a single forward has none.",
}


def _refuse_foreign_options(call: str, options: Mapping[str, Any], own: tuple[str, ...]) -> None:
    """Raise for arguments of another call and for misspelt ones, which the processor would take for its own."""
    for name in options:
        near = get_close_matches(name, own, n=1, cutoff=0.8)
        if name in _TAKEN_BY_OTHERS or near:
            hint = f"Did you mean `{near[0]}`?" if near else _TAKEN_BY_OTHERS[name]
            raise InputError(f"`model.{call}` takes no argument '{name}'. {hint}")
