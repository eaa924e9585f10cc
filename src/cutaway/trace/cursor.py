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
    """Watches the wanted module and the edited ones alone; of the rest it is noted what has passed.

    - `want`, `module`: the value that the body asks for and its module; None when it asks for the end.
    - `stand`: where the forward stands; None while it runs, before it and after it.
    - `forward`: the greenlet that it runs in.
    """

    noting = True

    def __init__(self, edits: Edits) -> None:
        self.entered, self.left, self.named = set(), set(), set()
        self.want: Value | None = None
        self.module: nn.Module | None = None
        self.name = ""
        self.stand: Stand | None = None
        self.forward: greenlet | None = None
        self._edits, self._editing = edits, bool(edits)  # asked at every place of an edited module
        self._edited = edits.modules
        self.watched = self._edited

    def ask(self, module: nn.Module, value: Value) -> bool:
        """The forward is to stop at this value. False if that is behind it, or was not computed as it passed."""
        if (module, value.key) in self or (value.computed and module in self.left):
            return False
        self.want, self.module, self.name = value, module, value.key
        self.watched = {module, *self._edited} if self._editing else {module}
        return True

    def ask_for_the_end(self) -> None:
        """The forward is to run on to its end."""
        self.want = self.module = None
        self.watched = self._edited

    def __contains__(self, key: Key) -> bool:
        """Whether the forward has passed this place."""
        module, name = key
        if name == "inputs":
            return module in self.entered
        return module in self.left if name == "output" else key in self.named

    def close(self) -> None:
        """Lets go of the forward and of everything that it passed."""
        self.stand = self.want = self.module = self.forward = None
        self.entered, self.left, self.named = set(), set(), set()
        self._edits, self._editing = Edits([]), False
        self.watched = self._edited = frozenset()

    # -- what the forward passes

    def reached(self, module: nn.Module, name: str, value: Any) -> Any:
        """A value of a watched module was computed: passes it on, or stands here if the body wants it."""
        self.named.add((module, name))
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
        self.entered.add(module)
        if self._editing:
            args, kwargs = self._edits.applied((module, "inputs"), (args, kwargs))
        if module is not self.module or self.name != "inputs":
            return args, kwargs
        return self._pause(module, "inputs", (args, kwargs))

    def leaving(self, module: nn.Module, output: Any) -> Any:
        """A watched module has run. If it was asked for a computed value it did not make it: the run stands here."""
        self.left.add(module)
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
        stand.hand()
        del raw
        forward.parent.switch()
        self.stand = None
        return stand.settle()
