"""`Cursor`: the forward's side of a run, which stops it at the place that the body asks for, and notes what has passed.

It knows that the forward runs in a greenlet whose parent is the body; not how it was started, nor what the body does.
"""

from __future__ import annotations

from typing import Any

from greenlet import greenlet
from torch import nn

from cutaway.named import Value
from cutaway.observe import ExecutionLog, Observer
from cutaway.trace.addresses import ValueRef
from cutaway.trace.edits import Edits
from cutaway.trace.pause import Key, Stand
from cutaway.trace.reads import Asked


class Cursor(Observer):
    """Watches the wanted module and the edited ones alone; of the rest it is written down what has passed.

    - `want`, `module`: the value that the body asks for and its module; None when it asks for several, or the end.
    - `asked`: the several values that it asks for, kept as they pass; the forward stops at the last of them.
    - `stand`: where the forward stands; None while it runs, before it and after it.
    - `forward`: the greenlet that it runs in; `notes`: what it has passed.
    """

    def __init__(self, edits: Edits) -> None:
        self.passed = self.notes = ExecutionLog()
        self.asked: Asked | None = None
        self.want: Value | None = None
        self.module: nn.Module | None = None
        self.name = ""
        self.stand: Stand | None = None
        self.forward: greenlet | None = None
        self._edits, self._editing = edits, bool(edits)  # asked at every place of an edited module
        self._edited = edits.modules
        self._see(frozenset(), frozenset())

    def _see(self, named: frozenset[nn.Module], called: frozenset[nn.Module]) -> None:
        """Looks at the named values and the calls of these, and of what is edited; None asks no module for its hash."""
        self.named = named | self._edited if self._editing else named
        self.called = (called | self._edited if self._editing else called) or None

    def ask(self, module: nn.Module, value: Value) -> bool:
        """The forward is to stop at this value. False if that is behind it, or was not computed as it passed."""
        if self.is_behind(module, value):
            return False
        name = value.key
        self.want, self.module, self.name, self.asked = value, module, name, None
        one, none, call = frozenset((module,)), frozenset(), name in ("inputs", "output")
        self._see(none if call else one, one if call or value.computed else none)
        return True

    def ask_for_all(self, asked: Asked) -> None:
        """The forward is to stop at the last of these values, none of which is behind it."""
        self.want, self.module, self.name, self.asked = None, None, "", asked
        self._see(asked.modules, asked.calls)

    def ask_for_the_end(self) -> None:
        """The forward is to run on to its end."""
        self.want = self.module = self.asked = None
        self._see(frozenset(), frozenset())

    @property
    def aim(self) -> Key | None:
        """The place that the forward is on its way to; None for its end."""
        if self.asked is not None:
            return next(iter(self.asked.pending), None)
        return None if self.module is None else (self.module, self.name)

    def is_behind(self, module: nn.Module, value: Value) -> bool:
        """Whether the forward has passed this value, or was to compute it only if asked and has run its module."""
        return (module, value.key) in self.notes or (value.computed and (module, "output") in self.notes)

    def behind(self, asked: Asked) -> ValueRef | None:
        """The first of several values that the forward has passed; None if none is."""
        if self.forward is None:
            return None
        return next((place for place in asked.places if self.is_behind(place.module, place.value)), None)

    def close(self) -> None:
        """Lets go of the forward and of everything that it passed."""
        self.stand = self.want = self.module = self.asked = self.forward = None
        self.passed = self.notes = ExecutionLog()
        self._edits, self._editing = Edits([]), False
        self._edited = frozenset()
        self._see(frozenset(), frozenset())

    # -- what the forward passes

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """A value of a watched module was computed: passes it on, or stands here if the body wants it."""
        self.notes.named.append(module)
        self.notes.named.append(name)
        if self._editing:
            value = self._edits.applied((module, name), value)
        if self.asked is not None:
            return self._kept(self.asked, module, name, value)
        if name != self.name or module is not self.module or self.want is None:
            return value
        return self._pause(module, name, self.want, value)

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is wanted or edited."""
        if module is self.module and self.name in names:
            return True
        if self.asked is not None and self.asked.wants(module, names):
            return True
        return self._editing and self._edits.wants(module, names)

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """A watched module is about to run with these arguments."""
        self.notes.entered.append(module)
        if self._editing:
            args, kwargs = self._edits.applied((module, "inputs"), (args, kwargs))
        if self.asked is not None:
            return self._kept(self.asked, module, "inputs", (args, kwargs))
        if module is not self.module or self.name != "inputs" or self.want is None:
            return args, kwargs
        return self._pause(module, "inputs", self.want, (args, kwargs))

    def on_return(self, module: nn.Module, output: Any) -> Any:
        """A watched module has run. If it was asked for a computed value it did not make it: the run stands here."""
        self.notes.left.append(module)
        if self._editing:
            output = self._edits.applied((module, "output"), output)
        if self.asked is not None:
            return self._kept(self.asked, module, "output", output)
        want = self.want
        if module is not self.module or want is None or (self.name != "output" and not want.computed):
            return output
        return self._pause(module, "output", _output(module), output)

    def _kept(self, asked: Asked, module: nn.Module, name: str, raw: Any) -> Any:
        """Keeps what is asked of this place. The run stands at the last, and where a computed value was not made."""
        places = asked.take((module, name), raw)
        if asked.pending and (name != "output" or not asked.lacks(module)):
            return raw
        self.asked = None
        return self._pause(module, name, places[-1].value if places else _output(module), raw)

    def _pause(self, module: nn.Module, name: str, value: Value, raw: Any) -> Any:
        """Stands at a place until the body asks for a later one; returns what the forward goes on with."""
        forward = self.forward
        assert forward is not None
        assert forward.parent is not None
        stand = self.stand = Stand(module, name, value, raw)
        del raw
        forward.parent.switch()
        self.stand = None
        return stand.settle()


def _output(module: nn.Module) -> Value:
    return type(module).output  # type: ignore[attr-defined]
