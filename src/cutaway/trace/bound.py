"""The tree as one run sees it: `run.layers[3].layer_output` reads from that run, whichever run is the innermost.

A `Part` passes everything on to its module, and reads of values to its run. It has no names of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from cutaway.errors import UnknownValue
from cutaway.named import Alias, Value, ValueAt, unknown
from cutaway.observe import Reader


class BoundPositionValues:
    """A module's `ValueAt` in one run: calling it with a position reads the value there, `set` replaces it."""

    def __init__(self, run: Reader, module: nn.Module, value: ValueAt) -> None:
        self._run, self._module, self._value = run, module, value

    def __call__(self, index: int) -> Any:
        """The value at position `index`; negative positions count from the end."""
        return self._run.read(self._module, self._value.at(index))

    def set(self, index: int, new: Any) -> None:
        """Replace the value at position `index`."""
        self._value.check_writable()
        self._run.write(self._module, self._value.at(index), new)


class Part:
    """A module of the tree, bound to a run."""

    __slots__ = ("_module", "_run")

    def __init__(self, run: Reader, module: nn.Module) -> None:
        object.__setattr__(self, "_run", run)
        object.__setattr__(self, "_module", module)

    def _bound(self, part: Any) -> Any:
        return Part(self._run, part) if isinstance(part, nn.Module) else part

    def __getattr__(self, name: str) -> Any:
        return get(self._run, self._module, name)

    def __setattr__(self, name: str, new: Any) -> None:
        put_back(self._run, self._module, name, new)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._bound(module) for module in list(self)[index]]
        return self._bound(self._module[index])  # type: ignore[index]

    def __setitem__(self, index: Any, new: Any) -> None:
        raise TypeError("A run reads and assigns values; got a module. Set parts of the tree on the model.")

    def __iter__(self) -> Iterator[Any]:
        return (self._bound(module) for module in self._module)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __repr__(self) -> str:
        return f"{self._module!r} in {self._run!r}"


def _host(module: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        module = getattr(module, name)
    return module


def get(run: Reader, module: nn.Module, name: str) -> Any:
    """What `module.name` is in `run`: a value that the run reads, or a part bound to the run."""
    declared = getattr(type(module), name, None)
    if isinstance(declared, Alias):
        host = _host(module, declared.path[:-1])
        return get(run, host, declared.path[-1]) if isinstance(host, nn.Module) else getattr(host, declared.path[-1])
    if isinstance(declared, Value):
        declared.check(module)
        return (
            BoundPositionValues(run, module, declared) if isinstance(declared, ValueAt) else run.read(module, declared)
        )
    try:
        part = getattr(module, name)
    except UnknownValue:
        raise
    except AttributeError:
        raise unknown(module, name) from None
    return Part(run, part) if isinstance(part, nn.Module) else part


def put_back(run: Reader, module: nn.Module, name: str, new: Any) -> None:
    """Assign the value `module.name` in `run`."""
    declared = getattr(type(module), name, None)
    if isinstance(declared, Alias):
        put_back(run, _host(module, declared.path[:-1]), declared.path[-1], new)
    elif isinstance(declared, Value):
        declared.check(module)
        declared.check_writable()
        if isinstance(declared, ValueAt):
            declared.__set__(module, new)  # raises: a position has to be named
        run.write(module, declared, new)
    else:
        raise unknown(module, name)
