"""`OpenRuns`: which of several open runs answers a read of the model.

It knows runs by what they can do, and not how they step a forward.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from cutaway.named import Value
from cutaway.observe import Reader
from cutaway.trace.address_index import contains


class OpenRuns:
    """Several runs that are open in a context, outermost first: the innermost run with the module answers a read."""

    def __init__(self, runs: tuple[Any, ...]) -> None:
        self.runs = runs

    def read(self, module: nn.Module, value: Value) -> Any:
        """Read the value in that run."""
        return self._run_of(module).read(module, value)

    def write(self, module: nn.Module, value: Value, new: Any) -> None:
        """Assign the value in that run."""
        self._run_of(module).write(module, value, new)

    def contains(self, module: nn.Module) -> bool:
        """Whether `module` is part of a tree that runs here."""
        return any(run.contains(module) for run in self.runs)

    def _run_of(self, module: nn.Module) -> Any:
        alive = [run for run in reversed(self.runs) if run.is_open] or [self.runs[-1]]  # which says that it is closed
        if len({id(run.root) for run in alive}) == 1:
            return alive[0]
        return next((run for run in alive if contains(run.root, module)), alive[0])


def reader_of(runs: tuple[Any, ...]) -> Reader | None:
    """What answers reads in a context with these runs, outermost first."""
    return None if not runs else runs[0] if len(runs) == 1 else OpenRuns(runs)


def runs_of(reader: Reader | None) -> tuple[Any, ...]:
    """The runs behind what answers reads in a context, outermost first."""
    return reader.runs if isinstance(reader, OpenRuns) else () if reader is None else (reader,)
