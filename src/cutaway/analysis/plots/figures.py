"""How results are drawn: heat tables, values over images, bars with intervals, lines.

Figures are matplotlib's, made without its global state, legible at 100 dots per inch, in colours that colour-blind
readers can tell apart. This module knows numbers and images; which of them make a finding is not its business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.analysis.common.result import Array
from cutaway.errors import InputError
from cutaway.inputs.geometry.overlay import upsample
from cutaway.inputs.image.open import read_image

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
"""Okabe and Ito's eight colours."""

DPI = 100
MAP, SIGNED_MAP = "cividis", "PuOr_r"
"""Colour maps for values from zero up, and for values of both signs; both keep their order in grey."""

MANY = 14
"""Cells of a row or column up to which their numbers are written into a heat table."""


def new(width: float, height: float, panels: int = 1, columns: int | None = None) -> tuple[Any, list[Any]]:
    """A figure of `width` × `height` inches with so many panels in a grid, and the panels' axes in order."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("Figures need matplotlib: pip install 'cutaway[figures]'.") from error
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    columns = columns or panels
    rows = -(-panels // columns)
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(panels)]


def titled(figure: Any, title: str) -> None:
    """A title over the whole figure, where labels may take half of it; in several lines where it is long."""
    figure.suptitle(title, fontsize=10, wrap=True)


def limits_of(values: Any, signed: bool | None = None) -> tuple[float, float, bool]:
    """The ends of a colour scale and whether it has two signs: then zero is its middle."""
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    signed = low < 0 if signed is None else signed
    if signed:
        most = max(abs(low), abs(high)) or 1.0
        return -most, most, True
    return low, high if high > low else low + 1.0, False


def grid(array: Array, *, title: str, signed: bool | None = None, axes: Any = None) -> Any:
    """A heat table of a two-dimensional array, its first axis down; numbers stand in the cells while they are few.

    `signed` fixes whether zero is the scale's middle; default where a value is negative. `axes`: draw there.
    """
    if len(array.axes) != 2:
        raise InputError(f"A heat table has two axes; this array has {array.axes}. Pick entries with `.at(axis=…)`.")
    high, wide = array.shape
    figure = None
    if axes is None:
        longest = max(map(len, array.names(array.axes[0])), default=0)
        figure, (axes,) = new(min(16, 2.6 + 0.08 * longest + 0.42 * wide), min(16, 1.8 + 0.3 * high))
    low, top, both = limits_of(array.values, signed)
    shown = axes.imshow(array.values, cmap=SIGNED_MAP if both else MAP, vmin=low, vmax=top, aspect="auto")
    _ticks(axes, array)
    if figure is None:
        axes.set_title(title, fontsize=10)
    else:
        titled(figure, title)
    axes.figure.colorbar(shown, ax=axes, label=array.unit)
    if max(high, wide) <= MANY:
        _numbers(axes, array.values, (low, top), both)
    return figure if figure is not None else axes.figure


def _ticks(axes: Any, array: Array) -> None:
    down, across = (array.names(axis) for axis in array.axes)
    for names, put, most in ((down, axes.set_yticks, 40), (across, axes.set_xticks, 40)):
        step = max(1, -(-len(names) // most))
        put(range(0, len(names), step), names[::step], fontsize=8)
    if max(map(len, across), default=0) * len(across) > 60:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_ylabel(array.axes[0])
    axes.set_xlabel(array.axes[1])


def _numbers(axes: Any, values: np.ndarray, limits: tuple[float, float], both: bool) -> None:
    most = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 1
    digits = 2 if most < 10 else 1 if most < 100 else 0
    for (row, column), value in np.ndenumerate(values):
        share = (value - limits[0]) / (limits[1] - limits[0])
        dark = abs(share - 0.5) > 0.3 if both else share < 0.55
        if np.isfinite(value):
            ink = "white" if dark else "black"
            axes.text(
                column, row, f"{round(value, digits) + 0.0:.{digits}f}", ha="center", va="center", fontsize=7, color=ink
            )


def overlay(
    axes: Any,
    background: Any,
    cells: Any,
    *,
    title: str = "",
    limits: tuple[float, float] | None = None,
    signed: bool = False,
    opacity: float = 0.65,
) -> Any:
    """Draws a value per token [rows columns] over its image and returns what a colour bar takes.

    `image` is anything that can be prepared; None draws the cells alone. It is drawn pale and grey, so that its own
    colours are not read as values. NaN stays clear.
    """
    values = np.asarray(cells, np.float64)
    if values.ndim != 2:
        raise InputError(f"Values over an image are [rows columns] of its merged grid; got {values.shape}.")
    low, high = limits if limits is not None else limits_of(values, signed)[:2]
    kind = SIGNED_MAP if signed else MAP
    _framed(axes, title)
    if background is None:
        return axes.imshow(values, cmap=kind, vmin=low, vmax=high)
    pixels = read_image(background).permute(1, 2, 0).numpy()
    pale = 0.8 + 0.2 * pixels.mean(-1) / 255
    axes.imshow(pale, cmap="gray", vmin=0, vmax=1)
    heat = upsample(values.astype(np.float32), (pixels.shape[0], pixels.shape[1]))
    return axes.imshow(np.ma.masked_invalid(heat), cmap=kind, vmin=low, vmax=high, alpha=opacity)


def _framed(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


@dataclass(frozen=True)
class Panel:
    """One image of a row: the image or None, its value per token [rows columns] or None for none, its title."""

    background: Any
    cells: Any
    title: str = ""


def panels_figure(
    panels: Sequence[Panel],
    *,
    title: str = "",
    unit: str = "",
    limits: tuple[float, float] | None = None,
    signed: bool | None = None,
    columns: int = 4,
) -> Any:
    """Images side by side with values over them, on one colour scale."""
    if not panels:
        raise InputError("There is nothing to draw: no panels came.")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, places = new(2.6 * columns + 1, 2.7 * rows + 0.4, len(panels), columns)
    valued = [np.ravel(np.asarray(panel.cells, float)) for panel in panels if panel.cells is not None]
    low, high, both = limits_of(np.concatenate(valued), signed)
    if limits is not None:
        low, high = limits
    shown = None
    for axes, panel in zip(places, panels, strict=True):
        if panel.cells is None:
            axes.imshow(read_image(panel.background).permute(1, 2, 0).numpy())
            _framed(axes, panel.title)
            continue
        shown = overlay(axes, panel.background, panel.cells, title=panel.title, limits=(low, high), signed=both)
    figure.colorbar(shown, ax=places, label=unit, shrink=0.8)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def placed(array: Array) -> np.ndarray | None:
    """[rows columns] of values with an axis ``tokens``, put where the places lie in their image.

    Places are regions (``"r0 c1"``) or an image's tokens (``"12 image r0 c1"``); others are left out. None where no
    place says where it lies.
    """
    found = {}
    for name, value in zip(array.names("tokens"), array.values, strict=True):
        at = re.search(r"(?:^|image )r(\d+) c(\d+)$", name)
        if at:
            found[int(at[1]), int(at[2])] = value
    if not found:
        return None
    cells = np.full([1 + max(at[axis] for at in found) for axis in (0, 1)], np.nan)
    for at, value in found.items():
        cells[at] = value
    return cells


def bars(labels: Sequence[str], values: Any, *, low: Any = None, high: Any = None, title: str, unit: str = "") -> Any:
    """Horizontal bars, the first on top, with intervals from `low` to `high` where given (NaN draws none)."""
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (len(labels),):
        raise InputError(f"A bar has a label and a value each: {len(labels)} labels, values {numbers.shape}.")
    figure, (axes,) = new(7, min(16, 1.2 + 0.28 * len(labels)))
    axes.barh(range(len(labels)), numbers, color=COLOURS[0])
    if low is not None and high is not None:
        ends = np.stack([numbers - np.asarray(low, float), np.asarray(high, float) - numbers])
        kept = np.isfinite(ends).all(0)
        axes.errorbar(
            numbers[kept], np.flatnonzero(kept), xerr=np.clip(ends[:, kept], 0, None), fmt="none", ecolor="black"
        )
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(unit)
    titled(figure, title)
    return figure


def lines(array: Array, *, title: str, low: Array | None = None, high: Array | None = None) -> Any:
    """A line for each entry of the first axis along the second, with bands from `low` to `high` where given."""
    if len(array.axes) != 2:
        raise InputError(f"Lines have two axes, the series and what they run along; this array has {array.axes}.")
    figure, (axes,) = new(7, 4)
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
    titled(figure, title)
    axes.legend(fontsize=8, title=array.axes[0], title_fontsize=8)
    return figure


def writable(path: str | Path) -> Path:
    """The path, if a figure can go there. Raises `InputError` for another ending or a folder that is not there."""
    path = Path(path)
    kinds = new(1, 1)[0].canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise InputError(f"A figure is written as {', '.join(sorted(kinds))}; {path.name!r} has none of these endings.")
    if not path.parent.is_dir():
        raise InputError(f"The figure cannot be written to {path}: there is no folder {path.parent}. Make it first.")
    return path


def save(figure: Any, path: str | Path) -> Path:
    """Writes a figure, in the format that the ending names (png, pdf, svg …)."""
    path = writable(path)
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise InputError(f"The figure cannot be written to {path}: {error.strerror}.") from error
    return path
