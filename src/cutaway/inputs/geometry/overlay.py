"""Values over an image: spread to its pixels, coloured, blended, with grid lines and outlines.

It knows pixels and numbers. It does not know tokens or models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image

_STOPS = np.array([(12, 8, 38), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], float)
"""Colours of evenly spaced values, dark to bright; their lightness rises steadily, so they survive grey print."""

_OUTLINE = (0, 220, 255)


def spread(cells: np.ndarray, size: tuple[int, int], smooth: bool = False) -> np.ndarray:
    """[height width] float32 of values [rows columns] over an image of `size` (height, width)."""
    if smooth:
        grid = torch.from_numpy(np.ascontiguousarray(cells, np.float32))[None, None]
        return torch.nn.functional.interpolate(grid, size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    # a pixel belongs to the cell that holds its centre
    index = [((np.arange(n) + 0.5) * cells.shape[axis] / n).astype(int) for axis, n in enumerate(size)]
    return cells[np.ix_(index[0], index[1])].astype(np.float32)


def colours(values: np.ndarray, limits: tuple[float, float] | None = None) -> np.ndarray:
    """uint8 [… 3] of values; `limits` are those of the first and last colour, default the smallest and largest."""
    low, high = limits if limits is not None else (np.nanmin(values), np.nanmax(values))
    share = np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)
    place = np.nan_to_num(share) * (len(_STOPS) - 1)
    channels = [np.interp(place, np.arange(len(_STOPS)), _STOPS[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def drawn(
    background: Any,
    size: tuple[int, int],
    heat: np.ndarray | None = None,
    *,
    lines: tuple[int, int] | None = None,
    boxes: np.ndarray | None = None,
    opacity: float = 0.6,
    limits: tuple[float, float] | None = None,
) -> Image.Image:
    """`image`, which must have `size` (height, width), with `heat` [height width] over it.

    - `lines`: draw a grid of so many rows and columns; `boxes`: [boxes 4], outline these.
    """
    if not isinstance(opacity, int | float) or not 0 <= opacity <= 1:
        raise InputError(f"`opacity` is from 0 to 1; got {opacity!r}.")
    _check_limits(limits)
    base = read_image(background).permute(1, 2, 0).numpy().astype(np.float64)
    if base.shape[:2] != size:
        raise InputError(
            f"the image to draw on is the one that was prepared, of height and width {size}; got {base.shape[:2]}."
        )
    if heat is not None and not np.isnan(heat).all():
        share = np.where(np.isnan(heat), 0, opacity)[..., None]
        base = base * (1 - share) + colours(heat, limits) * share
    image = Image.fromarray(base.round().astype(np.uint8))
    pen = ImageDraw.Draw(image, "RGBA")
    height, width = size
    for count, length, across in ((lines[0], height, False), (lines[1], width, True)) if lines else ():
        for index in range(1, count):
            at = round(index * length / count)
            ends = [(at, 0), (at, height)] if across else [(0, at), (width, at)]
            pen.line(ends, fill=(255, 255, 255, 110))
    for left, top, right, bottom in () if boxes is None else boxes:
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=_OUTLINE, width=2)
    return image


def _check_limits(limits: Any) -> None:
    try:
        if limits is None or float(limits[0]) <= float(limits[1]):
            return
    except (TypeError, ValueError, IndexError):
        pass
    raise InputError(f"`limits` is (value of the darkest colour, value of the brightest), rising; got {limits!r}.")
