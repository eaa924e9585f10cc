"""The size rules: which height and width an image or a video is resized to, from numbers alone.

All sides are pixels, all budgets are pixel areas. The arithmetic is in float64 and in the order of the published
preprocessing, half-to-even rounding included, so that every size agrees to the pixel. Nothing here touches a pixel or
knows a settings file.
"""

from __future__ import annotations

import math

from cutaway.errors import InputError

MAX_ASPECT = 200
"""Longest side over shortest side that the models accept; exactly this ratio passes."""


def fit_image(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, name: str = "the image"
) -> tuple[int, int]:
    """The (height, width) that an image of `height` x `width` pixels is resized to.

    Both are multiples of `factor` (patch side times merge side). Their product lies in `min_pixels`..`max_pixels`,
    except for thin images, whose short side is not shrunk below `factor`.

    Raises `InputError` for a side of zero and for an aspect ratio above `MAX_ASPECT`.
    """
    _check(height, width, name)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        return _shrunk(height, width, factor, math.sqrt((height * width) / max_pixels))
    if rows * columns < min_pixels:
        return _grown(height, width, factor, math.sqrt(min_pixels / (height * width)))
    return rows, columns


def fit_video(
    frames: int,
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    temporal: int = 2,
    name: str = "the video",
) -> tuple[int, int]:
    """The (height, width) of a video's frames where the budget counts the pixels of all `frames` (3-VL, 3.5).

    The count is rounded half to even to a multiple of `temporal` for the test against the budget, but enters the scale
    as it is. Frames smaller than `factor` are scaled up to it before the aspect ratio is judged.

    Raises `InputError` as `fit_image` does, and for fewer than `temporal` frames.
    """
    if frames < temporal:
        raise InputError(f"{name} needs at least {temporal} frames for this size rule, got {frames}; repeat the frame")
    if height > 0 and width > 0 and (height < factor or width < factor):
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check(height, width, name)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    total = round(frames / temporal) * temporal * rows * columns
    if total > max_pixels:
        return _shrunk(height, width, factor, math.sqrt((frames * height * width) / max_pixels))
    if total < min_pixels:
        return _grown(height, width, factor, math.sqrt(min_pixels / (frames * height * width)))
    return rows, columns


def _check(height: int, width: int, name: str) -> None:
    if height < 1 or width < 1:
        raise InputError(f"{name} must be at least 1 x 1 pixels, got {height} x {width}")
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT:
        raise InputError(
            f"{name} may be at most {MAX_ASPECT} times as long as it is wide, got {height} x {width} pixels "
            f"(ratio {ratio:.1f}); crop it or pad it"
        )


def _shrunk(height: int, width: int, factor: int, scale: float) -> tuple[int, int]:
    # The lower bound can push a thin image over its budget: the published rule, so the budget gives way.
    return (
        max(factor, math.floor(height / scale / factor) * factor),
        max(factor, math.floor(width / scale / factor) * factor),
    )


def _grown(height: int, width: int, factor: int, scale: float) -> tuple[int, int]:
    return math.ceil(height * scale / factor) * factor, math.ceil(width * scale / factor) * factor
