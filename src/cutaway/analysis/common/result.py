"""What a technique returns: numbers with named axes in a frozen dataclass that goes to JSON and back, and is drawn.

It knows numbers, names and files. It does not know models, nor how anything is drawn.
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

FORMAT = 1
"""The number written into every file; a file of another one is refused."""


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
        """Of a tensor, array or nested list; `axes` are words, ``"layer token"``."""
        if isinstance(values, Tensor):
            values = values.detach().double().cpu().numpy()
        named = {axis: tuple(str(name) for name in names) for axis, names in (labels or {}).items()}
        return cls(np.asarray(values), tuple(axes.split()), named, unit)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.values.shape

    def names(self, axis: str) -> tuple[str, ...]:
        """What the entries of an axis are called."""
        if axis not in self.axes:
            raise InputError(f"There is no axis {axis!r}; the axes are {', '.join(self.axes)}.")
        return self.labels.get(axis) or tuple(map(str, range(self.shape[self.axes.index(axis)])))

    def at(self, **where: int | str) -> Any:
        """The numbers at a label or an index of each axis named: an `Array` of the other axes, or one float."""
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
        """Plain data; NaN, which JSON does not have, becomes null."""
        return {
            "axes": list(self.axes),
            "labels": {axis: list(names) for axis, names in self.labels.items()},
            "unit": self.unit,
            "values": _plain(self.values.tolist()),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Array:
        """What `to_json` gave."""
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
        """Plain data, complete: `from_json` gives an equal result."""
        content = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"cutaway": FORMAT, "technique": self.technique, **content}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Any:
        """The result that `to_json` wrote, of its own class. Raises `InputError` for anything else."""
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
        """Writes the JSON, whole or not at all."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise InputError(f"The result cannot be written to {path}: {error.strerror}.") from error
        return path

    @staticmethod
    def load(path: str | Path) -> Any:
        """The result in a file that `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a result: {error}.") from error
        if not isinstance(data, dict):
            raise InputError(f"{path} is JSON, but not a result: a result is an object.")
        return Result.from_json(data)

    def summary(self) -> str:
        """The finding in a few lines of plain text."""
        shapes = [(f.name, getattr(self, f.name)) for f in fields(self)]
        rows = [(name, " ".join(v.axes), "×".join(map(str, v.shape))) for name, v in shapes if isinstance(v, Array)]
        return table(("value", "axes", "size"), rows)

    def figure(self, *args: Any, **which: Any) -> Any:
        """The figure that `plot` draws; each technique has its own."""
        raise InputError(f"A {self.technique} result has no figure; `to_json()` and `summary()` give what it holds.")

    def _draw(self, function: str, *args: Any, **options: Any) -> Any:
        """Call a function of `cutaway.analysis.plots.results` on this result: the one door from results to figures.

        It is imported here, when a figure is wanted, so that results need no matplotlib.
        """
        from cutaway.analysis.plots import results

        return getattr(results, function)(self, *args, **options)

    def plot(self, path: str | Path | None = None, **which: Any) -> Any:
        """A matplotlib `Figure` of the finding; with `path` it is also written there, as the ending says."""
        figure = self.figure(**which)
        if path is not None:
            from cutaway.analysis.plots.figures import save

            save(figure, path)
        return figure


def number(value: float) -> str:
    """A number with three digits behind the point; what these make a zero has no sign."""
    written = f"{value:.3f}"
    return "0.000" if written == "-0.000" else written


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain-text table; numbers are set to the right, floats as `number` writes them."""
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
