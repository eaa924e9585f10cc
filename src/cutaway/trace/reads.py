"""`Asked`: values asked by address or pattern; `Values`: what came of them.

It finds the places that are asked, takes what is wanted of each as a forward passes it, and says which never came. It
does not know how the forward is run: beside a plain one, or one that a body steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor, nn

from cutaway.errors import InputError
from cutaway.trace.addresses import ValueRef, find, find_each
from cutaway.trace.edits import serve
from cutaway.trace.pause import Key, not_reached

Reduce = Callable[[Any], Any]


class RunValues(Mapping[str, Any]):
    """What was asked, by standard address, in the order in which the forward computed it.

    Other ways to a value, the checkpoint's own names among them, find it too. `result` is what the forward returned;
    None if it was stopped after the last value.
    """

    def __init__(self, root: nn.Module, result: Any, found: Mapping[str, tuple[ValueRef, Any]]) -> None:
        self._root, self._found, self.result = root, found, result

    def __getitem__(self, address: str) -> Any:
        return self._entry(address)[1]

    def axes(self, address: str) -> tuple[str, ...]:
        """The names of the axes of a value, as the forward gives it; a reducer may have changed them."""
        return self._entry(address)[0].value.axes

    def _entry(self, address: str) -> tuple[ValueRef, Any]:
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


class Asked:
    """The places that addresses or patterns name in a tree, and what has come of them.

    - `read`: an address or pattern, or several.
    - `reduce`: a function of a value, or one by address or pattern: only what it returns is kept.
    - `anytime`: values that come off the inputs, by address: a tensor or a function that makes it. They are there at
      once.

    `pending` are the places still to come, by what a watcher sees there, `modules` those that have them. Raises
    `UnknownValue` and `Unavailable`.
    """

    def __init__(
        self,
        root: nn.Module,
        read: str | Sequence[str],
        reduce: Reduce | Mapping[str, Reduce] | None = None,
        input_values: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = root
        self._patterns = find_each(root, _patterns(read))
        places = list({place.address: place for found in self._patterns.values() for place in found}.values())
        self._reduce = _reducers(root, reduce, places)
        ready = _off_inputs(root, input_values or {}, places)
        self._found = {a: (place, self._kept(place, value)) for a, (place, value) in ready.items()}
        self.pending: dict[Key, list[ValueRef]] = {}
        for place in places:
            if place.address not in ready:
                self.pending.setdefault(place.key, []).append(place)
        self.modules = frozenset(module for module, _ in self.pending)

    def __len__(self) -> int:
        """How many places were asked for, those off the inputs included."""
        return len(self._found) + sum(map(len, self.pending.values()))

    @property
    def calls(self) -> frozenset[nn.Module]:
        """Those whose call has to be seen: for what goes in and comes out, and to tell when a value was not made."""
        return frozenset(
            place.module for place in self.places if place.value.computed or place.value.key in ("inputs", "output")
        )

    @property
    def places(self) -> Iterator[ValueRef]:
        """The places still to come."""
        return (place for places in self.pending.values() for place in places)

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values of `module` is still to come."""
        return module in self.modules and not self.pending.keys().isdisjoint(zip(repeat(module), names))

    def lacks(self, module: nn.Module) -> bool:
        """Whether a value that `module` works out only when it is asked for is still to come."""
        return any(place.value.computed for place in self.places if place.module is module)

    def take(self, key: Key, raw: Any) -> Sequence[ValueRef]:
        """The forward passes a place with `raw`: what was asked of it is kept. Returns what was."""
        places = self.pending.pop(key, ())
        for place in places:
            value = serve(place.value, raw)
            self._found[place.address] = place, self._kept(place, value) if self._reduce else value
        return places

    def _kept(self, place: ValueRef, value: Any) -> Any:
        reduce = self._reduce.get(place.address)
        return value if reduce is None else reduce(value)

    def values(self, result: Any = None) -> RunValues:
        """What came. Raises `NotReachedError` for an address that did not, or a pattern of which nothing did."""
        for matches in self._patterns.values():
            if not any(place.address in self._found for place in matches):
                raise not_reached(self.root, matches[0].module, matches[0].value)
        return RunValues(self.root, result, self._found)


def _patterns(read: Any) -> list[str]:
    given = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [read]
    if not all(isinstance(pattern, str) for pattern in given):
        raise InputError(
            f'`read` is an address or pattern, or a list of them, such as "layers.*.layer_output"; {read!r} came. '
            f"`model.values()` lists every address."
        )
    return given


def _reducers(
    root: nn.Module, given: Reduce | Mapping[str, Reduce] | None, places: list[ValueRef]
) -> dict[str, Reduce]:
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


def _off_inputs(root: nn.Module, given: Mapping[str, Any], places: list[ValueRef]) -> dict[str, tuple[ValueRef, Any]]:
    """Those of the places whose values are given, with them."""
    if not any(place.value.from_inputs for place in places):
        return {}
    known = {place.address: value for address, value in given.items() for place in find(root, address)}
    return {
        place.address: (place, known[place.address]() if callable(known[place.address]) else known[place.address])
        for place in places
        if place.value.from_inputs and place.address in known
    }
