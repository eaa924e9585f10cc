"""Listings of a tree's values: the table with its axes and notes, what can be had and why not, and the printed tree.

`model.values()`, `model.support()` and `print(model)` come from here. It reads the declarations and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from cutaway.named import Named, values_of
from cutaway.trace.address_index import book_of
from cutaway.trace.addresses import all_values


@dataclass(frozen=True)
class ValueInfo:
    """One line of the value table.

    - `address`, `axes`, `doc`: its standard name, the names of its axes, one sentence.
    - `dtype`: the dtype's name; of the weights where none is declared.
    - `host`: the path and class of the module whose forward names it, in the checkpoint's own names.
    - `writable`: whether it may be edited.
    - `why_unavailable`: why it cannot be had; None when it can.
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
        """What the value is, or why it cannot be had."""
        return self.doc if self.why_unavailable is None else f"unavailable: {self.why_unavailable}"


class ValueTable(list[ValueInfo]):
    """The value table; printed, a line for each value."""

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
            address=place.address,
            axes=" ".join(place.value.axes),
            dtype=place.value.dtype or weights[id(place.module)] or fallback,
            host=f"{native[id(place.module)] or 'model'} ({type(place.module).__name__})",
            doc=place.value.doc,
            writable=place.value.writable,
            why_unavailable=place.why_unavailable,
        )
        for place in all_values(root)
    )


def _dtype(module: nn.Module) -> str:
    found = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    return "" if found is None else str(found).removeprefix("torch.")


def support(root: nn.Module) -> dict[str, str | None]:
    """For every value why it cannot be had; None where it can."""
    return {place.address: place.why_unavailable for place in all_values(root)}


def tree(root: nn.Module) -> str:
    """The tree with its values, one line for all blocks of a kind."""
    book = book_of(root)
    kinds: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for module in root.modules():
        path = book.paths[id(module)]
        if isinstance(module, nn.ModuleList):
            continue
        values = tuple(_value_lines(module))
        shape = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
        kinds.setdefault((shape, type(module).__name__, values), []).append(path)
    lines = [f"{type(root).__name__}: every part has `input`, `inputs` and `output`; further values are listed."]
    for (shape, kind, values), paths in kinds.items():
        depth = "  " * (shape.count(".") + 1 if shape else 0)
        head = f"{_together(shape, paths)}: {kind}" if shape else ""
        lines += [f"{depth}{head}"] if head else []
        lines += [f"{depth}  · {line}" for line in values]
    return "\n".join(lines)


def _value_lines(module: nn.Module) -> Iterator[str]:
    plain = values_of(Named)
    for name, value in values_of(type(module)).items():
        if plain.get(name) is not value:
            listed = "list of " if value.is_list else ""
            note = "" if value.why_unavailable(module) is None else "  (unavailable)"
            yield f"{name} {listed}[{' '.join(value.axes)}]{note}"


def _together(shape: str, paths: list[str]) -> str:
    """``layers.0:28.mlp`` for the paths of blocks that follow one another; the pattern with ``*`` otherwise."""
    if shape.count("*") != 1:
        return shape if len(paths) > 1 else paths[0]
    start = shape.index("*")
    numbers = [int(path[start:].split(".")[0]) for path in paths]
    if len(numbers) == 1:
        return paths[0]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return shape.replace("*", f"{numbers[0]}:{numbers[-1] + 1}")
    return shape.replace("*", ",".join(map(str, numbers)))
