"""What observes a running forward, and what answers a read in a trace body: two context variables and their types.

The modules of `named` consult them at every named value. This module does not know what observers and readers do.
"""

from __future__ import annotations

from collections.abc import Container
from contextvars import ContextVar
from typing import Any, Protocol

from torch import _guards, nn


class _Everything:
    """Contains every module."""

    def __contains__(self, module: object) -> bool:
        return True


class ExecutionLog:
    """What a forward has computed so far: appended to as it runs, sorted only when somebody asks.

    A forward names some forty values a layer, and an append costs a tenth of an addition to a set.

    - `entered`, `left`: the modules whose call has begun, and ended.
    - `named`: modules and names of values, in turn: module, name, module, name, ….
    """

    __slots__ = ("_entered", "_left", "_modules_seen", "_named", "_unsorted", "entered", "left", "named")

    def __init__(self) -> None:
        self.entered: list[nn.Module] = []
        self.left: list[nn.Module] = []
        self.named: list[Any] = []
        self._entered: set[nn.Module] = set()
        self._left: set[nn.Module] = set()
        self._modules_seen: set[Any] = set()
        self._unsorted: list[Any] = []
        self._named: set[tuple[nn.Module, str]] = set()

    def __contains__(self, key: tuple[nn.Module, str]) -> bool:
        """Whether this value of this module was computed; ``"inputs"`` and ``"output"`` are its call and return."""
        module, name = key
        if name == "inputs":
            return module in _flush(self.entered, self._entered)
        if name == "output":
            return module in _flush(self.left, self._left)
        self._modules_seen.update(self.named)  # takes the names in too, which are never asked for here
        self._unsorted += self.named
        self.named.clear()
        if module not in self._modules_seen:
            return False
        self._named.update(zip(self._unsorted[::2], self._unsorted[1::2], strict=True))
        self._unsorted.clear()
        return key in self._named


def _flush(fresh: list[nn.Module], known: set[nn.Module]) -> set[nn.Module]:
    """Move the fresh entries into the set, and return it."""
    known.update(fresh)
    fresh.clear()
    return known


class Observer:
    """What runs beside a forward: it sees named values and calls of modules, and may replace them.

    - `value_modules`: the modules whose named values it sees.
    - `call_modules`: those whose calls it sees, at start and end; None for none.
    - `log`: where the forward records what it computes in the other modules; None when nobody will ask. For the
      modules that the observer sees it keeps the record itself.
    """

    value_modules: Container[nn.Module] = _Everything()
    call_modules: Container[nn.Module] | None = _Everything()
    log: ExecutionLog | None = None

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """Called when ``module`` has computed ``name``; returns what the forward goes on with."""
        return value

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is needed, so that work done only for them is worth doing."""
        return False

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Called when ``module`` is about to run; returns the arguments it runs with."""
        return args, kwargs

    def on_return(self, module: nn.Module, output: Any) -> Any:
        """Called when ``module`` has run; returns its output as the forward goes on with it."""
        return output


class Reader(Protocol):
    """What answers a read or an assignment of a named value: the innermost open run."""

    def read(self, module: nn.Module, value: Any) -> Any:
        """Run the forward up to the value, and return it."""
        ...

    def write(self, module: nn.Module, value: Any, new: Any) -> None:
        """Replace the value by `new` for the rest of the forward."""
        ...

    def contains(self, module: nn.Module) -> bool:
        """Whether `module` is part of a tree that runs here."""
        ...


_TORCH_THREAD_STATE = _guards._TLS  # where torch notes that a compilation is under way

observer: ContextVar[Observer | None] = ContextVar("cutaway_observer", default=None)
"""The observer of the forward that runs in this context. A run sets it inside its own greenlet only."""

reader: ContextVar[Reader | None] = ContextVar("cutaway_reader", default=None)
"""The innermost run that is open in this context, as a trace body sees it."""


def current_observer() -> Observer | None:
    """The observer of the forward that runs here. Inside `torch.compile` there is none, since names vanish there."""
    current = observer.get()
    if current is None:
        return None
    try:
        compiling = _TORCH_THREAD_STATE.tracing_context
    except AttributeError:  # no compilation in this thread yet; set what torch leaves after one, for the next call
        compiling = _TORCH_THREAD_STATE.tracing_context = None
    return current if compiling is None else None


current_observer._dynamo_marked_constant = True  # type: ignore[attr-defined]  # like torch.compiler.assume_constant_result
