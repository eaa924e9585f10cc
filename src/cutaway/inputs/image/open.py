"""Open anything that is one image as upright RGB pixels on white: files, bytes, Pillow images, arrays, tensors.

The only place where Pillow reads and converts. Where a guess could be wrong (which axis is the colour, what range the
numbers have) an error is raised. Sizes for a model and patches are made in `cutaway.inputs.image.patches`.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from cutaway.errors import InputError, LimitError
from cutaway.inputs.media import IMAGE_FORMATS
from cutaway.storage import check_regular

ACCEPTED = "a path, bytes, an open file, a data: URI or base64 text, a PIL image, a numpy array or a torch tensor"

CHANNELS = (1, 3, 4)
"""Sizes that a colour axis can have: grey, RGB, RGB with transparency."""

_HALF_LEVEL = 0.5 / 255

_LARGEST_FILE = 2**31
"""Bytes that are read from an open file."""

_ORIENTATION = 0x0112
DAMAGED = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error, EOFError, OverflowError,
            ZeroDivisionError, AttributeError, MemoryError, NotImplementedError, RuntimeError)  # fmt: skip
"""What Pillow's readers raise over damaged files; each is turned into `InputError`."""


def read_image(source: Any, *, layout: str | None = None, name: str = "the image") -> Tensor:
    """Return `source` as uint8 [3 height width], turned upright by its EXIF tag, transparent pixels on white.

    - `source`: a path, bytes, an open file, a ``data:`` URI or base64 text, a PIL image of any mode (of an
      animation the current frame; of a path the first), a numpy array or torch tensor, [height width],
      [height width channels] or [channels height width]. Floats are 0..1 and 16-bit numbers 0..65535; both are
      scaled to 0..255.
    - `layout`: ``"hwc"`` or ``"chw"`` for an array whose shape does not tell.
    - `name`: what errors call the image.

    Raises `InputError` for anything else, `LimitError` for a file of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels,
    before it is decoded.
    """
    if isinstance(source, np.ndarray | Tensor):
        array = image_array(to_numpy(source, name), layout, name)
        return _channels_first(on_white(array))
    if layout is not None:
        raise InputError(
            f"`layout` is for arrays and tensors; {name} is {type(source).__name__}; got {layout!r}. Leave it out."
        )
    if isinstance(source, Image.Image):
        return _read_image(source, name)
    with open_image(source, name) as image:
        return _read_image(image, name)


def open_image(source: Any, name: str) -> Image.Image:
    """Return the Pillow image, not yet decoded, of a path, bytes or text; errors as `read_image`."""
    file = image_file(source, name)
    shown = f" ({source})" if isinstance(source, str | Path) and len(str(source)) < 300 else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below says it
            image = Image.open(file, formats=IMAGE_FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_large(name + shown, error) from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name}{shown} must be an image; known are {', '.join(IMAGE_FORMATS)}. Convert it."
        ) from error
    except DAMAGED as error:
        raise InputError(f"{name}{shown} cannot be opened ({error}). Fetch the file again.") from error
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        image.close()
        raise _too_large(name + shown, f"{image.height} x {image.width} pixels, at most {limit:,} in all")
    return image


def image_file(source: Any, name: str) -> Path | io.BytesIO:
    """Return the path of a regular file, or the bytes, that `source` stands for: a path, bytes, an open file, text.

    Text is a path, a ``file:`` or ``data:`` URI, or base64. Raises `InputError` for web addresses and for pipes,
    devices, folders and the like, which are not opened.
    """
    source = file_content(source, name)
    if isinstance(source, Path):
        return _regular(source, name)
    if isinstance(source, bytes | bytearray | memoryview):
        if not source:
            raise InputError(f"{name} must have content; got 0 bytes. Give the content of a file.")
        return io.BytesIO(source)
    if not isinstance(source, str):
        raise InputError(f"{name} must be {ACCEPTED}; got {type(source).__name__}.")
    if re.match(r"(?!file:)[a-z][a-z0-9+.-]*://", source, re.IGNORECASE):
        raise InputError(
            f"Nothing is fetched from the network; {name} is a web address, {source[:200]}. Download it, then give the "
            "path or the bytes."
        )
    if source.startswith("data:"):
        return io.BytesIO(_decode(source.partition(",")[2], name, source))
    if source.startswith("file://"):
        return _regular(Path(source[len("file://") :]), name)
    if not source or "\0" in source:
        raise InputError(f"{name} must be {ACCEPTED}; got the text {source[:40]!r}.")
    try:
        known = Path(source).exists()
    except OSError:  # longer than a file name can be
        known = False
    # Base64 text of an image is never as short as 64 letters; a mistyped path nearly always is, or has a dot.
    if not known and len(source) >= 64 and "." not in source:
        return io.BytesIO(_decode(source, name, source))
    return _regular(Path(source), name)


def _regular(path: Path, name: str) -> Path:
    try:
        check_regular(path, InputError)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error.__cause__
    return path


def file_content(source: Any, name: str) -> Any:
    """Return the bytes of an open file, read from its start where it has one; return anything else as it is."""
    if not hasattr(source, "read") or isinstance(source, type | Image.Image):
        return source
    try:
        if _is_device(source):
            raise InputError(f"Devices are not read; {name} is one that is open. Read it yourself and give the bytes.")
        if source.seekable():
            source.seek(0)
        content = source.read(_LARGEST_FILE + 1)
    except InputError:
        raise
    except (OSError, ValueError, AttributeError, TypeError, MemoryError) as error:
        raise InputError(
            f"{name} is an open file that cannot be read ({error}). Give its path or its bytes."
        ) from error
    if not isinstance(content, bytes):
        raise InputError(f"{name} must be a file opened with mode 'rb'; reading gave {type(content).__name__}.")
    if len(content) > _LARGEST_FILE:
        raise LimitError(f"An open file is read up to {_LARGEST_FILE:,} bytes; {name} has more. Give its path.")
    return content


def _is_device(file: Any) -> bool:
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, AttributeError, TypeError, ValueError):  # a buffer has no number
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _decode(text: str, name: str, source: str) -> bytes:
    if source.startswith("data:") and ";base64" not in source.partition(",")[0]:
        raise InputError(f"A data: URI must be base64; {name} is {source[:60]!r}. Write data:image/png;base64,…")
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"{name} must be the path of a file or base64 text; got {source[:60]!r}… ({error}). Give {ACCEPTED}."
        ) from error
    if not content:
        raise InputError(f"{name} must have content; the text {source[:60]!r} holds none. Give the content of a file.")
    return content


def _read_image(image: Image.Image, name: str) -> Tensor:
    if 0 in image.size:
        raise InputError(f"{name} must be at least 1 x 1 pixels; got {image.height} x {image.width}.")
    with decoding(f"{name} ({image.format or image.mode}, {image.height} x {image.width})"):
        image.load()
        return _channels_first(_rgb(_upright(image), name))


@contextmanager
def decoding(shown: str) -> Iterator[None]:
    """Turn what Pillow raises while it reads a damaged file into `InputError`, and its own limit into `LimitError`."""
    try:
        yield
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(shown, error) from error
    except DAMAGED as error:
        closed = isinstance(error, ValueError) and "closed" in str(error)
        why = "The image was closed: open it again." if closed else "The file is damaged or cut short: fetch it again."
        raise InputError(f"{shown} cannot be decoded ({error}). {why}") from error


def _too_large(name: str, why: object) -> LimitError:
    return LimitError(
        f"{name} unpacks to more pixels than are read ({why}). Shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS."
    )


def _upright(image: Image.Image) -> Image.Image:
    """The image as its EXIF or XMP orientation wants it seen; the same object where there is none."""
    try:
        turned = image.getexif().get(_ORIENTATION, 1)
    except DAMAGED:  # a broken tag says nothing about the pixels
        return image
    return ImageOps.exif_transpose(image) if turned in range(2, 9) else image


def _rgb(image: Image.Image, name: str) -> np.ndarray:
    """uint8 [height width 3] of an image of any mode."""
    mode, clear = image.mode, image.info.get("transparency")
    if mode.startswith("I") or mode == "F":
        return _deep(image, clear, name)
    if mode == "LAB":
        from PIL import ImageCms

        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        turned = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB")
        return np.asarray(turned)
    if mode in ("La", "RGBa"):  # premultiplied
        image = image.convert("LA" if mode == "La" else "RGBA")
    if clear is not None or image.mode in ("LA", "PA", "RGBA"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _deep(image: Image.Image, clear: Any, name: str) -> np.ndarray:
    """uint8 [height width 3] of 16-bit, 32-bit and float greys, scaled from their range; the `clear` level is white.

    The wide modes have no range of their own: 0..1 of a float and 0..255 of either are taken as they are meant there.
    """
    array = np.asarray(image)
    if image.mode.startswith("I;16"):
        array = array.astype(np.uint16)  # in this machine's byte order
    elif image.mode == "I" and 255 < array.max() <= 65535 and array.min() >= 0:
        array = array.astype(np.uint16)  # Pillow widens some 16-bit files
    elif image.mode == "F" and 1 < array.max() <= 255 and array.min() >= 0:
        array = np.rint(array).astype(np.uint8)  # what conversion from 8 bits gives
    levels = to_bytes(array, name)
    if isinstance(clear, int):
        levels = np.where(array == clear, np.uint8(255), levels)
    return np.repeat(levels[..., None], 3, axis=-1)


def on_white(array: np.ndarray) -> np.ndarray:
    """uint8 [height width 3] of [height width 1 | 3 | 4]."""
    if array.shape[-1] == 4:
        image = Image.fromarray(np.ascontiguousarray(array), "RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(white, image).convert("RGB"))
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array


def _channels_first(array: np.ndarray) -> Tensor:
    """A tensor [3 height width] of uint8 [height width 3]; shares memory where the array is writable."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array).permute(2, 0, 1)


def to_numpy(source: Any, name: str) -> np.ndarray:
    """Return a numpy array with the numbers of `source`, an array or a tensor on any device. Raises `InputError`."""
    if isinstance(source, Tensor):
        try:
            plain = source.detach().float() if source.is_floating_point() else source.detach()
            source = plain.cpu().numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"{name} must be a dense tensor of numbers; got {source.dtype} on {source.device}. Convert it."
            ) from error
    if source.dtype.kind not in "buif":
        raise InputError(f"{name} must be an array of numbers; got dtype {source.dtype}. Use uint8, or floats in 0..1.")
    return source


def image_array(array: np.ndarray, layout: str | None, name: str) -> np.ndarray:
    """Return `array` as uint8 [height width channels]; `layout` is ``"hwc"``, ``"chw"``, or None.

    Raises `InputError` for another number of axes, an ambiguous layout, sides of zero and numbers out of range.
    """
    if layout not in (None, "hwc", "chw"):
        raise InputError(f"`layout` must be 'hwc' or 'chw' for an image; got {layout!r}.")
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3:
        array = np.moveaxis(array, 0, -1) if (layout or _layout(array.shape, "hwc", "chw", name)) == "chw" else array
    else:
        raise InputError(
            f"{name} must have axes [height width], [height width channels] or [channels height width]; "
            f"got shape {array.shape}. Give several images as a list, frames of a video as a video."
        )
    _check_shape(array.shape, name)
    return to_bytes(array, name)


def video_array(array: np.ndarray, layout: str | None, name: str) -> np.ndarray:
    """Return `array` as [frames height width channels], its numbers untouched; `layout` is ``"thwc"`` or ``"tchw"``."""
    if layout not in (None, "thwc", "tchw"):
        raise InputError(f"`layout` must be 'thwc' or 'tchw' for a video; got {layout!r}.")
    if array.ndim != 4:
        raise InputError(
            f"{name} must have axes [frames height width channels] or [frames channels height width]; "
            f"got shape {array.shape}. Give a single image as a list of one."
        )
    if (layout or _layout(array.shape[1:], "thwc", "tchw", name)) == "tchw":
        array = np.moveaxis(array, 1, -1)
    _check_shape(array.shape[1:], name)
    if len(array) == 0:
        raise InputError(f"{name} must have a frame; got shape {array.shape}. Give at least one.")
    return array


def to_bytes(array: np.ndarray, name: str) -> np.ndarray:
    """Return `array` as uint8: 16-bit and float numbers scaled from their range, bool as black and white.

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
                f"{name} as floats must lie in 0..1; got {low:.4g} to {high:.4g}. "
                "Divide by the range, or convert to uint8 if these are 0..255."
            )
        return np.rint(np.clip(array.astype(np.float32), 0, 1) * np.float32(255)).astype(np.uint8)
    if low < 0 or high > 255:
        raise InputError(
            f"{name} as {array.dtype} must lie in 0..255; got {low} to {high}. Convert it to uint8, or to uint16 for "
            "16-bit images, which are scaled."
        )
    return array.astype(np.uint8)


def _layout(shape: tuple[int, ...], last: str, first: str, name: str) -> str:
    """Which of two layouts [height width channels], [channels height width] a shape of three has."""
    at_end, at_start = shape[-1] in CHANNELS, shape[0] in CHANNELS
    if at_end and not at_start:
        return last
    if at_start and not at_end:
        return first
    reason = "as both ends could be the colours" if at_end else "as neither end can be the colours (1, 3 or 4)"
    raise InputError(
        f"{name} must be [height width channels] or [channels height width]; shape {shape} does not tell which, "
        f"{reason}. Say layout={last!r} or layout={first!r}."
    )


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    """For [height width channels]."""
    if shape[-1] not in CHANNELS:
        raise InputError(
            f"{name} must have 1, 3 or 4 channels; got {shape[-1]} (axes height, width, channels: {shape})."
        )
    if 0 in shape:
        raise InputError(f"{name} must be at least 1 x 1 pixels; got {shape[0]} x {shape[1]}.")
