"""Values of image cells as opaque heat maps beside the image, so that colour means the value and nothing else.

The image stands in its own colours in a panel of its own, with the strongest cells outlined; the maps have its shape.
Nothing is blended: a value has the same colour over a dark object as over a bright one. Which result is drawn how is
not known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from cutaway.analysis.common.result import Array
from cutaway.analysis.plots.figures import add_title, colour_map, limits_of, new
from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image

MOST_PANELS = 16
"""Panels of a figure; of more layers or frames this many are drawn, evenly spread."""

AREA = 6.5
"""Square inches of a panel."""

WIDEST = 14.0
"""Inches of the widest figure."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    - `cells`: the values [rows columns] of a heat map; NaN is grey. None for the image itself.
    - `background`: the image, anything that can be prepared; of a heat map it gives the shape alone.
    - `title`; `outlines`: cells (row, column) of a grid `grid` [rows columns] to outline, or `box` in pixels.
    """

    cells: Any
    title: str = ""
    background: Any = None
    outlines: tuple[tuple[int, int], ...] = ()
    grid: tuple[int, int] | None = None
    box: Box | None = None


def maps(
    panels: Sequence[Panel],
    *,
    title: str = "",
    about: str = "",
    unit: str = "",
    limits: tuple[float, float] | None = None,
    signed: bool | None = None,
    columns: int | None = None,
) -> Any:
    """Draw images and heat maps side by side, the maps on one colour scale."""
    if not panels:
        raise InputError("There is nothing to draw: no panel came.")
    arrays = [None if panel.cells is None else _checked(panel.cells) for panel in panels]
    values = [array.ravel() for array in arrays if array is not None]
    low, high, both = limits_of(np.concatenate(values) if values else [], signed)
    low, high = limits if limits is not None else (low, high)
    figure, positions = _canvas(panels, arrays, columns)
    shown = None
    for axes, panel, array in zip(positions, panels, arrays, strict=True):
        axes.set_title(panel.title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        size = _size(panel, array)
        extent = (0, size[1], size[0], 0)
        if array is None:
            axes.imshow(_pixels(panel.background), extent=extent)
        else:
            shown = axes.imshow(
                array, cmap=colour_map(both), vmin=low, vmax=high, extent=extent, interpolation="nearest"
            )
        _outline(axes, panel, size)
    if shown is not None:
        figure.colorbar(shown, ax=positions, label=unit, shrink=0.8)
    add_title(figure, title, about)
    return figure


def _checked(cells: Any) -> np.ndarray:
    array = np.asarray(cells, np.float64)
    if array.ndim != 2 or not array.size:
        raise InputError(f"The values of an image's cells are [rows columns]; got {array.shape}.")
    return array


def _pixels(background: Any) -> np.ndarray:
    """[height width 3] uint8"""
    return read_image(background).permute(1, 2, 0).numpy()


def _size(panel: Panel, array: np.ndarray | None) -> tuple[float, float]:
    """Height and width of a panel's content: the image's pixels, or without an image its cells."""
    if panel.background is not None:
        return tuple(_pixels(panel.background).shape[:2])
    assert array is not None  # a panel has cells or an image
    return array.shape[0], array.shape[1]


def _canvas(panels: Sequence[Panel], arrays: list[Any], columns: int | None) -> tuple[Any, list[Any]]:
    """A figure whose panels have about `AREA` and the shape of their content, in as many columns as fit."""
    height, width = _size(panels[0], arrays[0])
    shape = float(np.clip(width / height, 0.25, 6.0))
    wide, high = (AREA * shape) ** 0.5, (AREA / shape) ** 0.5
    if columns is None:
        columns = max(1, min(len(panels), int((WIDEST - 1.2) // wide)))
        rows = -(-len(panels) // columns)
        columns = -(-len(panels) // rows)  # as even rows as there can be
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    scale = min(1.0, (WIDEST - 1.2) / (columns * wide), 15.0 / (rows * (high + 0.35)))
    return new(max(4.6, scale * columns * wide + 1.2), scale * rows * (high + 0.35) + 0.7, len(panels), columns)


def _outline(axes: Any, panel: Panel, size: tuple[float, float]) -> None:
    """Draw rectangles around the outlined cells and the box, white within black, so that they are seen on anything."""
    boxes = [] if panel.box is None else [panel.box]
    if panel.grid is not None:
        down, across = size[0] / panel.grid[0], size[1] / panel.grid[1]
        boxes += [(c * across, r * down, (c + 1) * across, (r + 1) * down) for r, c in panel.outlines]
    for left, top, right, bottom in boxes:
        for colour, width in (("black", 3.2), ("white", 1.4)):
            axes.plot(
                [left, right, right, left, left],
                [top, top, bottom, bottom, top],
                color=colour,
                linewidth=width,
                clip_on=False,
            )
    if boxes:
        axes.set_xlim(0, size[1])
        axes.set_ylim(size[0], 0)


def strongest(cells: Any, most: int = 4) -> tuple[tuple[int, int], ...]:
    """Return the cells with the largest absolute values: those of at least half the largest, at most `most`."""
    sizes = np.abs(np.nan_to_num(_checked(cells)))
    if not sizes.max():
        return ()
    order = np.argsort(-sizes.ravel(), kind="stable")[:most]
    result = [np.unravel_index(int(n), sizes.shape) for n in order if sizes.ravel()[n] >= 0.5 * sizes.max()]
    return tuple((int(row), int(column)) for row, column in result)


def image_panel(background: Any, cells: Any, title: str = "image") -> Panel:
    """Return a panel of the image with the strongest of the cells outlined."""
    return Panel(None, title, background, strongest(cells), np.shape(cells))


def frame_images(background: Any, frames: int) -> list[Any]:
    """Return an image for each frame of a grid: the one image, the list for a video, or None for each."""
    listed = list(background) if isinstance(background, list | tuple) else [background] * (
        frames if background is None else 1
    )  # fmt: skip
    if len(listed) != frames:
        raise InputError(
            f"`background` must be a list with one image for each of the {frames} frames of the video's grid, or None; "
            f"got {len(listed)}."
        )
    return listed


def spread(names: Sequence[Any], most: int = MOST_PANELS) -> list[Any]:
    """Return at most `most` of the names, evenly spread, the first and last among them."""
    if len(names) <= most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def frame_maps(array: Array, background: Any, title: str, about: str = "", signed: bool | None = None) -> Any:
    """Draw a map "frame row column" beside the image, or a map for each frame of a video beside its frames."""
    images = frame_images(background, array.shape[0])
    panels = []
    for frame in spread(range(array.shape[0]), MOST_PANELS // 2):
        name = f"frame {frame}" if array.shape[0] > 1 else ""
        if images[frame] is not None:
            panels.append(image_panel(images[frame], array.values[frame], name or "image"))
        panels.append(Panel(array.values[frame], name, images[frame]))
    columns = 2 * max(1, min(3, len(panels) // 2)) if background is not None and array.shape[0] > 1 else None
    return maps(panels, title=title, about=about, unit=array.unit, signed=signed, columns=columns)


def words_on_cells(
    cells: np.ndarray,
    words: Sequence[Sequence[str]],
    background: Any,
    *,
    title: str,
    about: str = "",
    unit: str = "",
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draw a word on each cell [rows columns], on the cell's value as colour, beside the image."""
    cells = _checked(cells)
    rows, columns = cells.shape
    low, high, both = limits_of(cells) if limits is None else (*limits, False)
    wide, high_inches = max(3.0, 0.82 * columns), max(1.6, 0.42 * rows)
    if background is None:
        figure, (axes,) = new(min(16, wide + 1.4), min(16, high_inches + 0.8))
    else:
        pixels = _pixels(background)
        shape = float(np.clip(pixels.shape[1] / pixels.shape[0], 0.4, 3.0))
        figure, _ = new(min(16, wide + 1.6 + high_inches * shape), min(16, high_inches + 1.0), 0, 1)
        left, axes = figure.subplots(1, 2, width_ratios=(high_inches * shape, wide))
        left.imshow(pixels)
        left.set_title("image", fontsize=9)
        left.set_xticks([])
        left.set_yticks([])
    shown = axes.imshow(cells, cmap=colour_map(both), vmin=low, vmax=high, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    size = float(np.clip(7.5 * min(1.0, 14.0 / columns), 4.0, 8.5))
    for row, column in product(range(rows), range(columns)):
        share = (cells[row, column] - low) / (high - low)
        ink = "black" if not np.isfinite(share) or share > 0.55 else "white"
        text = legible(words[row][column], 10) if words[row][column] else ""
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=ink)
    figure.colorbar(shown, ax=axes, label=unit)
    add_title(figure, title, about)
    return figure


def words_table(
    values: Array, words: Sequence[Sequence[str]], *, title: str, about: str = "", limits: Any = None
) -> Any:
    """Draw a table of words, the first axis of `values` down, on each cell's value as colour."""
    high, wide = values.shape
    figure, (axes,) = new(min(16, 2.6 + 0.75 * wide), min(16, 2.0 + 0.3 * high))
    low, top = limits or (0.0, max(float(np.nanmax(values.values)), 1e-9))
    shown = axes.imshow(values.values, cmap=colour_map(False), vmin=low, vmax=top, aspect="auto")
    names = [[legible(name, 14) for name in values.names(axis)] for axis in values.axes]
    axes.set_yticks(range(high), names[0], fontsize=8)
    axes.set_xticks(range(wide), names[1], fontsize=8, rotation=60, ha="right")
    axes.set_ylabel(values.axes[0])
    axes.set_xlabel(values.axes[1])
    for row, column in product(range(high), range(wide)):
        ink = "black" if (values.values[row, column] - low) / (top - low) > 0.55 else "white"
        axes.text(column, row, legible(words[row][column], 10), ha="center", va="center", fontsize=7, color=ink)
    add_title(figure, title, about)
    figure.colorbar(shown, ax=axes, label=values.unit)
    return figure


def cells_of_places(array: Array) -> np.ndarray | None:
    """Return the values of an axis ``tokens`` as [rows columns] of their image; None where no name says where it lies.

    Names are those of regions (``"r0 c1"``) or an image's tokens (``"12 image r0 c1"``); others are left out.
    """
    result = {}
    for name, value in zip(array.names("tokens"), array.values, strict=True):
        at = re.search(r"(?:^|image )r(\d+) c(\d+)$", name)
        if at:
            result[int(at[1]), int(at[2])] = value
    if not result:
        return None
    cells = np.full([1 + max(at[axis] for at in result) for axis in (0, 1)], np.nan)
    for at, value in result.items():
        cells[at] = value
    return cells


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def legible(text: str, most: int) -> str:
    """Return a token's text as a figure can show it: trimmed, cut to `most` characters, unknown glyphs as numbers."""
    text = text.strip() or repr(text)
    known = _glyphs()
    shown = "".join(c if ord(c) in known and c.isprintable() else f"u{ord(c):x}" for c in text)
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    return shown.replace("$", r"\$")
