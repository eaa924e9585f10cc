"""`run_values`: named values of one forward, asked by address, in any order and without a body.

The forward runs plainly, with a watcher beside it that makes the edits, keeps what was asked and stops it after the
last of it. This module does not know what the forward computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from torch import Tensor, nn

from cutaway.errors import InputError
from cutaway.named import Watcher, reader, watcher
from cutaway.trace.edits import Edits, Given, serve
from cutaway.trace.names import Place, find, find_each
from cutaway.trace.stand import Key, not_reached
from cutaway.trace.state import TorchState

Reduce = Callable[[Any], Any]


class Values(Mapping[str, Any]):
    """What was asked, by standard address, in the order in which the forward computed it.

    Other ways to a value, the checkpoint's own names among them, find it too. `result` is what the forward returned;
    None if it was stopped after the last value.
    """

    def __init__(self, root: nn.Module, result: Any, found: Mapping[str, tuple[Place, Any]]) -> None:
        self._root, self._found, self.result = root, found, result

    def __getitem__(self, address: str) -> Any:
        return self._entry(address)[1]

    def axes(self, address: str) -> tuple[str, ...]:
        """The names of the axes of a value, as the forward gives it; a reducer may have changed them."""
        return self._entry(address)[0].value.axes

    def _entry(self, address: str) -> tuple[Place, Any]:
        if address not in self._found:
            places = find(self._root, address)
            if len(places) != 1 or places[0].address not in self._found:
                raise KeyError(f"{address!r} was not read; read were {', '.join(self)}")
            address = places[0].address
        return self._found[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        def shown(value: Any) -> str:
            return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)

        return "\n".join(f"{address}: {shown(value)}" for address, (_, value) in self._found.items())


class _Enough(BaseException):
    """Ends a forward from inside once everything asked is there."""


class Watch(Watcher):
    """Stands beside a forward that no body steps: makes the edits and keeps the values that are asked.

    - `reads`: the places that are asked; `reduce`: what is kept of each, by address, instead of the value itself.
    - `stop`: whether the forward ends after the last of them.
    """

    def __init__(
        self,
        edits: Edits,
        reads: Sequence[Place] = (),
        reduce: Mapping[str, Reduce] | None = None,
        *,
        stop: bool = False,
    ) -> None:
        self.found: dict[str, tuple[Place, Any]] = {}
        self._edits, self._reduce, self._stop = edits, reduce or {}, stop
        self._editing = bool(edits)
        self._pending: dict[Key, list[Place]] = {}
        self._names: dict[nn.Module, set[str]] = {}
        for place in reads:
            self._pending.setdefault(place.key, []).append(place)
            self._names.setdefault(place.module, set()).add(place.value.name)
        called = {place.module for place in reads if place.key[1] in ("inputs", "output")}
        self.values, self.calls = edits.modules | self._names.keys(), edits.modules | called

    def _passed(self, key: Key, raw: Any) -> Any:
        if self._editing:
            raw = self._edits.applied(key, raw)
        if key not in self._pending:
            return raw
        for place in self._pending.pop(key):
            value = serve(place.value, raw)
            reduce = self._reduce.get(place.address)
            self.found[place.address] = place, value if reduce is None else reduce(value)
            self._names[place.module].discard(place.value.name)
            if self._stop and not self._pending and (not self._editing or self._edits.unmade() is None):
                raise _Enough
        return raw

    def reached(self, module: nn.Module, name: str, value: Any) -> Any:
        """A named value was computed."""
        return self._passed((module, name), value)

    def wanted(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values is asked or edited."""
        asked = self._names.get(module)
        return (asked is not None and not asked.isdisjoint(names)) or self._edits.wanted(module, names)

    def entering(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """A module is about to run."""
        return self._passed((module, "inputs"), (args, kwargs))

    def leaving(self, module: nn.Module, output: Any) -> Any:
        """A module has run."""
        return self._passed((module, "output"), output)

    def run(self, forward: Callable[[], Any], state: TorchState) -> Any:
        """The result of the forward under this watch, in the torch state `state`; None if it was stopped."""
        context = copy_context()
        context.run(watcher.set, self)
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
    edit: Given | None = None,
    reduce: Reduce | Mapping[str, Reduce] | None = None,
    anytime: Mapping[str, Any] | None = None,
    grad: bool = False,
    to_end: bool = False,
) -> Values:
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
    patterns = find_each(root, _patterns(read))
    places = list({place.address: place for found in patterns.values() for place in found}.values())
    edits = Edits.of(root, edit)
    reducers = _reducers(root, reduce, places)
    ready = _off_inputs(root, anytime or {}, places)
    found = {a: (p, reducers[a](v) if a in reducers else v) for a, (p, v) in ready.items()}
    rest = [place for place in places if place.address not in ready]
    result = None
    if rest or to_end or not places:
        watch = Watch(edits, rest, reducers, stop=bool(rest) and not to_end)
        result = watch.run(forward, TorchState().forward(grad=grad))
        found.update(watch.found)
        if (idle := edits.unmade()) is not None:
            raise not_reached(root, idle.module, idle.value)
    for matches in patterns.values():
        if not any(place.address in found for place in matches):
            raise not_reached(root, matches[0].module, matches[0].value)
    return Values(root, result, found)


def _patterns(read: Any) -> list[str]:
    given = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [read]
    if not all(isinstance(pattern, str) for pattern in given):
        raise InputError(
            f'`read` is an address or pattern, or a list of them, such as "layers.*.layer_output"; {read!r} came. '
            f"`model.values()` lists every address."
        )
    return given


def _reducers(root: nn.Module, given: Reduce | Mapping[str, Reduce] | None, places: list[Place]) -> dict[str, Reduce]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if not callable(given):
            raise InputError(f"`reduce` is a function of a value, or a dict of them; a {type(given).__name__} came.")
        return {place.address: given for place in places}
    asked, found = {place.address for place in places}, {}
    for pattern, function in given.items():
        matches = {place.address: function for place in find(root, pattern) if place.address in asked}
        if not matches:
            raise InputError(f"`reduce` has {pattern!r}, which is not read: add it to `read`, or leave it out.")
        found |= matches
    return found


def _off_inputs(root: nn.Module, given: Mapping[str, Any], places: list[Place]) -> dict[str, tuple[Place, Any]]:
    """Those of the places whose values are given, with them."""
    if not any(place.value.anytime for place in places):
        return {}
    known = {place.address: value for address, value in given.items() for place in find(root, address)}
    return {
        place.address: (place, known[place.address]() if callable(known[place.address]) else known[place.address])
        for place in places
        if place.value.anytime and place.address in known
    }
