"""A picture with its token grid drawn over it, each token's cell numbered where there is room.

It works in the picture's own pixels, whatever size the picture is resized to for the model.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

from cutaway.errors import InputError

SMALLEST_SIDE = 480
"""A picture with smaller sides is enlarged first, or the numbers would not be legible."""

ROOM_FOR_A_NUMBER = 28
"""Pixels that a cell must be wide to be numbered."""

LINE, LABEL = (255, 0, 160), (20, 20, 20)


def with_token_grid(pixels: Tensor, rows: int, columns: int) -> Image.Image:
    """`pixels` [3 height width] uint8 under a grid of `rows` x `columns` tokens, numbered in raster order."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = max(1, -(-SMALLEST_SIDE // max(picture.size)))
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    wide, high = picture.width / columns, picture.height / rows
    for row in range(rows):
        for column in range(columns):
            left, top = round(column * wide), round(row * high)
            right, bottom = round((column + 1) * wide) - 1, round((row + 1) * high) - 1
            draw.rectangle((left, top, right, bottom), outline=LINE)
            if min(wide, high) >= ROOM_FOR_A_NUMBER:
                text = str(row * columns + column)
                draw.rectangle(draw.textbbox((left + 2, top + 1), text), fill="white")
                draw.text((left + 2, top + 1), text, fill=LABEL)
    return picture


def save(picture: Image.Image, path: Path) -> None:
    """Writes the picture in the format that the path's suffix names; `InputError` when it cannot be written."""
    try:
        picture.save(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written as a picture: {error}. Give a path such as grid.png.") from error
