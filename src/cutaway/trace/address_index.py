"""`AddressIndex`: the standard path of each module of a tree, computed once and kept until the tree changes.

It reads the tree and its aliases only. Patterns of addresses are the business of `addresses`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from cutaway.named import Alias, Value


class AddressIndex:
    """The standard path of every module of a tree, by identity, for as long as no module's parts change."""

    def __init__(self, root: nn.Module) -> None:
        modules, this = list(root.modules()), ref(self)
        tables = [module._modules for module in modules]
        self._parts, self._leaves = [table for table in tables if table], [table for table in tables if not table]
        self._alive = [ref(module, lambda _: _drop(this())) for module in modules]
        self._signature = self._read()
        self.paths: dict[int, str] = {id(root): ""}
        self.renamed: dict[tuple[int, str], str] = {}  # values that an alias gives a shorter address
        self.pattern_cache: dict[str, Any] = {}  # the matches of patterns, kept here by `addresses`
        queue: deque[nn.Module] = deque([root])
        while queue:
            module = queue.popleft()
            for name, part in edges(module):
                path = _join(self.paths[id(module)], name)
                if isinstance(part, tuple):
                    self.renamed.setdefault((id(part[0]), part[1]), path)
                elif id(part) not in self.paths:
                    self.paths[id(part)] = path
                    queue.append(part)

    def _read(self) -> tuple[int, ...]:
        """The identities of all parts. Called at every look-up, hence without a Python loop."""
        return tuple(map(id, chain.from_iterable(map(dict.values, self._parts))))

    def is_current(self) -> bool:
        """Whether the tree is as it was when the index was made."""
        return not any(self._leaves) and self._read() == self._signature

    def address(self, module: nn.Module, name: str) -> str:
        """The standard address of a module's value: by an alias of the value where that is shorter."""
        short = self.renamed.get((id(module), name))
        long = _join(self.paths.get(id(module), type(module).__name__), name)
        return short if short is not None and short.count(".") < long.count(".") else long


def _drop(index: AddressIndex | None) -> None:
    """Empty an index whose tree has lost a module: that module's identity may soon belong to another one."""
    if index is not None:
        index._parts, index._leaves, index._alive = [], [], []
        index.paths.clear()
        index.renamed.clear()
        index.pattern_cache.clear()


_indices: WeakKeyDictionary[nn.Module, AddressIndex] = WeakKeyDictionary()


def index_of(root: nn.Module) -> AddressIndex:
    """The index of a tree as the tree is now."""
    index = _indices.get(root)
    if index is None or not index.is_current():
        index = _indices[root] = AddressIndex(root)
    return index


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _aliases(module: nn.Module) -> list[tuple[str, Alias]]:
    """Aliases of a module: first those that rename a part, then those that only shorten the path."""
    aliases = [(n, a) for base in type(module).__mro__ for n, a in vars(base).items() if isinstance(a, Alias)]
    return sorted(aliases, key=lambda item: item[0] == item[1].path[-1])


def edges(module: nn.Module) -> Iterator[tuple[str, nn.Module | tuple[nn.Module, str]]]:
    """What each name of a module leads to: a part, or for some aliases a value `(module, name)`."""
    for name, alias in _aliases(module):
        part: Any = module
        for step in alias.path[:-1]:
            part = getattr(part, step, None)
        last = alias.path[-1]
        if isinstance(part, nn.Module):
            if isinstance(getattr(type(part), last, None), Value):
                yield name, (part, last)
            elif isinstance(target := getattr(part, last, None), nn.Module):
                yield name, target
    yield from module.named_children()


def known_modules(root: nn.Module) -> Container[int]:
    """The identities of the tree's modules as of the last look-up; empty once one of them is gone."""
    index = _indices.get(root)
    return () if index is None else index.paths


def contains(root: nn.Module, module: nn.Module) -> bool:
    """Whether `module` is part of the tree, or an alias of it leads there."""
    return id(module) in known_modules(root) or id(module) in index_of(root).paths


def address_of(root: nn.Module, module: nn.Module, name: str) -> str:
    """The standard address of a value, such as ``layers.3.layer_output``."""
    return index_of(root).address(module, name)
