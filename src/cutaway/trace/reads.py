"""Values read by address or pattern: `ReadRequest` collects them as a forward computes them, `RunValues` holds them.

A request resolves the patterns, records each value that it is for, and says which never came. It does not know how the
forward is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from cutaway.errors import InputError
from cutaway.trace.addresses import ValueRef, find, find_each
from cutaway.trace.edits import served_value
from cutaway.trace.handles import aliased, tensors_in
from cutaway.trace.pause import Key, not_reached

Reduce = Callable[[Any], Any]


class RunValues(Mapping[str, Any]):
    """The values that were read, by standard address, in the order in which the forward computed them.

    Other addresses of a value, the checkpoint's own names among them, find it too. `result` is what the forward
    returned; None if it was stopped after the last value.
    """

    def __init__(self, root: nn.Module, result: Any, values: Mapping[str, tuple[ValueRef, Any]]) -> None:
        self._root, self._values, self.result = root, values, result

    def __getitem__(self, address: str) -> Any:
        return self._entry(address)[1]

    def axes(self, address: str) -> tuple[str, ...]:
        """The names of a value's axes, as the forward gives it; a reducer may have changed them."""
        return self._entry(address)[0].value.axes

    def _entry(self, address: str) -> tuple[ValueRef, Any]:
        if address not in self._values:
            refs = find(self._root, address)
            if len(refs) != 1 or refs[0].address not in self._values:
                raise KeyError(f"{address!r} was not read; read were {', '.join(self)}")
            address = refs[0].address
        return self._values[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        def summary(value: Any) -> str:
            return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)

        return "\n".join(f"{address}: {summary(value)}" for address, (_, value) in self._values.items())


class ReadRequest:
    """The values that addresses or patterns name in a tree, and those that the forward has computed.

    - `read`: an address or pattern, or several.
    - `reduce`: a function of a value, or one by address or pattern: only what it returns is kept.
    - `input_values`: values that come from the inputs, by address: a tensor, or a function that makes it. These are
      recorded at once.
    - `stays_open`: whether the run goes on afterwards, so that late edits of the values must be noticed. `recorded`
      then has their tensors, and whether the forward records gradients.

    `pending` has the values still to come, by module and name; `modules` are their modules. Raises `UnknownValue` and
    `Unavailable`.
    """

    def __init__(
        self,
        root: nn.Module,
        read: str | Sequence[str],
        reduce: Reduce | Mapping[str, Reduce] | None = None,
        input_values: Mapping[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> None:
        self.root, self._stays_open = root, stays_open
        self.recorded: list[tuple[ValueRef, list[Tensor], bool]] = []
        self._matches = find_each(root, _patterns(read))
        refs = list({ref.address: ref for matches in self._matches.values() for ref in matches}.values())
        self._reduce = _reducers(root, reduce, refs)
        ready = _from_inputs(root, input_values or {}, refs)
        if stays_open:
            ready = {address: (ref, aliased(value)) for address, (ref, value) in ready.items()}
            self.recorded += [(ref, list(tensors_in(value)), False) for ref, value in ready.values()]
        self._values = {address: (ref, self._reduced(ref, value)) for address, (ref, value) in ready.items()}
        self.pending: dict[Key, list[ValueRef]] = {}
        for ref in refs:
            if ref.address not in ready:
                self.pending.setdefault(ref.key, []).append(ref)
        self.modules = frozenset(module for module, _ in self.pending)

    def __len__(self) -> int:
        """The number of values, those from the inputs included."""
        return len(self._values) + sum(map(len, self.pending.values()))

    @property
    def called_modules(self) -> frozenset[nn.Module]:
        """Modules whose calls must be observed: for arguments and results, and to notice a value left uncomputed."""
        return frozenset(ref.module for ref in self.refs if ref.value.computed or ref.value.key in ("inputs", "output"))

    @property
    def refs(self) -> Iterator[ValueRef]:
        """The values still to come."""
        return (ref for refs in self.pending.values() for ref in refs)

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values of `module` is still to come."""
        return module in self.modules and not self.pending.keys().isdisjoint(zip(repeat(module), names))

    def has_missing(self, module: nn.Module) -> bool:
        """Whether a value that `module` computes only on request is still to come."""
        return any(ref.value.computed for ref in self.refs if ref.module is module)

    def record(self, key: Key, raw: Any) -> Sequence[ValueRef]:
        """Keep what is requested of a value that the forward has computed as `raw`; return the references to it."""
        refs = self.pending.pop(key, ())
        for ref in refs:
            value = served_value(ref.value, raw)
            if self._stays_open:
                value = aliased(value)
                self.recorded.append((ref, list(tensors_in(value)), is_grad_enabled()))
            self._values[ref.address] = ref, self._reduced(ref, value) if self._reduce else value
        return refs

    def _reduced(self, ref: ValueRef, value: Any) -> Any:
        reduce = self._reduce.get(ref.address)
        return value if reduce is None else reduce(value)

    def values(self, result: Any = None) -> RunValues:
        """What came. Raises `NotReachedError` for an address without a value, or a pattern without any."""
        for refs in self._matches.values():
            if not any(ref.address in self._values for ref in refs):
                raise not_reached(self.root, refs[0].module, refs[0].value)
        return RunValues(self.root, result, self._values)


def _patterns(read: Any) -> list[str]:
    patterns = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [read]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(
            f'`read` is an address or pattern, or a list of them, such as "layers.*.layer_output"; got {read!r}. '
            f"`model.values()` lists every address."
        )
    return patterns


def _reducers(root: nn.Module, reduce: Reduce | Mapping[str, Reduce] | None, refs: list[ValueRef]) -> dict[str, Reduce]:
    """The function of every value that is reduced, by address."""
    if reduce is None:
        return {}
    if not isinstance(reduce, Mapping):
        if not callable(reduce):
            raise InputError(f"`reduce` is a function of a value, or a dict of them; got a {type(reduce).__name__}.")
        return {ref.address: reduce for ref in refs}
    addresses, reducers = {ref.address for ref in refs}, {}
    for pattern, function in reduce.items():
        matches = {ref.address: function for ref in find(root, pattern) if ref.address in addresses}
        if not matches:
            raise InputError(f"`reduce` has {pattern!r}, which is not read. Add it to `read`, or leave it out.")
        reducers |= matches
    return reducers


def _from_inputs(
    root: nn.Module, input_values: Mapping[str, Any], refs: list[ValueRef]
) -> dict[str, tuple[ValueRef, Any]]:
    """The requested values that come from the inputs, by address."""
    if not any(ref.value.from_inputs for ref in refs):
        return {}
    values = {ref.address: value for address, value in input_values.items() for ref in find(root, address)}
    return {
        ref.address: (ref, values[ref.address]() if callable(values[ref.address]) else values[ref.address])
        for ref in refs
        if ref.value.from_inputs and ref.address in values
    }
