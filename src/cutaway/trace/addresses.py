"""Addresses: the standard dotted name of every value, and how to find, list and print them.

An address is the shortest way from the root by aliases and parts, such as ``layers.3.self_attn.attention_queries``.
Longer ways, the checkpoint's own names among them, are understood too. This module reads the tree and its declarations
alone; it runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ref

from torch import nn

from cutaway.errors import Unavailable, UnknownValue
from cutaway.named import Named, Value, ValueAt, nearest, unknown, values_of
from cutaway.trace.address_index import Book, book_of, edges

UNIVERSAL = ("input", "inputs", "output")
"""The values that every module has."""

_LISTS = (nn.ModuleList, nn.Sequential)

_RANGE = re.compile(r"^(-?\d*):(-?\d*)(?::(-?\d+))?$")

_KEPT = 4096
"""How many patterns are kept once they were looked up; a place of a `ValueAt` is one of as many as there are tokens."""

_ONE = re.compile(r"^(\w+)\((-?\d+)\)$")


class ValueRef(NamedTuple):
    """A value of one module of the tree, with its standard address."""

    module: nn.Module
    value: Value
    address: str

    @property
    def key(self) -> tuple[nn.Module, str]:
        """What a watcher sees when the forward gets there; `input` and `inputs` are one place."""
        return self.module, self.value.key

    @property
    def why_unavailable(self) -> str | None:
        """Why it cannot be had; None when it can."""
        return self.value.why_unavailable(self.module)


def expression(address: str) -> str:
    """An address as Python: ``model.layers[3].layer_output``."""
    return "model." + re.sub(r"\.(-?\d+)(?=\.|$)", r"[\1]", address)


def find(root: nn.Module, pattern: str) -> list[ValueRef]:
    """The values that an address or pattern names, in the order of the tree.

    `*` stands for one part, ``2:6`` for a range of blocks, ``-1`` for the last one. Values that this load cannot have
    are left out of a pattern. Raises `UnknownValue` for a name that nothing has, `Unavailable` if every match is.
    """
    return find_each(root, [pattern])[pattern]


def find_each(root: nn.Module, patterns: Iterable[str]) -> dict[str, list[ValueRef]]:
    """What `find` gives, for several patterns."""
    book = book_of(root)
    return {pattern: _recalled(book, pattern) or _find(book, root, pattern) for pattern in patterns}


def _recalled(book: Book, pattern: str) -> list[ValueRef]:
    """What the pattern was found to name before; nothing if it was not looked up since the tree is as it is."""
    kept = book.looked_up.get(pattern, ())
    places = [ValueRef(module, value, address) for part, value, address in kept if (module := part()) is not None]
    gone = any(place.value.declared in place.module.__dict__.get("_unavailable", ()) for place in places)
    return [] if gone else places


def _find(book: Book, root: nn.Module, pattern: str) -> list[ValueRef]:
    *way, name = re.sub(r"\[([^\]]*)\]", r".\1", pattern).split(".")
    parts: list[Any] = [root]
    for done, part in enumerate(way):
        parts = _steps(parts, part, pattern, ".".join(way[:done]))
    places = [place for module in parts for place in _places(book, module, name, pattern)]
    places = list({place.address: place for place in places}.values())
    if not places:
        raise _unknown(pattern, parts[0] if parts else root, name)
    served = [place for place in places if place.why_unavailable is None]
    if not served:
        raise Unavailable(f"`{places[0].address}` is unavailable: {places[0].why_unavailable}")
    if len(served) == len(places) and len(book.looked_up) < _KEPT:  # weakly: a book must not keep the tree it is of
        book.looked_up[pattern] = [(ref(place.module), place.value, place.address) for place in served]
    return served


def _steps(modules: list[Any], part: str, pattern: str, path: str) -> list[Any]:
    """One step further from every module; those that say why they lack the part are left out, if any has it."""
    found, lacking = {}, None
    for module in modules:
        try:
            found |= {id(step): step for step in _step(module, part, pattern, path)}
        except Unavailable as reason:
            lacking = reason
    if lacking is not None and not found:
        raise lacking
    return list(found.values())


def _step(module: Any, part: str, pattern: str, path: str) -> list[Any]:
    if isinstance(module, _LISTS):
        return _items(list(module), part, pattern, path)
    if part == "*":
        if not isinstance(module, nn.Module):
            return []
        return [found for _, found in edges(module) if isinstance(found, nn.Module)]
    try:
        found = getattr(module, part)
    except UnknownValue:
        raise _unknown(pattern, module, part) from None
    except AttributeError:
        found = None
    if found is None or isinstance(found, str | int | float | tuple):
        raise _unknown(pattern, module, part)
    return [found]


def _items(blocks: list[nn.Module], part: str, pattern: str, path: str) -> list[nn.Module]:
    """The blocks of a list that ``*``, an index or a range names."""
    if part == "*":
        return blocks
    try:
        if spread := _RANGE.match(part):
            chosen = blocks[slice(*(int(text) if text else None for text in spread.groups()))]
        else:
            chosen = [blocks[int(part)]]
        if chosen:
            return chosen
        raise IndexError  # an empty range
    except (ValueError, IndexError):
        raise UnknownValue(
            f"`{pattern}`: `{path}` is a list of {len(blocks)} blocks, and `{part}` is none of them. Use 0 to "
            f"{len(blocks) - 1}, a negative index, a range such as `2:6`, or `*`."
        ) from None


def _places(book: Book, module: Any, name: str, pattern: str) -> Iterator[ValueRef]:
    if not isinstance(module, nn.Module):
        getattr(module, name)  # a part that stands for one which this load lacks says why
        raise _unknown(pattern, module, name)
    declared = values_of(type(module))
    if name in declared and not isinstance(declared[name], ValueAt):
        yield ValueRef(module, declared[name], book.address(module, name))
    elif (one := _ONE.match(name)) and isinstance(is_list := declared.get(one[1]), ValueAt):
        value = is_list.at(int(one[2]))
        yield ValueRef(module, value, book.address(module, value.name))
    elif isinstance(declared.get(bare := name.partition("(")[0]), ValueAt):
        raise UnknownValue(f"`{bare}` has a value for each token: `{pattern}` must give one, as in `{bare}(5)`.")
    elif name == "*":
        for key, value in declared.items():
            if key not in UNIVERSAL and not isinstance(value, ValueAt):
                yield ValueRef(module, value, book.address(module, key))
    else:
        for edge, target in edges(module):
            if edge == name and isinstance(target, tuple):
                host, own = target
                yield ValueRef(host, values_of(type(host))[own], book.address(host, own))


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
            found = None if isinstance(module, _LISTS) else getattr(module, name)
            own = f"{pattern}.*.output" if isinstance(found, nn.ModuleList) else f"{pattern}.output"
            return UnknownValue(
                f"`{pattern}` is a part of the tree, not a value: add the name of one, as in `{own}`. "
                f"`model.values()` lists every value, `print(model)` the tree."
            )
        tail = ".".join(parts[parts.index(name) :]) if name in parts else name
        inside = [place for place in all_values(module) if f".{place.address}".endswith(f".{tail}")]
        if inside:
            held = min(
                inside, key=lambda place: place.why_unavailable is not None
            ).address  # one that can be had, if any can
            return UnknownValue(
                f"`{pattern}`: `{type(module).__name__}` has no value or part `{name}` of its own; `{held}` is one. "
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
    book = book_of(root)
    plain = values_of(Named)
    return [
        ValueRef(module, value, book.address(module, f"{name}(t)" if isinstance(value, ValueAt) else name))
        for module in root.modules()
        for name, value in values_of(type(module)).items()
        if universal or plain.get(name) is not value
    ]
