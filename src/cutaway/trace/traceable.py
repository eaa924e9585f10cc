"""`Traceable`: what an object gains that has a tree and makes its inputs: `trace`, `run` and `values`.

It does not know what the inputs are made of; a subclass prepares them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cutaway.errors import InputError
from cutaway.trace.edits import EditSpec
from cutaway.trace.listing import ValueTable, support, table
from cutaway.trace.reads import Reduce, RunValues
from cutaway.trace.run import Run
from cutaway.trace.values import run_values


class Traceable(ABC):
    """A module tree, `root`, that is called with one prepared batch."""

    root: Any

    @abstractmethod
    def prepare(self, prompt: Any, images: Any = None, videos: Any = None, **options: Any) -> Any:
        """The batch that `root` is called with."""

    @abstractmethod
    def input_values(self, inputs: Any) -> Mapping[str, Any]:
        """The values that come off a batch, by address."""

    @abstractmethod
    def require_weights(self, what: str) -> None:
        """Raises when nothing can be computed."""

    def values(self) -> ValueTable:
        """Every value: address, axes, dtype, where it is computed, whether it can be had and edited."""
        return table(self.root)

    def support(self) -> dict[str, str | None]:
        """For every value, by address, why it cannot be had; None where it can."""
        return support(self.root)

    def trace(
        self,
        prompt: Any,
        images: Any = None,
        videos: Any = None,
        *,
        grad: bool = False,
        edit: EditSpec | None = None,
        **options: Any,
    ) -> Run:
        """A forward that a `with` block steps by its reads and edits, of anything that `prepare` takes.

        Values are read and assigned on the model inside the block, or on the run that it gives, whose `geometry` says
        where each token lies, and whose `collect` takes many values in one go. `grad` records gradients; `edit` has
        changes by address or pattern, made before the block sees the value.
        """
        self.require_weights("A trace")
        _refuse("trace", options, ("grad", "edit"))
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
        prompt: Any,
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
        """The values at the addresses or patterns in `read`, in any order, of one forward with `edit` made.

        The arguments are those of `cutaway.trace.values.run_values`. The logits are the `result` where nothing is read,
        or `to_end` is set.
        """
        self.require_weights("A run")
        _refuse("run", options, ("read", "edit", "reduce", "grad", "to_end"))
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


_ELSEWHERE = {
    "read": "`model.run(..., read=…)` reads by address; inside `with model.trace(...):` the body reads.",
    "reduce": "`model.run(..., read=…, reduce=…)` takes it.",
    "to_end": "`model.run(..., to_end=True)` takes it; of a trace, `run.finish()` does it.",
    "when": "Steps are those of `model.generate(..., edit=…, when=…)`; a single forward has none.",
}


def _refuse(call: str, options: Mapping[str, Any], own: tuple[str, ...]) -> None:
    """Raises for arguments that another call has, and for misspelt ones: the processor would take them for its own."""
    for name in options:
        near = get_close_matches(name, own, n=1, cutoff=0.8)
        if name in _ELSEWHERE or near:
            hint = f"Did you mean `{near[0]}`?" if near else _ELSEWHERE[name]
            raise InputError(f"`model.{call}` takes no argument '{name}'. {hint}")
