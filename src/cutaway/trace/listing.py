"""Listings of a tree's values: the table with its axes and notes, what can be had and why not, and the printed tree.

`model.values()`, `model.support()` and `print(model)` come from here. It reads the declarations and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from cutaway.named import Named, values_of
from cutaway.trace.address_index import index_of
from cutaway.trace.addresses import all_values


@dataclass(frozen=True)
class ValueInfo:
    """One line of the value table.

    - `address`, `axes`, `doc`: its standard name, the names of its axes, one sentence.
    - `dtype`: the dtype's name; that of the weights where none is declared.
    - `host`: the path and class of the module whose forward names it, in the checkpoint's own names.
    - `writable`: whether it may be edited.
    - `why_unavailable`: the reason why this model does not have it; None when it has.
    """

    address: str
    axes: str
    dtype: str
    host: str
    doc: str
    writable: bool
    why_unavailable: str | None

    @property
    def note(self) -> str:
        """What the value is, or why it is unavailable."""
        return self.doc if self.why_unavailable is None else f"unavailable: {self.why_unavailable}"


class ValueTable(list[ValueInfo]):
    """The value table; it prints as a line for each value."""

    def __repr__(self) -> str:
        lines = [
            (row.address, f"[{row.axes}]", row.dtype, "" if row.writable else "read-only", row.note) for row in self
        ]
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(4)]
        return "\n".join(
            "  ".join([*(t.ljust(w) for t, w in zip(line, widths, strict=False)), line[4]]) for line in lines
        )


def table(root: nn.Module) -> ValueTable:
    """The value table of a tree, in the tree's order."""
    native = {id(module): name for name, module in root.named_modules()}
    weights = {id(m): _dtype(m) for m in root.modules()}
    fallback = next((d for d in weights.values() if d), "float32")
    return ValueTable(
        ValueInfo(
            address=ref.address,
            axes=" ".join(ref.value.axes),
            dtype=ref.value.dtype or weights[id(ref.module)] or fallback,
            host=f"{native[id(ref.module)] or 'model'} ({type(ref.module).__name__})",
            doc=ref.value.doc,
            writable=ref.value.writable,
            why_unavailable=ref.why_unavailable,
        )
        for ref in all_values(root)
    )


def _dtype(module: nn.Module) -> str:
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def support(root: nn.Module) -> dict[str, str | None]:
    """For every value, by address, why it is unavailable; None where it is available."""
    return {ref.address: ref.why_unavailable for ref in all_values(root)}


def tree(root: nn.Module) -> str:
    """The tree with its values, one line for all layers of a kind."""
    index = index_of(root)
    kinds: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for module in root.modules():
        path = index.paths[id(module)]
        if isinstance(module, nn.ModuleList):
            continue
        values = tuple(_value_lines(module))
        shape = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
        kinds.setdefault((shape, type(module).__name__, values), []).append(path)
    lines = [f"{type(root).__name__}: every part has `input`, `inputs` and `output`; further values are listed."]
    for (shape, kind, values), paths in kinds.items():
        depth = "  " * (shape.count(".") + 1 if shape else 0)
        head = f"{_joined(shape, paths)}: {kind}" if shape else ""
        lines += [f"{depth}{head}"] if head else []
        lines += [f"{depth}  · {line}" for line in values]
    return "\n".join(lines)


def _value_lines(module: nn.Module) -> Iterator[str]:
    unwrap = values_of(Named)
    for name, value in values_of(type(module)).items():
        if unwrap.get(name) is not value:
            listed = "list of " if value.is_list else ""
            note = "" if value.why_unavailable(module) is None else "  (unavailable)"
            yield f"{name} {listed}[{' '.join(value.axes)}]{note}"


def _joined(shape: str, paths: list[str]) -> str:
    """``layers.0:28.mlp`` for the paths of consecutive layers; the pattern with ``*`` otherwise."""
    if shape.count("*") != 1:
        return shape if len(paths) > 1 else paths[0]
    start = shape.index("*")
    numbers = [int(path[start:].split(".")[0]) for path in paths]
    if len(numbers) == 1:
        return paths[0]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return shape.replace("*", f"{numbers[0]}:{numbers[-1] + 1}")
    return shape.replace("*", ",".join(map(str, numbers)))
