"""`Cursor`: the forward's side of a run, which stops it at the place that the body asks for, and notes what has passed.

It knows that the forward runs in a greenlet whose parent is the body; not how it was started, nor what the body does.
"""

from __future__ import annotations

from typing import Any

from greenlet import greenlet
from torch import nn

from cutaway.named import Value, Watcher
from cutaway.trace.edits import Edits
from cutaway.trace.stand import Key, Stand


class Cursor(Watcher):
    """Watches the wanted module and the edited ones alone; of the rest it is written down what has passed.

    - `want`, `module`: the value that the body asks for and its module; None when it asks for the end.
    - `stand`: where the forward stands; None while it runs, before it and after it.
    - `forward`: the greenlet that it runs in.
    """

    entered: list[nn.Module]
    left: list[nn.Module]
    named: list[Any]

    def __init__(self, edits: Edits) -> None:
        self._forget()
        self.want: Value | None = None
        self.module: nn.Module | None = None
        self.name = ""
        self.stand: Stand | None = None
        self.forward: greenlet | None = None
        self._edits, self._editing = edits, bool(edits)  # asked at every place of an edited module
        self._edited = edits.modules
        self.values = self.calls = self._edited

    def _forget(self) -> None:
        self.entered, self.left, self.named = [], [], []
        self._entered: set[nn.Module] = set()  # what was written down, once it was asked about
        self._left: set[nn.Module] = set()
        self._spoke: set[Any] = set()
        self._unread: list[Any] = []
        self._named: set[Key] = set()

    def ask(self, module: nn.Module, value: Value) -> bool:
        """The forward is to stop at this value. False if that is behind it, or was not computed as it passed."""
        name = value.key
        if (module, name) in self or (value.computed and (module, "output") in self):
            return False
        self.want, self.module, self.name = value, module, name
        watched = {module, *self._edited} if self._editing else {module}
        call = name in ("inputs", "output")
        self.values = self._edited if call else watched
        self.calls = watched if call or value.computed else self._edited
        return True

    def ask_for_the_end(self) -> None:
        """The forward is to run on to its end."""
        self.want = self.module = None
        self.values = self.calls = self._edited

    def __contains__(self, key: Key) -> bool:
        """Whether the forward has passed this place."""
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

    def close(self) -> None:
        """Lets go of the forward and of everything that it passed."""
        self.stand = self.want = self.module = self.forward = None
        self._forget()
        self._edits, self._editing = Edits([]), False
        self.values = self.calls = self._edited = frozenset()

    # -- what the forward passes

    def reached(self, module: nn.Module, name: str, value: Any) -> Any:
        """A value of a watched module was computed: passes it on, or stands here if the body wants it."""
        self.named += (module, name)
        if self._editing:
            value = self._edits.applied((module, name), value)
        return self._pause(module, name, value) if module is self.module and name == self.name else value

    def wanted(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is wanted or edited."""
        if module is self.module and self.name in names:
            return True
        return self._editing and self._edits.wanted(module, names)

    def entering(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """A watched module is about to run with these arguments."""
        self.entered.append(module)
        if self._editing:
            args, kwargs = self._edits.applied((module, "inputs"), (args, kwargs))
        if module is not self.module or self.name != "inputs":
            return args, kwargs
        return self._pause(module, "inputs", (args, kwargs))

    def leaving(self, module: nn.Module, output: Any) -> Any:
        """A watched module has run. If it was asked for a computed value it did not make it: the run stands here."""
        self.left.append(module)
        if self._editing:
            output = self._edits.applied((module, "output"), output)
        want = self.want
        if module is not self.module or want is None or (self.name != "output" and not want.computed):
            return output
        return self._pause(module, "output", output)

    def _pause(self, module: nn.Module, name: str, raw: Any) -> Any:
        """Stands at a place until the body asks for a later one; returns what the forward goes on with."""
        forward, want = self.forward, self.want
        assert forward is not None
        assert forward.parent is not None
        assert want is not None
        value = want if self.name == name else type(module).output  # type: ignore[attr-defined]
        stand = self.stand = Stand(module, name, value, raw)
        del raw
        forward.parent.switch()
        self.stand = None
        return stand.settle()


def _taken_in(known: set[nn.Module], fresh: list[nn.Module]) -> set[nn.Module]:
    """What is known, with what was written down since."""
    known.update(fresh)
    fresh.clear()
    return known
