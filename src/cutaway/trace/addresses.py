"""Addresses: the standard dotted name of every value, and how patterns of them are resolved.

An address is the shortest path from the root through aliases and parts, such as
``layers.3.self_attn.attention_queries``. Longer paths, the checkpoint's own names among them, are understood too. This
module reads the tree and its declarations; it runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ref

from torch import nn

from cutaway.errors import Unavailable, UnknownValue
from cutaway.named import Named, Value, ValueAt, nearest, unknown, values_of
from cutaway.trace.address_index import AddressIndex, edges, index_of

UNIVERSAL = ("input", "inputs", "output")
"""The values that every module has."""

_LISTS = (nn.ModuleList, nn.Sequential)

_RANGE = re.compile(r"^(-?\d*):(-?\d*)(?::(-?\d+))?$")

_CACHED_PATTERNS = 4096
"""How many resolved patterns are kept: a `ValueAt` alone has as many addresses as there are tokens."""

_AT_POSITION = re.compile(r"^(\w+)\((-?\d+)\)$")


class ValueRef(NamedTuple):
    """A value of one module of the tree, with its standard address."""

    module: nn.Module
    value: Value
    address: str

    @property
    def key(self) -> tuple[nn.Module, str]:
        """Module and name as an observer sees them; `input` and `inputs` share one key."""
        return self.module, self.value.key

    @property
    def why_unavailable(self) -> str | None:
        """Why the value is unavailable; None when it is available."""
        return self.value.why_unavailable(self.module)


def expression(address: str) -> str:
    """An address as Python: ``model.layers[3].layer_output``."""
    return "model." + re.sub(r"\.(-?\d+)(?=\.|$)", r"[\1]", address)


def find(root: nn.Module, pattern: str) -> list[ValueRef]:
    """The values that an address or pattern names, in the order of the tree.

    `*` stands for one part, ``2:6`` for a range of layers, ``-1`` for the last one. A pattern leaves out unavailable
    values. Raises `UnknownValue` for a name that nothing has, `Unavailable` if every match is unavailable.
    """
    return find_each(root, [pattern])[pattern]


def find_each(root: nn.Module, patterns: Iterable[str]) -> dict[str, list[ValueRef]]:
    """What `find` returns, for several patterns."""
    index = index_of(root)
    return {pattern: _cached(index, pattern) or _find(index, root, pattern) for pattern in patterns}


def _cached(index: AddressIndex, pattern: str) -> list[ValueRef]:
    """The matches of a pattern as resolved before; empty if it was not, or if one has become unavailable."""
    matches = index.pattern_cache.get(pattern, ())
    refs = [ValueRef(module, value, address) for part, value, address in matches if (module := part()) is not None]
    stale = any(ref.value.declared in ref.module.__dict__.get("_unavailable", ()) for ref in refs)
    return [] if stale else refs


def _find(index: AddressIndex, root: nn.Module, pattern: str) -> list[ValueRef]:
    *path, name = re.sub(r"\[([^\]]*)\]", r".\1", pattern).split(".")
    parts: list[Any] = [root]
    for depth, part in enumerate(path):
        parts = _steps(parts, part, pattern, ".".join(path[:depth]))
    refs = [value_ref for module in parts for value_ref in _values_named(index, module, name, pattern)]
    refs = list({value_ref.address: value_ref for value_ref in refs}.values())
    if not refs:
        raise _unknown(pattern, parts[0] if parts else root, name)
    available = [value_ref for value_ref in refs if value_ref.why_unavailable is None]
    if not available:
        raise Unavailable(f"`{refs[0].address}` is unavailable: {refs[0].why_unavailable}")
    if len(available) == len(refs) and len(index.pattern_cache) < _CACHED_PATTERNS:
        index.pattern_cache[pattern] = [(ref(r.module), r.value, r.address) for r in refs]  # weak: the tree's own index
    return available


def _steps(modules: list[Any], part: str, pattern: str, path: str) -> list[Any]:
    """The part of that name of every module; modules that say why they lack it are left out, if any has it."""
    targets: dict[int, Any] = {}
    unavailable = None
    for module in modules:
        try:
            targets |= {id(step): step for step in _step(module, part, pattern, path)}
        except Unavailable as error:
            unavailable = error
    if unavailable is not None and not targets:
        raise unavailable
    return list(targets.values())


def _step(module: Any, part: str, pattern: str, path: str) -> list[Any]:
    if isinstance(module, _LISTS):
        return _items(list(module), part, pattern, path)
    if part == "*":
        if not isinstance(module, nn.Module):
            return []
        return [target for _, target in edges(module) if isinstance(target, nn.Module)]
    try:
        target = getattr(module, part)
    except UnknownValue:
        raise _unknown(pattern, module, part) from None
    except Unavailable:  # an AttributeError too, but one that says why
        raise
    except AttributeError:
        target = None
    if target is None or isinstance(target, str | int | float | tuple):
        raise _unknown(pattern, module, part)
    return [target]


def _items(layers: list[nn.Module], part: str, pattern: str, path: str) -> list[nn.Module]:
    """The layers of a list that ``*``, an index or a range names."""
    if part == "*":
        return layers
    try:
        if bounds := _RANGE.match(part):
            selection = layers[slice(*(int(text) if text else None for text in bounds.groups()))]
        else:
            selection = [layers[int(part)]]
        if selection:
            return selection
        raise IndexError  # an empty range
    except (ValueError, IndexError):
        raise UnknownValue(
            f"`{pattern}`: `{path}` is a list of {len(layers)} layers; got `{part}`. Use 0 to {len(layers) - 1}, a "
            f"negative index, a range such as `2:6`, or `*`."
        ) from None


def _values_named(index: AddressIndex, module: Any, name: str, pattern: str) -> Iterator[ValueRef]:
    if not isinstance(module, nn.Module):
        getattr(module, name)  # what stands for an unavailable part says why
        raise _unknown(pattern, module, name)
    declared = values_of(type(module))
    if name in declared and not isinstance(declared[name], ValueAt):
        yield ValueRef(module, declared[name], index.address(module, name))
    elif (match := _AT_POSITION.match(name)) and isinstance(per_position := declared.get(match[1]), ValueAt):
        value = per_position.at(int(match[2]))
        yield ValueRef(module, value, index.address(module, value.name))
    elif isinstance(declared.get(bare := name.partition("(")[0]), ValueAt):
        raise UnknownValue(f"`{bare}` has a value for each token: `{pattern}` must give one, as in `{bare}(5)`.")
    elif name == "*":
        for key, value in declared.items():
            if key not in UNIVERSAL and not isinstance(value, ValueAt):
                yield ValueRef(module, value, index.address(module, key))
    else:
        for edge, target in edges(module):
            if edge == name and isinstance(target, tuple):
                host, own = target
                yield ValueRef(host, values_of(type(host))[own], index.address(host, own))


def _is_part(module: nn.Module, name: str) -> bool:
    if isinstance(module, _LISTS):
        return name == "*" or name.removeprefix("-").isdigit() or _RANGE.match(name) is not None
    return any(edge == name and isinstance(target, nn.Module) for edge, target in edges(module))


def _unknown(pattern: str, module: Any, name: str) -> UnknownValue:
    if isinstance(getattr(type(module), name, None), property):
        getattr(module, name)  # a size that a family does not have says why
    if isinstance(module, nn.Module):
        parts = pattern.split(".")
        if parts[-1] == name and _is_part(module, name):
            target = None if isinstance(module, _LISTS) else getattr(module, name)
            own = f"{pattern}.*.output" if isinstance(target, nn.ModuleList) else f"{pattern}.output"
            return UnknownValue(
                f"`{pattern}` is a part of the tree, not a value: add the name of one, as in `{own}`. "
                f"`model.values()` lists every value, `print(model)` the tree."
            )
        tail = ".".join(parts[parts.index(name) :]) if name in parts else name
        inside = [r for r in all_values(module) if f".{r.address}".endswith(f".{tail}")]
        if inside:
            nested = min(
                inside, key=lambda r: r.why_unavailable is not None
            ).address  # an available one, if there is one
            return UnknownValue(
                f"`{pattern}`: `{type(module).__name__}` has no value or part `{name}` of its own; `{nested}` is one. "
                f"`model.values()` lists every value, `print(model)` the tree."
            )
    if isinstance(module, Named) or (isinstance(module, nn.Module) and name in UNIVERSAL):
        return UnknownValue(f"`{pattern}`: {unknown(module, name)}")
    names = [n for n, _ in module.named_children()] if isinstance(module, nn.Module) else []
    return UnknownValue(
        f"`{pattern}`: `{type(module).__name__}` has no value or part `{name}`.{nearest(name, names)} "
        f"`model.values()` lists every value."
    )


def addresses(root: nn.Module, *, universal: bool = False) -> dict[tuple[nn.Module, str], str]:
    """The standard address of every value of the tree, by module and name; `input` and the like if `universal`."""
    return {(p.module, p.value.name): p.address for p in all_values(root, universal=universal)}


def all_values(root: nn.Module, *, universal: bool = False) -> list[ValueRef]:
    """Every value of the tree, unavailable ones included, in the tree's order.

    A module's `input`, `inputs` and `output` are left out unless `universal`, or the module declares axes for them.
    """
    index = index_of(root)
    unwrap = values_of(Named)
    return [
        ValueRef(module, value, index.address(module, f"{name}(t)" if isinstance(value, ValueAt) else name))
        for module in root.modules()
        for name, value in values_of(type(module)).items()
        if universal or unwrap.get(name) is not value
    ]
