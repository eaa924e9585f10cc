"""Anything that is one image, opened as upright RGB on white: the only place where Pillow reads and converts.

It does not know sizes, patches or models.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from cutaway.errors import InputError, LimitError
from cutaway.inputs.image.arrays import image_array, to_bytes, to_numpy

ACCEPTED = "a path, bytes, an open file, a data: URI or base64 text, a PIL image, a numpy array or a torch tensor"

_ORIENTATION = 0x0112
DAMAGED = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error, EOFError, OverflowError,
            ZeroDivisionError, AttributeError, MemoryError, NotImplementedError, RuntimeError)  # fmt: skip
"""What Pillow's readers raise over damaged files; each is turned into `InputError`."""


def read_image(source: Any, *, layout: str | None = None, name: str = "the image") -> Tensor:
    """`source` as uint8 [3 height width], turned upright by its EXIF tag, transparent pixels on white.

    - `source`: a path, bytes, an open file, a ``data:`` URI or base64 text, a PIL image of any mode (of an
      animation the current frame; of a path the first), a numpy array or torch tensor, [height width],
      [height width channels] or [channels height width]. Floats are 0..1 and 16-bit numbers 0..65535; both are
      scaled to 0..255.
    - `layout`: ``"hwc"`` or ``"chw"`` for an array whose shape does not tell.
    - `name`: what errors call the image.

    Raises `InputError` for anything else, `LimitError` for files that would unpack to more than Pillow allows.
    """
    if isinstance(source, np.ndarray | Tensor):
        array = image_array(to_numpy(source, name), layout, name)
        return _channels_first(on_white(array))
    if layout is not None:
        raise InputError(
            f"layout={layout!r} is for arrays and tensors; {name} is {type(source).__name__}, leave it out"
        )
    if isinstance(source, Image.Image):
        return _read_image(source, name)
    with open_image(source, name) as image:
        return _read_image(image, name)


def open_image(source: Any, name: str) -> Image.Image:
    """The Pillow image, not yet decoded, of a path, bytes or text; errors as `read_image`."""
    file = image_file(source, name)
    shown = f" ({source})" if isinstance(source, str | Path) and len(str(source)) < 300 else ""
    try:
        return Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name + shown, error) from error
    except FileNotFoundError as error:
        raise InputError(f"{name}: there is no file {source}; give {ACCEPTED}") from error
    except IsADirectoryError as error:
        raise InputError(f"{name}: {source} is a folder; give the path of an image in it") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name}{shown} is not an image that Pillow can read; give PNG, JPEG, WebP and the like"
        ) from error
    except DAMAGED as error:
        raise InputError(f"{name}{shown} cannot be opened: {error}") from error


def image_file(source: Any, name: str) -> Path | io.BytesIO:
    """The path or the bytes that `source` (path, bytes, open file, ``data:`` URI, base64 text) stands for."""
    source = file_content(source, name)
    if isinstance(source, Path):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        if not source:
            raise InputError(f"{name} is empty: 0 bytes came; give a file's content")
        return io.BytesIO(source)
    if not isinstance(source, str):
        raise InputError(f"{name} must be {ACCEPTED}, got {type(source).__name__}")
    if source.lower().startswith(("http://", "https://", "ftp://", "s3://", "gs://")):
        raise InputError(
            f"{name} is a web address, and nothing is fetched from the network: {source[:200]}; "
            "download it first, then give the path or the bytes"
        )
    if source.startswith("data:"):
        return io.BytesIO(_decode(source.partition(",")[2], name, source))
    if source.startswith("file://"):
        return Path(source[len("file://") :])
    if not source or "\0" in source:
        raise InputError(f"{name} must be {ACCEPTED}, got the text {source[:40]!r}")
    try:
        known = Path(source).exists()
    except OSError:  # longer than a file name can be
        known = False
    # Base64 text of an image is never as short as 64 letters; a mistyped path nearly always is, or has a dot.
    if not known and len(source) >= 64 and "." not in source:
        return io.BytesIO(_decode(source, name, source))
    return Path(source)


def file_content(source: Any, name: str) -> Any:
    """The bytes of an open file or a buffer, read from its start where it has one; anything else as it is."""
    if not hasattr(source, "read") or isinstance(source, type | Image.Image):
        return source
    try:
        if source.seekable():
            source.seek(0)
        content = source.read()
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{name} is an open file that cannot be read: {error}; give its path or its bytes") from error
    if not isinstance(content, bytes):
        raise InputError(
            f"{name} is a file opened for text, which gave {type(content).__name__}; open it with mode 'rb'"
        )
    return content


def _decode(text: str, name: str, source: str) -> bytes:
    if source.startswith("data:") and ";base64" not in source.partition(",")[0]:
        raise InputError(f"{name}: a data: URI must be base64, got {source[:60]!r}; write data:image/png;base64,…")
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"{name} is neither the path of a file nor base64 text ({error}): {source[:60]!r}…; give {ACCEPTED}"
        ) from error
    if not content:
        raise InputError(f"{name} is empty: the text {source[:60]!r} holds no image")
    return content


def _read_image(image: Image.Image, name: str) -> Tensor:
    if 0 in image.size:
        raise InputError(f"{name} must be at least 1 x 1 pixels, got {image.height} x {image.width}")
    with decoding(f"{name} ({image.format or image.mode}, {image.height} x {image.width})"):
        image.load()
        return _channels_first(_rgb(_upright(image), name))


@contextmanager
def decoding(shown: str) -> Iterator[None]:
    """Turns what Pillow raises while it reads a damaged file into `InputError`, and its own limit into `LimitError`."""
    try:
        yield
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(shown, error) from error
    except DAMAGED as error:
        closed = isinstance(error, ValueError) and "closed" in str(error)
        why = "the image was closed; open it again" if closed else "the file is damaged or cut short"
        raise InputError(f"{shown} cannot be decoded: {error}; {why}") from error


def _too_large(name: str, error: BaseException) -> LimitError:
    return LimitError(
        f"{name} unpacks to more pixels than Pillow allows: {error}; shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS"
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
