"""`run_values`: named values of one forward, asked by address, in any order and without a body.

The forward runs plainly, with a watcher beside it that makes the edits, keeps what was asked and stops it after the
last of it. This module does not know what the forward computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from torch import nn

from cutaway.observe import Observer, observer, reader
from cutaway.trace.edits import Edits, EditSpec
from cutaway.trace.pause import Key, not_reached
from cutaway.trace.reads import Asked, Reduce, RunValues
from cutaway.trace.torch_state import TorchState


class _Enough(BaseException):
    """Ends a forward from inside once everything asked is there."""


class Watch(Observer):
    """Stands beside a forward that no body steps: makes the edits and keeps the values that are asked.

    - `asked`: what is kept.
    - `stop`: whether the forward ends after the last of them.
    """

    def __init__(self, edits: Edits, asked: Asked | None = None, *, stop: bool = False) -> None:
        self._edits, self._asked, self._stop = edits, asked, stop
        self._editing = bool(edits)
        modules, calls = (asked.modules, asked.calls) if asked else (frozenset(), frozenset())
        self.named, self.called = edits.modules | modules, edits.modules | calls or None

    def _passed(self, key: Key, raw: Any) -> Any:
        if self._editing:
            raw = self._edits.applied(key, raw)
        asked = self._asked
        if asked is not None and key in asked.pending:
            asked.take(key, raw)
            if self._stop and not asked.pending and (not self._editing or self._edits.unmade() is None):
                raise _Enough
        return raw

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """A named value was computed."""
        return self._passed((module, name), value)

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is asked or edited."""
        asked = self._asked
        return (asked is not None and asked.wants(module, names)) or self._edits.wants(module, names)

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """A module is about to run."""
        return self._passed((module, "inputs"), (args, kwargs))

    def on_return(self, module: nn.Module, output: Any) -> Any:
        """A module has run."""
        return self._passed((module, "output"), output)

    def run(self, forward: Callable[[], Any], state: TorchState) -> Any:
        """The result of the forward under this watch, in the torch state `state`; None if it was stopped."""
        context = copy_context()
        context.run(observer.set, self)
        context.run(reader.set, None)
        try:
            return state.run(partial(context.run, forward))
        except _Enough:
            return None


def run_values(
    root: nn.Module,
    forward: Callable[[], Any],
    *,
    read: str | Sequence[str] = (),
    edit: EditSpec | None = None,
    reduce: Reduce | Mapping[str, Reduce] | None = None,
    input_values: Mapping[str, Any] | None = None,
    grad: bool = False,
    to_end: bool = False,
) -> RunValues:
    """Runs a forward once and returns the values at the addresses or patterns in `read`.

    - `edit`: by address or pattern, a function of the value (its replacement, or None if it changed it in place) or a
      tensor. An edit is made before the same value is read, and changes that place alone. One whose value the forward
      never computes raises `NotReachedError`, as a read does.
    - `reduce`: a function of the value, or one by address or pattern: only what it returns is kept, so that a long list
      of large values fits in memory.
    - `anytime`: values that come off the inputs, by address: a tensor or a function that makes it.
    - `grad`: whether the forward records gradients.
    - `to_end`: runs it to its end for its `result`; otherwise it stops after the last value. Without `read` it always
      does.

    Raises `UnknownValue` and `Unavailable` before compute, and `NotReachedError` if the forward ends without a value
    that was named, or without every value that a pattern names.
    """
    asked, edits = Asked(root, read, reduce, input_values), Edits.of(root, edit)
    result = None
    if asked.pending or to_end or not len(asked):
        watch = Watch(edits, asked, stop=bool(asked.pending) and not to_end)
        result = watch.run(forward, TorchState().forward(grad=grad))
        if (idle := edits.unmade()) is not None:
            raise not_reached(root, idle.module, idle.value)
    return asked.values(result)
