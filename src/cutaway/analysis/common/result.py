"""What an analysis returns: numbers with named axes in a frozen dataclass that is saved as JSON, summarised and drawn.

Every analysis defines a subclass of `Result` whose fields are `Array`s and plain data; `Result.load` reads any of them
back. How figures are drawn is in `plots`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cutaway.errors import InputError
from cutaway.storage import read_text, write_json

FORMAT = 1
"""The number written into every file; a file of another one is refused."""

LARGEST = 2**32
"""Bytes of a result's file that are read."""


@dataclass(frozen=True, eq=False)
class Array:
    """Numbers with a name for every axis.

    - `values`: float64, read-only. - `axes`: a name for each axis.
    - `labels`: for an axis, what its entries are called; an axis without labels is numbered from 0.
    - `unit`: of the numbers, as it is written beside a scale.

    Raises `InputError` when axes or labels do not fit the values.
    """

    values: np.ndarray
    axes: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit: str = ""

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        values.flags.writeable = False
        object.__setattr__(self, "values", values)
        if len(self.axes) != values.ndim:
            raise InputError(f"An array has a name for each axis: {self.axes} for a shape {values.shape}.")
        for axis, names in self.labels.items():
            if axis not in self.axes or len(names) != values.shape[self.axes.index(axis)]:
                raise InputError(f"{len(names)} labels for axis {axis!r} of {self.axes}, shape {values.shape}.")

    @classmethod
    def of(cls, values: Any, axes: str, labels: Mapping[str, Iterable[object]] | None = None, unit: str = "") -> Array:
        """Return the array of a tensor, array or nested list; `axes` are words, ``"layer token"``."""
        if isinstance(values, Tensor):
            values = values.detach().double().cpu().numpy()
        named = {axis: tuple(str(name) for name in names) for axis, names in (labels or {}).items()}
        return cls(np.asarray(values), tuple(axes.split()), named, unit)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.values.shape

    def names(self, axis: str) -> tuple[str, ...]:
        """Return the names of an axis' entries; numbers from 0 where it has no labels."""
        if axis not in self.axes:
            raise InputError(f"There is no axis {axis!r}; the axes are {', '.join(self.axes)}.")
        return self.labels.get(axis) or tuple(map(str, range(self.shape[self.axes.index(axis)])))

    def at(self, **where: int | str) -> Any:
        """Return the numbers at a label or an index of each named axis: an `Array` of the other axes, or one float."""
        index: list[Any] = [slice(None)] * len(self.axes)
        for axis, entry in where.items():
            names = self.names(axis)
            if isinstance(entry, str) and entry not in names:
                raise InputError(f"Axis {axis!r} has no entry {entry!r}; it has {', '.join(names[:20])}.")
            position = names.index(entry) if isinstance(entry, str) else entry
            if not -len(names) <= position < len(names):
                raise InputError(f"Axis {axis!r} has {len(names)} entries, numbered from 0; there is no {position}.")
            index[self.axes.index(axis)] = position
        picked = self.values[tuple(index)]
        if picked.ndim == 0:
            return float(picked)
        left = tuple(axis for axis in self.axes if axis not in where)
        return Array(picked, left, {a: n for a, n in self.labels.items() if a in left}, self.unit)

    def peak(self) -> tuple[int, ...]:
        """The index of the largest number, NaN left out. Raises `InputError` where every number is NaN."""
        if not np.isfinite(self.values).any():
            raise InputError("Every entry is NaN (left out), so there is no largest one.")
        return tuple(map(int, np.unravel_index(int(np.nanargmax(self.values)), self.shape)))

    def to_json(self) -> dict[str, Any]:
        """Return plain data; NaN, which JSON does not have, becomes null."""
        return {
            "axes": list(self.axes),
            "labels": {axis: list(names) for axis, names in self.labels.items()},
            "unit": self.unit,
            "values": _plain(self.values.tolist()),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Array:
        """Return the array that `to_json` wrote."""
        labels = {axis: tuple(names) for axis, names in data["labels"].items()}
        return cls(np.array(data["values"], dtype=np.float64), tuple(data["axes"]), labels, data["unit"])


@dataclass(frozen=True, eq=False)
class Result:
    """Base of the results. A subclass is a frozen dataclass that says its technique::

        @dataclass(frozen=True, eq=False)
        class Patching(Result, technique="patching"): …

    Its fields are `Array`s, strings, numbers, booleans, None, and tuples and dicts of those.
    """

    technique: ClassVar[str] = ""
    _known: ClassVar[dict[str, type[Result]]] = {}

    def __init_subclass__(cls, technique: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.technique = technique or cls.__name__.lower()
        Result._known[cls.technique] = cls

    def to_json(self) -> dict[str, Any]:
        """Return plain data, complete: `from_json` returns an equal result."""
        content = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"cutaway": FORMAT, "technique": self.technique, **content}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Any:
        """Return the result that `to_json` wrote, in its own class. Raises `InputError` for anything else."""
        if not isinstance(data, Mapping):
            raise InputError(f"A result is a JSON object, as `to_json` gives it; got a {type(data).__name__}.")
        if data.get("cutaway") != FORMAT or data.get("technique") not in Result._known:
            raise InputError(
                f"This is not a result of format {FORMAT}: its technique is {data.get('technique')!r}, its format "
                f"{data.get('cutaway')!r}. Known here: {', '.join(sorted(Result._known))}; import the module of the "
                f"technique first."
            )
        kind = Result._known[data["technique"]]
        missing = [f.name for f in fields(kind) if f.name not in data]
        if missing:
            raise InputError(f"A {kind.technique} result has {', '.join(missing)} as well; this one lacks them.")
        return kind(**{f.name: _rich(data[f.name]) for f in fields(kind)})

    def save(self, path: str | Path) -> Path:
        """Write the JSON, whole or not at all. Raises `InputError` where it cannot be written."""
        return write_json(path, self.to_json(), indent=1)

    @staticmethod
    def load(path: str | Path) -> Any:
        """Return the result in a file that `save` wrote. Raises `InputError` for any other file."""
        text = read_text(path, InputError, limit=LARGEST)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"A result is a JSON file that `save` wrote; got {path}: {error}.") from error
        return Result.from_json(data)

    def summary(self) -> str:
        """Return the result in a few lines of plain text."""
        shapes = [(f.name, getattr(self, f.name)) for f in fields(self)]
        rows = [(name, " ".join(v.axes), "×".join(map(str, v.shape))) for name, v in shapes if isinstance(v, Array)]
        return table(("value", "axes", "size"), rows)

    def figure(self, *args: Any, **which: Any) -> Any:
        """Return the figure that `plot` draws; each technique has its own."""
        raise InputError(f"A {self.technique} result has no figure; `to_json()` and `summary()` give what it holds.")

    def _draw(self, function: str, *args: Any, **options: Any) -> Any:
        """Call a function of `cutaway.analysis.plots.results` on this result: the one door from results to figures.

        It is imported here, when a figure is wanted, so that results need no matplotlib.
        """
        from cutaway.analysis.plots import results

        return getattr(results, function)(self, *args, **options)

    def plot(self, path: str | Path | None = None, **which: Any) -> Any:
        """Return a matplotlib `Figure` of the result; with `path` it is also written there, as the ending says."""
        figure = self.figure(**which)
        if path is not None:
            from cutaway.analysis.plots.figures import save

            save(figure, path)
        return figure


def number(value: float) -> str:
    """Return a number with three decimals; a zero has no sign."""
    written = f"{value:.3f}"
    return "0.000" if written == "-0.000" else written


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a plain-text table; numbers are aligned to the right, floats written by `number`."""
    written = [[number(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    kinds = (
        [all(isinstance(cell, int | float) for cell in column) for column in zip(*rows, strict=True)] if rows else []
    )
    wide = [max(len(name), *(len(row[n]) for row in written), 0) for n, name in enumerate(columns)]
    right = kinds or [False] * len(columns)

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, wide, right, strict=True)).rstrip()

    return "\n".join([line(columns), line(["-" * w for w in wide]), *(line(row) for row in written)])


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise InputError(f"A result holds arrays, text, numbers, tuples and dicts of those; a {type(value).__name__} came.")


def _rich(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"axes", "labels", "unit", "values"}:
            return Array.from_json(value)
        return {key: _rich(item) for key, item in value.items()}
    return tuple(_rich(item) for item in value) if isinstance(value, list) else value
