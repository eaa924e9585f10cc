"""An image's cells outlined and numbered, and the drawn image written to a file.

It knows boxes in pixels. It does not know tokens or models.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from cutaway.errors import InputError

SMALLEST_SIDE = 480
"""An image with smaller sides is enlarged first, or the numbers would not be legible."""

ROOM_FOR_A_NUMBER = 28
"""Pixels that a cell must be wide and high to be numbered."""


LINE = (255, 0, 160)
"""Rare in images, and seen on light and dark alike."""


def numbered(pixels: Tensor, boxes: np.ndarray) -> Image.Image:
    """`pixels` [3 height width] uint8, enlarged if small, each of `boxes` [cells 4] outlined and numbered in order.

    A cell without room for its number is outlined alone.
    """
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = max(1, -(-SMALLEST_SIDE // max(image.size)))
    large = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(large)
    for number, (left, top, right, bottom) in enumerate((boxes * scale).round().astype(int).tolist()):
        draw.rectangle((left, top, right - 1, bottom - 1), outline=LINE)
        if min(right - left, bottom - top) >= ROOM_FOR_A_NUMBER:
            corner = (left + 2, top + 1)
            draw.rectangle(draw.textbbox(corner, str(number)), fill="white")
            draw.text(corner, str(number), fill="black")
    return large


def save(image: Image.Image, path: Path) -> None:
    """Writes the image in the format that the path's suffix names; `InputError` when it cannot be written."""
    try:
        image.save(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written as an image: {error}. Give a path such as grid.png.") from error
