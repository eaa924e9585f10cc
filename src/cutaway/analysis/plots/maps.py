"""Figures of maps over images and videos that several techniques draw alike, and words written over an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from cutaway.analysis.common.result import Array
from cutaway.analysis.common.token_selection import one_medium
from cutaway.analysis.plots.figures import Panel, new, overlay, panels_figure, titled
from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image

MOST = 16
"""Panels of a figure; of more layers or frames, this many are drawn, evenly spread."""


def frame_images(background: Any, frames: int) -> list[Any]:
    """An image for each temporal grid: one given for an image, a list for a video, or None."""
    given = (
        list(background)
        if isinstance(background, list | tuple)
        else [background] * (frames if background is None else 1)
    )
    if len(given) != frames:
        raise InputError(
            f"Give an image for each temporal grid of the video, a list of {frames}, or none; got {len(given)}."
        )
    return given


def spread(names: Sequence[Any], most: int = MOST) -> list[Any]:
    """At most `most` of the names, the first and last among them."""
    if len(names) <= most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def frames_figure(found: Array, background: Any, title: str, signed: bool | None = None) -> Any:
    """A map "frame row column" over an image, or over each frame of a video."""
    shown = frame_images(background, found.shape[0])
    numbers = spread(range(found.shape[0]))
    panels = [Panel(shown[f], found.values[f], f"frame {f}" if found.shape[0] > 1 else "") for f in numbers]
    if background is not None and found.shape[0] == 1:
        panels.insert(0, Panel(background, None, "image"))
    return panels_figure(panels, title=title, unit=found.unit, signed=signed)


def onto(media: Mapping[str, Any], item: str | None) -> str:
    """Words for a title that say which image is drawn, where a prompt has several."""
    return f" onto {one_medium(media, item)}" if len(media) > 1 else ""


def attention_figure(result: Any, background: Any, item: str | None, frame: int | None, which: dict[str, Any]) -> Any:
    """The figure of an `AttentionMap`; `which` has `layer`, `head` and `sinks`."""
    title = f"Attention from {result.source}{onto(result.media, item)}"
    layer, head = which.get("layer"), which.get("head")
    whole = result.map(item, **which)
    if (layer is not None and head is not None) or (frame is None and whole.shape[0] > 1):
        named = "".join(f", {axis} {n}" for axis, n in (("layer", layer), ("head", head)) if n is not None)
        return frames_figure(whole, background, title + (named or ", mean over layers and heads"))
    frame = frame or 0
    shown = frame_images(background, whole.shape[0])[frame]
    axis = "layer" if layer is None else "head"
    panels = [] if shown is None else [Panel(shown, None, "image")]
    panels.append(Panel(shown, whole.values[frame], "mean" if layer is None else f"layer {layer}, mean"))
    named = spread(result.weights.names(axis), MOST - 2)
    maps = [result.map(item, **{**which, axis: name}).values[frame] for name in named]
    panels += [Panel(shown, cells, f"{axis} {name}") for cells, name in zip(maps, named, strict=True)]
    return panels_figure(panels, title=title, unit="attention")


def words_figure(
    cells: np.ndarray, words: Sequence[Sequence[str]], background: Any, *, title: str, unit: str, limits: Any = None
) -> Any:
    """A word over each cell of an image, on the cell's value [rows columns] as colour."""
    rows, columns = cells.shape
    figure, (axes,) = new(min(16, 1.6 + 0.85 * columns), min(16, 1.0 + 0.6 * rows))
    height, width = (rows, columns) if background is None else tuple(read_image(background).shape[1:])
    shift = 0.5 if background is None else 0.0  # cells alone are drawn around whole numbers
    shown = overlay(axes, background, cells, title=title, limits=limits, opacity=0.75)
    size = max(4.0, min(9.0, 120.0 / columns))
    for row in range(rows):
        for column in range(columns):
            place = ((column + 0.5) * width / columns - shift, (row + 0.5) * height / rows - shift)
            text = axes.text(*place, legible(words[row][column], 9), ha="center", va="center", fontsize=size)
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8})
    axes.figure.colorbar(shown, ax=axes, label=unit)
    return figure


def words_table(values: Array, words: Sequence[Sequence[str]], *, title: str, limits: Any = None) -> Any:
    """A table of words, the first axis of `values` down, on each cell's value as colour."""
    high, wide = values.shape
    figure, (axes,) = new(min(16, 2.2 + 0.75 * wide), min(16, 1.6 + 0.3 * high))
    low, top = limits or (0.0, max(float(np.nanmax(values.values)), 1e-9))
    shown = axes.imshow(values.values, cmap="cividis", vmin=low, vmax=top, aspect="auto", alpha=0.75)
    names = [[legible(name, 14) for name in values.names(axis)] for axis in values.axes]
    axes.set_yticks(range(high), names[0], fontsize=8)
    axes.set_xticks(range(wide), names[1], fontsize=8, rotation=60, ha="right")
    axes.set_ylabel(values.axes[0])
    axes.set_xlabel(values.axes[1])
    for row in range(high):
        for column in range(wide):
            text = axes.text(column, row, legible(words[row][column], 9), ha="center", va="center", fontsize=7)
            text.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6})
    titled(figure, title)
    figure.colorbar(shown, ax=axes, label=values.unit)
    return figure


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def legible(text: str, most: int) -> str:
    """A token's text as a figure can show it: trimmed, cut to `most` characters, what the font lacks as its number."""
    text = text.strip() or repr(text)
    known = _glyphs()
    shown = "".join(c if ord(c) in known and c.isprintable() else f"u{ord(c):x}" for c in text)
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    return shown.replace("$", r"\$")
