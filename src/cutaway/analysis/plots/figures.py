"""Heat tables, bars and lines as matplotlib figures, and writing a figure to a file.

Figures are made without matplotlib's global state, legible at 100 dots per inch, in colours that colour-blind readers
can tell apart. Values over images are drawn by `images`; which figure belongs to which result, `results` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.analysis.common.result import Array
from cutaway.errors import InputError
from cutaway.storage import replacing

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
"""Okabe and Ito's eight colours."""

DPI = 100
MAP, SIGNED_MAP = "cividis", "PuOr_r"
"""Colour maps for values from zero up, and for values of both signs; both keep their order in grey."""

MISSING = "#d9d9d9"
"""The colour of cells without a value."""

MOST_NUMBERS = 14
"""Rows and columns up to which the numbers are written into a heat table."""


def new(width: float, height: float, panels: int = 1, columns: int | None = None) -> tuple[Any, list[Any]]:
    """Return a figure of `width` × `height` inches with so many panels in a grid, and the panels' axes in order."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("Figures need matplotlib: pip install 'cutaway[figures]'.") from error
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    columns = columns or panels
    rows = -(-panels // columns)
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(panels)]


def add_title(figure: Any, title: str, about: str = "") -> None:
    """Write a title over the whole figure and, below it, what the figure is about; long lines are broken."""
    from textwrap import wrap

    letters = max(30, int(figure.get_figwidth() * 14))  # that fit into a line of this font
    lines = [line for text in (title, about) for line in wrap(text.replace("$", r"\$"), letters)]
    figure.suptitle("\n".join(lines), fontsize=10)


def colour_map(signed: bool) -> Any:
    """Return the colour map, in which missing values (NaN) are light grey."""
    import matplotlib

    return matplotlib.colormaps[SIGNED_MAP if signed else MAP].with_extremes(bad=MISSING)


def limits_of(values: Any, signed: bool | None = None) -> tuple[float, float, bool]:
    """Return the ends of a colour scale and whether it has both signs; by default it has where a value is negative.

    A scale of both signs has zero in its middle, one of a single sign begins at zero.
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    signed = low < 0 if signed is None else signed
    if signed:
        most = max(abs(low), abs(high)) or 1.0
        return -most, most, True
    return 0.0, high if high > 0 else 1.0, False


def heat_table(array: Array, *, title: str, about: str = "", signed: bool | None = None) -> Any:
    """Draw a two-dimensional array as a table of colours, its first axis down, with numbers where there are few cells.

    `signed`: whether zero is the scale's middle; by default where a value is negative.
    """
    if len(array.axes) != 2:
        raise InputError(f"A heat table has two axes; this array has {array.axes}. Pick entries with `.at(axis=…)`.")
    rows, columns = array.shape
    longest = max(map(len, array.names(array.axes[0])), default=0)
    figure, (axes,) = new(min(16, 3.4 + 0.08 * longest + 0.46 * columns), min(16, 2.0 + 0.3 * rows))
    low, high, both = limits_of(array.values, signed)
    shown = axes.imshow(array.values, cmap=colour_map(both), vmin=low, vmax=high, aspect="auto")
    _ticks(axes, array)
    add_title(figure, title, about)
    figure.colorbar(shown, ax=axes, label=array.unit)
    if max(rows, columns) <= MOST_NUMBERS:
        _write_numbers(axes, array.values, (low, high), both)
    return figure


def _ticks(axes: Any, array: Array) -> None:
    down, across = (array.names(axis) for axis in array.axes)
    for names, put, most in ((down, axes.set_yticks, 40), (across, axes.set_xticks, 40)):
        step = max(1, -(-len(names) // most))
        put(range(0, len(names), step), [name.replace("$", r"\$") for name in names[::step]], fontsize=8)
    if max(map(len, across), default=0) * len(across) > 60:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_ylabel(array.axes[0])
    axes.set_xlabel(array.axes[1])


def _write_numbers(axes: Any, values: np.ndarray, limits: tuple[float, float], both: bool) -> None:
    most = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 1
    digits = 2 if most < 10 else 1 if most < 100 else 0
    for (row, column), value in np.ndenumerate(values):
        share = (value - limits[0]) / (limits[1] - limits[0])
        dark = abs(share - 0.5) > 0.3 if both else share < 0.55
        if np.isfinite(value):
            text = f"{round(value, digits) + 0.0:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def bars(
    labels: Sequence[str],
    values: Any,
    *,
    low: Any = None,
    high: Any = None,
    title: str,
    about: str = "",
    unit: str = "",
) -> Any:
    """Draw horizontal bars, the first on top, with intervals from `low` to `high` where given (NaN draws none)."""
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (len(labels),):
        raise InputError(f"A bar has a label and a value each; got {len(labels)} labels and values {numbers.shape}.")
    figure, (axes,) = new(7.5, min(16, 1.5 + 0.28 * len(labels)))
    axes.barh(range(len(labels)), numbers, color=COLOURS[0])
    if low is not None and high is not None:
        ends = np.stack([numbers - np.asarray(low, float), np.asarray(high, float) - numbers])
        kept = np.isfinite(ends).all(0)
        axes.errorbar(
            numbers[kept], np.flatnonzero(kept), xerr=np.clip(ends[:, kept], 0, None), fmt="none", ecolor="black"
        )
    axes.set_yticks(range(len(labels)), [label.replace("$", r"\$") for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(unit)
    add_title(figure, title, about)
    return figure


def lines(array: Array, *, title: str, about: str = "", low: Array | None = None, high: Array | None = None) -> Any:
    """Draw a line for each entry of the first axis along the second, with bands from `low` to `high` where given."""
    if len(array.axes) != 2:
        raise InputError(f"Lines have two axes, the series and what they run along; this array has {array.axes}.")
    figure, (axes,) = new(7.5, 4.4)
    along = array.names(array.axes[1])
    for n, name in enumerate(array.names(array.axes[0])):
        style = {"color": COLOURS[n % len(COLOURS)], "linestyle": ("-", "--", ":", "-.")[n // len(COLOURS) % 4]}
        axes.plot(range(len(along)), array.values[n], label=name, marker="o", markersize=3, **style)
        if low is not None and high is not None:
            axes.fill_between(range(len(along)), low.values[n], high.values[n], color=style["color"], alpha=0.2, lw=0)
    step = max(1, -(-len(along) // 20))
    axes.set_xticks(range(0, len(along), step), along[::step], fontsize=8)
    axes.set_xlabel(array.axes[1])
    axes.set_ylabel(array.unit)
    add_title(figure, title, about)
    axes.legend(fontsize=8, title=array.axes[0], title_fontsize=8)
    return figure


def writable(path: str | Path) -> Path:
    """Return the path, if a figure can be written there. Raises `InputError` for another ending or a missing folder."""
    path = Path(path)
    kinds = new(1, 1)[0].canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise InputError(f"A figure is written as {', '.join(sorted(kinds))}; {path.name!r} has none of these endings.")
    if not path.parent.is_dir():
        raise InputError(f"The figure cannot be written to {path}: there is no folder {path.parent}. Make it first.")
    return path


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure to a file, in the format that the ending names (png, pdf, svg …)."""
    path = writable(path)
    with replacing(path) as (part,):
        figure.savefig(part, dpi=DPI)
    return path
