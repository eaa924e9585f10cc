"""Who stands beside a forward, and who answers what a trace body asks: two context variables and what they hold.

The modules of `named` look here at every named place. What the watchers and readers do is not known here, nor what a
value is.
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
    """What a forward has passed, written down as it goes, and looked up when somebody asks.

    - `entered`, `left`: the modules whose call has begun, and ended.
    - `named`: a module and the name of its value, one after the other.

    Some forty places a block pass in any forward. An append costs a tenth of an addition to a set, so that what is
    written down is sorted only when the first question comes.
    """

    __slots__ = ("_entered", "_left", "_named", "_spoke", "_unread", "entered", "left", "named")

    def __init__(self) -> None:
        self.entered: list[nn.Module] = []
        self.left: list[nn.Module] = []
        self.named: list[Any] = []
        self._entered: set[nn.Module] = set()
        self._left: set[nn.Module] = set()
        self._spoke: set[Any] = set()
        self._unread: list[Any] = []
        self._named: set[tuple[nn.Module, str]] = set()

    def __contains__(self, key: tuple[nn.Module, str]) -> bool:
        """Whether this value of this module has passed; ``"inputs"`` and ``"output"`` stand for its call."""
        module, name = key
        if name == "inputs":
            return module in _taken_in(self._entered, self.entered)
        if name == "output":
            return module in _taken_in(self._left, self.left)
        self._spoke.update(self.named)  # names among the modules do no harm: which it was is asked of few
        self._unread += self.named
        self.named.clear()
        if module not in self._spoke:
            return False
        self._named.update(zip(self._unread[::2], self._unread[1::2], strict=True))
        self._unread.clear()
        return key in self._named


def _taken_in(known: set[nn.Module], fresh: list[nn.Module]) -> set[nn.Module]:
    """What is known, with what was written down since."""
    known.update(fresh)
    fresh.clear()
    return known


class Observer:
    """What stands beside a running forward: it sees the named values and the calls of some modules as they are passed.

    - `named`: the modules whose named values it sees; `called`: those whose calls it sees, at their start and end, or
      None.
    - `passed`: where of all others is written down what passes; None if nobody will ask. Of those it sees it writes
      itself.
    """

    named: Container[nn.Module] = _Everything()
    called: Container[nn.Module] | None = _Everything()
    passed: ExecutionLog | None = None

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """The place ``name`` of ``module`` was reached with ``value``; returns what the forward goes on with."""
        return value

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is asked for, so that work done only for them is worth doing."""
        return False

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """``module`` is about to run; returns the arguments it runs with."""
        return args, kwargs

    def on_return(self, module: nn.Module, output: Any) -> Any:
        """``module`` has run; returns its output as the forward goes on with it."""
        return output


class Reader(Protocol):
    """What answers a read or an assignment of a named value: the innermost open run."""

    def read(self, module: nn.Module, value: Any) -> Any:
        """The value as it stands, the forward run up to it."""
        ...

    def write(self, module: nn.Module, value: Any, new: Any) -> None:
        """Puts `new` in the value's place for the rest of the forward."""
        ...

    def has(self, module: nn.Module) -> bool:
        """Whether `module` is part of a tree that runs here."""
        ...


_THREAD = _guards._TLS  # torch's own, where a compilation notes that it is under way

observer: ContextVar[Observer | None] = ContextVar("cutaway_watcher", default=None)
"""The watcher of the forward that runs in this context; a run sets it inside its own greenlet alone."""

reader: ContextVar[Reader | None] = ContextVar("cutaway_reader", default=None)
"""The innermost run that is open in this context, seen from the body."""


def current_observer() -> Observer | None:
    """The watcher of the forward that runs here, if any. Inside `torch.compile` there is none: names vanish there."""
    seen = observer.get()
    if seen is None:
        return None
    try:
        compiling = _THREAD.tracing_context
    except AttributeError:  # no compilation in this thread so far: as torch leaves it after one, for it is asked often
        compiling = _THREAD.tracing_context = None
    return seen if compiling is None else None


current_observer._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does
