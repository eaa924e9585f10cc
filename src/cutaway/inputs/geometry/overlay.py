"""Draw over images: values as colours, grid lines, outlined and numbered cells.

It takes pixels, boxes and numbers; which token a cell is, `cutaway.inputs.geometry.geometry` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image
from cutaway.storage import replacing

_STOPS = np.array([(12, 8, 38), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], float)
"""Colours of evenly spaced values, dark to bright; their lightness rises steadily, so they survive grey print."""

_OUTLINE = (0, 220, 255)

SMALLEST_SIDE = 480
"""An image with smaller sides is enlarged first, or the numbers would not be legible."""

ROOM_FOR_A_NUMBER = 28
"""Pixels that a cell must be wide and high to be numbered."""

CELL_LINE = (255, 0, 160)
"""Rare in images, and seen on light and dark alike."""


def upsample(cells: np.ndarray, size: tuple[int, int], smooth: bool = False) -> np.ndarray:
    """Spread values [rows columns] over an image of `size`: [height width] float32, bilinear with `smooth`."""
    if smooth:
        grid = torch.from_numpy(np.ascontiguousarray(cells, np.float32))[None, None]
        return torch.nn.functional.interpolate(grid, size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    # a pixel belongs to the cell that holds its centre
    index = [((np.arange(n) + 0.5) * cells.shape[axis] / n).astype(int) for axis, n in enumerate(size)]
    return cells[np.ix_(index[0], index[1])].astype(np.float32)


def colorize(values: np.ndarray, limits: tuple[float, float] | None = None) -> np.ndarray:
    """Return colours uint8 [… 3]; `limits` are the values of the first and last colour, default the extremes."""
    low, high = limits if limits is not None else (np.nanmin(values), np.nanmax(values))
    share = np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)
    position = np.nan_to_num(share) * (len(_STOPS) - 1)
    channels = [np.interp(position, np.arange(len(_STOPS)), _STOPS[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def draw_overlay(
    background: Any,
    size: tuple[int, int],
    heat: np.ndarray | None = None,
    *,
    lines: tuple[int, int] | None = None,
    boxes: np.ndarray | None = None,
    opacity: float = 0.6,
    limits: tuple[float, float] | None = None,
) -> Image.Image:
    """Draw `heat` [height width] over `background`, which must have `size` (height, width). Raises `InputError`.

    - `lines`: draw a grid of so many rows and columns; `boxes`: [boxes 4], outline these.
    """
    if not isinstance(opacity, int | float) or not 0 <= opacity <= 1:
        raise InputError(f"`opacity` must lie in 0 to 1; got {opacity!r}. Give 0.6 for the usual mixture.")
    _check_limits(limits)
    base = read_image(background).permute(1, 2, 0).numpy().astype(np.float64)
    if base.shape[:2] != size:
        raise InputError(
            f"`background` must be the image that was prepared, of height and width {size}; got {base.shape[:2]}. "
            "Give that image."
        )
    if heat is not None and not np.isnan(heat).all():
        share = np.where(np.isnan(heat), 0, opacity)[..., None]
        base = base * (1 - share) + colorize(heat, limits) * share
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
    raise InputError(f"`limits` must be (value of the darkest colour, value of the brightest), rising; got {limits!r}.")


def draw_numbered_cells(pixels: Tensor, boxes: np.ndarray) -> Image.Image:
    """Outline and number each of `boxes` [cells 4] on `pixels` [3 height width] uint8, enlarged if small.

    A cell without room for its number is outlined alone.
    """
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = max(1, -(-SMALLEST_SIDE // max(image.size)))
    large = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(large)
    for number, (left, top, right, bottom) in enumerate((boxes * scale).round().astype(int).tolist()):
        draw.rectangle((left, top, right - 1, bottom - 1), outline=CELL_LINE)
        if min(right - left, bottom - top) >= ROOM_FOR_A_NUMBER:
            corner = (left + 2, top + 1)
            draw.rectangle(draw.textbbox(corner, str(number)), fill="white")
            draw.text(corner, str(number), fill="black")
    return large


def save_image(image: Image.Image, path: str | Path) -> None:
    """Write an image whole or not at all, in the format that the suffix of `path` names. Raises `InputError`."""
    try:
        with replacing(path) as (part,):
            image.save(part)
    except ValueError as error:  # Pillow's, for a suffix that names no format
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be written as an image: {error}. Give a path such as grid.png.") from error
