"""How a forward is stepped: it runs in a greenlet, and an observer pauses it at the value that the body reads.

`ForwardGreenlet` is the stack that a forward runs on, `Stepper` the observer. Neither knows what the body does with a
value, nor what the model is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from operator import call
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet
from torch import nn

from cutaway.named import Value
from cutaway.observe import ExecutionLog, Observer
from cutaway.trace.addresses import ValueRef
from cutaway.trace.edits import Edits
from cutaway.trace.late_edits import LateEdits
from cutaway.trace.pause import Key, PausePoint
from cutaway.trace.reads import ReadRequest

CUSHION = 40
"""Levels of C calls below every forward. Torch notes the C stack whenever it raises an error, up to 64 frames of it. A
greenlet's stack begins where its first caller stood, and that caller's frames are overwritten later, so that a walk
past the beginning reads garbage and ends the process. 10 levels suffice for 64 frames."""


class StopForward(GreenletExit):
    """Thrown into a forward to end it. A plain `GreenletExit` ends the greenlet itself, when nobody holds it."""


class Task:
    """One forward for a greenlet to run: whether it is over, and what it returned."""

    __slots__ = ("forward", "over", "result")

    def __init__(self) -> None:
        self.forward: Callable[[], Any] | None = None
        self.over, self.result = False, None


class ForwardGreenlet(greenlet):
    """A greenlet that runs one forward after another. An error of a forward goes to its parent and ends it.

    The stack of a greenlet is memory that is requested from the system and returned, which for a small model takes a
    hundredth of its forward. So a greenlet whose forward is over is kept for the next one of its thread.
    """

    def __init__(self) -> None:
        self.task = Task()
        super().__init__(
            partial(_cushioned, self.task, CUSHION)
        )  # no reference to self: an unused greenlet is freed at once

    def release(self) -> None:
        """Keep the greenlet, whose forward is over, for the next forward of this thread.

        Only from the thread's main greenlet: a pooled greenlet would keep its parent alive.
        """
        self.task.result = self.gr_context = None
        if getcurrent().parent is None:
            _pool.greenlet = self


def _cushioned(task: Task, levels: int) -> None:
    """Run tasks on top of so many C calls."""
    if levels:
        call(_cushioned, task, levels - 1)
    else:
        _run_tasks(task)


def strip_cushion(error: BaseException) -> None:
    """Take the frames of the cushion out of an error's traceback."""
    entry = error.__traceback__
    while entry is not None:
        following = entry.tb_next
        while following is not None and following.tb_frame.f_code is _cushioned.__code__:
            following = following.tb_next
        entry.tb_next = following
        entry = following


def _run_tasks(task: Task) -> None:
    while True:
        forward, task.forward = task.forward, None
        assert forward is not None
        try:
            task.result = forward()
        except StopForward:
            task.result = None
        task.over = True
        del forward  # a waiting greenlet must not keep the model alive
        getcurrent().parent.switch()  # type: ignore[union-attr]


class _Pool(threading.local):
    greenlet: ForwardGreenlet | None = None


_pool = _Pool()


def greenlet_for(forward: Callable[[], Any], context: Context | None) -> ForwardGreenlet:
    """A greenlet whose first switch starts `forward` in `context`."""
    worker, _pool.greenlet = _pool.greenlet, None
    if worker is None:
        worker = ForwardGreenlet()
    worker.task.forward, worker.task.over, worker.gr_context = forward, False, context
    return worker


class Stepper(Observer):
    """Pauses a forward at the value that the body reads, makes the edits on the way, and records what was computed.

    It observes only the module that is read and the edited ones; the rest of the forward writes to the log.

    - `target`: the module and value that the body reads; None when it reads several, or waits for the end.
    - `request`: the several values that it reads; each is recorded as it is computed, and the forward pauses at the
      last.
    - `pause`: where the forward is paused; None while it runs, before it and after it.
    - `forward`: the greenlet that it runs in. `history`: what it has computed.
    """

    def __init__(self, edits: Edits, late_edits: LateEdits) -> None:
        self.late_edits = late_edits
        self.log = self.history = ExecutionLog()
        self.request: ReadRequest | None = None
        self.value: Value | None = None
        self.module: nn.Module | None = None
        self.name = ""
        self.pause: PausePoint | None = None
        self.forward: greenlet | None = None
        self._edits, self._editing = edits, bool(edits)  # the flag is looked at for every value of an edited module
        self._edited = edits.modules
        self._observe(frozenset(), frozenset())

    def _observe(self, values_of: frozenset[nn.Module], calls_of: frozenset[nn.Module]) -> None:
        """Observe values and calls of these modules and of the edited ones. None spares every module a hash."""
        self.value_modules = values_of | self._edited if self._editing else values_of
        self.call_modules = (calls_of | self._edited if self._editing else calls_of) or None

    def aim_at(self, module: nn.Module, value: Value) -> bool:
        """Pause at this value. False if the forward has passed it, or ran its module without computing it."""
        if self.has_passed(module, value):
            return False
        name = value.key
        self.value, self.module, self.name, self.request = value, module, name, None
        one, none, is_call = frozenset((module,)), frozenset(), name in ("inputs", "output")
        self._observe(none if is_call else one, one if is_call or value.computed else none)
        return True

    def aim_at_all(self, request: ReadRequest) -> None:
        """Pause at the last of these values, none of which has passed."""
        self.value, self.module, self.name, self.request = None, None, "", request
        self._observe(request.modules, request.called_modules)

    def aim_at_end(self) -> None:
        """Run on to the end of the forward."""
        self.value = self.module = self.request = None
        self._observe(frozenset(), frozenset())

    @property
    def aim(self) -> Key | None:
        """What the forward is on its way to; None for its end."""
        if self.request is not None:
            return next(iter(self.request.pending), None)
        return None if self.module is None else (self.module, self.name)

    def has_passed(self, module: nn.Module, value: Value) -> bool:
        """Whether the forward has passed this value, or has run its module without computing it."""
        return (module, value.key) in self.history or (value.computed and (module, "output") in self.history)

    def first_passed(self, request: ReadRequest) -> ValueRef | None:
        """The first of several values that the forward has passed; None if it has passed none."""
        if self.forward is None:
            return None
        return next((ref for ref in request.refs if self.has_passed(ref.module, ref.value)), None)

    def close(self) -> None:
        """Drop the forward and everything it computed."""
        self.pause = self.value = self.module = self.request = self.forward = None
        self.log = self.history = ExecutionLog()
        self._edits, self._editing = Edits([]), False
        self._edited = frozenset()
        self._observe(frozenset(), frozenset())

    # -- called by the forward

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """An observed module has computed a value: edit it, and pause here if the body reads it."""
        self.history.named.append(module)
        self.history.named.append(name)
        if self._editing:
            value = self._edits.apply((module, name), value, self.late_edits)
        if self.request is not None:
            return self._record(self.request, module, name, value)
        if name != self.name or module is not self.module or self.value is None:
            return value
        return self._pause_at(module, name, self.value, value)

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is read or edited."""
        if module is self.module and self.name in names:
            return True
        if self.request is not None and self.request.wants(module, names):
            return True
        return self._editing and self._edits.wants(module, names)

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """An observed module is about to run with these arguments."""
        self.history.entered.append(module)
        if self._editing:
            args, kwargs = self._edits.apply((module, "inputs"), (args, kwargs), self.late_edits)
        if self.request is not None:
            return self._record(self.request, module, "inputs", (args, kwargs))
        if module is not self.module or self.name != "inputs" or self.value is None:
            return args, kwargs
        return self._pause_at(module, "inputs", self.value, (args, kwargs))

    def on_return(self, module: nn.Module, output: Any) -> Any:
        """An observed module has run. Pause here too if it did not compute the value that the body reads."""
        self.history.left.append(module)
        if self._editing:
            output = self._edits.apply((module, "output"), output, self.late_edits)
        if self.request is not None:
            return self._record(self.request, module, "output", output)
        value = self.value
        if module is not self.module or value is None or (self.name != "output" and not value.computed):
            return output
        return self._pause_at(module, "output", _output(module), output)

    def _record(self, request: ReadRequest, module: nn.Module, name: str, raw: Any) -> Any:
        """Record what is requested here. Pause at the last one, and where a module ran without a computed value."""
        refs = request.record((module, name), raw)
        if request.pending and (name != "output" or not request.has_missing(module)):
            return raw
        self.request = None
        return self._pause_at(module, name, refs[-1].value if refs else _output(module), raw)

    def _pause_at(self, module: nn.Module, name: str, value: Value, raw: Any) -> Any:
        """Pause until the body reads a later value; return what the forward goes on with."""
        forward = self.forward
        assert forward is not None
        assert forward.parent is not None
        pause = self.pause = PausePoint(module, name, value, raw)
        del raw
        forward.parent.switch()
        self.pause = None
        return pause.resolve()


def _output(module: nn.Module) -> Value:
    return type(module).output  # type: ignore[attr-defined]
