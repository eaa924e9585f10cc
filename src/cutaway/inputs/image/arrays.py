"""Arrays and tensors as upright RGB pixels: which axis is the colour, what range the numbers have.

A guess that could be wrong is an error here. This module does not know files or settings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from cutaway.errors import InputError

CHANNELS = (1, 3, 4)
"""Sizes that a colour axis can have: grey, RGB, RGB with transparency."""

_HALF_LEVEL = 0.5 / 255


def to_numpy(source: Any, name: str) -> np.ndarray:
    """A numpy array with the numbers of `source`, an array or a tensor on any device."""
    if isinstance(source, Tensor):
        try:
            plain = source.detach().float() if source.is_floating_point() else source.detach()
            source = plain.cpu().numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"{name} needs a dense tensor of numbers, got {source.dtype} on {source.device}"
            ) from error
    if source.dtype.kind not in "buif":
        raise InputError(
            f"{name} needs an array of numbers, got one of dtype {source.dtype}; use uint8 or float in 0..1"
        )
    return source


def image_array(array: np.ndarray, layout: str | None, name: str) -> np.ndarray:
    """`array` as uint8 [height width channels]; `layout` is ``"hwc"``, ``"chw"``, or None where the shape tells it.

    Raises `InputError` for another number of axes, an ambiguous layout, sides of zero and numbers out of range.
    """
    if layout not in (None, "hwc", "chw"):
        raise InputError(f"layout must be 'hwc' or 'chw' for an image, got {layout!r}")
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3:
        array = np.moveaxis(array, 0, -1) if (layout or _layout(array.shape, "hwc", "chw", name)) == "chw" else array
    else:
        raise InputError(
            f"{name} must have axes [height width], [height width channels] or [channels height width], "
            f"got shape {array.shape}; give several images as a list, frames of a video as a video"
        )
    _check_shape(array.shape, name)
    return to_bytes(array, name)


def video_array(array: np.ndarray, layout: str | None, name: str) -> np.ndarray:
    """`array` as [frames height width channels], its numbers untouched; `layout` is ``"thwc"`` or ``"tchw"``."""
    if layout not in (None, "thwc", "tchw"):
        raise InputError(f"layout must be 'thwc' or 'tchw' for a video, got {layout!r}")
    if array.ndim != 4:
        raise InputError(
            f"{name} must have axes [frames height width channels] or [frames channels height width], "
            f"got shape {array.shape}; a single image goes in as a list of one"
        )
    if (layout or _layout(array.shape[1:], "thwc", "tchw", name)) == "tchw":
        array = np.moveaxis(array, 1, -1)
    _check_shape(array.shape[1:], name)
    if len(array) == 0:
        raise InputError(f"{name} has no frames (shape {array.shape}); give at least one")
    return array


def to_bytes(array: np.ndarray, name: str) -> np.ndarray:
    """`array` as uint8: 16-bit and float numbers scaled from their range, bool to black and white, others as they are.

    Raises `InputError` for floats outside 0..1 and for other integers outside 0..255, whose range is anyone's guess.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    low, high = array.min(), array.max()
    if array.dtype.kind == "f":
        # Not `low < 0`: a NaN must fail too.
        if not (low >= -_HALF_LEVEL and high <= 1 + _HALF_LEVEL):
            raise InputError(
                f"{name} as floats must lie in 0..1, got {low:.4g} to {high:.4g}; "
                "divide by the range, or convert to uint8 if these are 0..255"
            )
        return np.rint(np.clip(array.astype(np.float32), 0, 1) * np.float32(255)).astype(np.uint8)
    if low < 0 or high > 255:
        raise InputError(
            f"{name} as {array.dtype} must lie in 0..255, got {low} to {high}; convert it to uint8, or to uint16 for "
            "16-bit images, which are scaled"
        )
    return array.astype(np.uint8)


def _layout(shape: tuple[int, ...], last: str, first: str, name: str) -> str:
    """Which of two layouts [height width channels], [channels height width] a shape of three has."""
    at_end, at_start = shape[-1] in CHANNELS, shape[0] in CHANNELS
    if at_end and not at_start:
        return last
    if at_start and not at_end:
        return first
    reason = "both ends could be the colours" if at_end else "neither end can be the colours (1, 3 or 4)"
    raise InputError(
        f"{name} of shape {shape} has no clear layout: {reason}; accepted are [height width channels] and "
        f"[channels height width], say layout={last!r} or layout={first!r}"
    )


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    """For [height width channels]."""
    if shape[-1] not in CHANNELS:
        raise InputError(
            f"{name} must have 1, 3 or 4 channels, got {shape[-1]} (axes height, width, channels: {shape})"
        )
    if 0 in shape:
        raise InputError(f"{name} must be at least 1 x 1 pixels, got {shape[0]} x {shape[1]}")
