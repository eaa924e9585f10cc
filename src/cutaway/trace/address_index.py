"""The book of a tree: the standard path of each of its modules, made once and kept for as long as the tree stands.

It reads the tree and its aliases alone. What a path is used for, and patterns of them, are `names`' business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from cutaway.named import Alias, Value


class Book:
    """The standard path of every module of a tree, by identity, for as long as no module's parts change."""

    def __init__(self, root: nn.Module) -> None:
        modules, book = list(root.modules()), ref(self)
        tables = [module._modules for module in modules]
        self._parts, self._leaves = [table for table in tables if table], [table for table in tables if not table]
        self._alive = [ref(module, lambda _: _close(book())) for module in modules]
        self._signature = self._read()
        self.paths: dict[int, str] = {id(root): ""}
        self.renamed: dict[tuple[int, str], str] = {}  # values that an alias gives a shorter address
        self.looked_up: dict[str, Any] = {}  # what patterns were found to name, for `names` to keep
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
        """The identities of all parts. It is asked at every look-up, and so walks the tables without Python's loop."""
        return tuple(map(id, chain.from_iterable(map(dict.values, self._parts))))

    def holds(self) -> bool:
        """Whether the tree is still as it was."""
        return not any(self._leaves) and self._read() == self._signature

    def address(self, module: nn.Module, name: str) -> str:
        """The standard address of a module's value: by an alias of the value where that is shorter."""
        short = self.renamed.get((id(module), name))
        long = _join(self.paths.get(id(module), type(module).__name__), name)
        return short if short is not None and short.count(".") < long.count(".") else long


def _close(book: Book | None) -> None:
    """A module is gone: its identity may soon be another one's, and what was kept of it here may go."""
    if book is not None:
        book._parts, book._leaves, book._alive = [], [], []
        book.paths.clear()
        book.renamed.clear()
        book.looked_up.clear()


_open: WeakKeyDictionary[nn.Module, Book] = WeakKeyDictionary()


def book_of(root: nn.Module) -> Book:
    """The book of a tree as it is now."""
    book = _open.get(root)
    if book is None or not book.holds():
        book = _open[root] = Book(root)
    return book


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _aliases(module: nn.Module) -> list[tuple[str, Alias]]:
    """Aliases of a module, those that rename before those that only shorten the way."""
    found = [(n, a) for base in type(module).__mro__ for n, a in vars(base).items() if isinstance(a, Alias)]
    return sorted(found, key=lambda item: item[0] == item[1].path[-1])


def edges(module: nn.Module) -> Iterator[tuple[str, nn.Module | tuple[nn.Module, str]]]:
    """Where one name leads from here: to a part, or for some aliases to a value `(module, name)`."""
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


def known(root: nn.Module) -> Container[int]:
    """The identities of the tree's modules as they were last looked up; empty from when one of them is gone."""
    book = _open.get(root)
    return () if book is None else book.paths


def contains(root: nn.Module, module: nn.Module) -> bool:
    """Whether `module` is part of the tree, or an alias of it leads there."""
    return id(module) in known(root) or id(module) in book_of(root).paths


def address_of(root: nn.Module, module: nn.Module, name: str) -> str:
    """The standard address of a value, such as ``layers.3.layer_output``."""
    return book_of(root).address(module, name)
