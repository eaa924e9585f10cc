"""Turn images into the rows of patches that the vision encoder reads: size, resize, normalise, cut.

The arithmetic is that of transformers' default backend, byte for byte: sizes in float64 with half-to-even rounding,
pixels by bicubic interpolation with antialiasing in whole levels. Files are opened in `cutaway.inputs.image.open`;
nothing here knows prompts, token ids or batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from cutaway.errors import InputError
from cutaway.inputs.image.open import file_content, open_image, read_image
from cutaway.inputs.options import array_layout
from cutaway.inputs.settings import ImageSettings

MAX_ASPECT = 200
"""Longest side over shortest side that the models accept; exactly this ratio passes."""


@dataclass(frozen=True, eq=False)
class Patches:
    """An image as the vision encoder reads it.

    - `rows`: [patches 3*time*patch*patch] float32, normalised, in merge-block order: the patches of a merged token are
      consecutive, merged tokens in raster order.
    - `grid`: patches in time, height and width, a row of `image_grid_thw`.
    - `original_size`, `resized_size`: (height, width) in pixels, upright: after EXIF rotation.
    """

    rows: Tensor
    grid: tuple[int, int, int]
    original_size: tuple[int, int]
    resized_size: tuple[int, int]


def prepare_image(
    source: Any, settings: ImageSettings, *, layout: str | None = None, name: str = "the image"
) -> Patches:
    """Return the patches of `source`, anything that `read_image` opens; errors as there and in `target_size`."""
    return image_patches(read_image(source, layout=layout, name=name), settings, name=name)


def image_patches(
    pixels: Tensor, settings: ImageSettings, *, name: str = "the image", out: Tensor | None = None
) -> Patches:
    """Return the patches of `pixels` [3 height width] uint8; the image fills every time slot of its one temporal grid.

    With `out` the rows are written there.
    """
    original = (pixels.shape[-2], pixels.shape[-1])
    size = target_size(*original, settings, name=name)
    rows = patch_rows([pixels], 1, size, settings, out=out)
    grid = (1, size[0] // settings.patch_size, size[1] // settings.patch_size)
    return Patches(rows, grid, original, size)


def target_size(height: int, width: int, settings: ImageSettings, *, name: str = "the image") -> tuple[int, int]:
    """Return (height, width) in pixels after resizing. Raises `InputError` for an image that no size fits."""
    if not settings.do_resize:
        check_divisible((height, width), settings, name)
        return height, width
    return fit_image(height, width, settings.factor, settings.min_pixels, settings.max_pixels, name)


def token_count(height: int, width: int, settings: ImageSettings, *, name: str = "the image") -> int:
    """Return how many image tokens an image of `height` x `width` pixels becomes, from its size alone."""
    rows, columns = target_size(height, width, settings, name=name)
    return (rows // settings.factor) * (columns // settings.factor)


class ImageBatch:
    """The images of a call, in order: token counts from their headers first, then their patches."""

    def __init__(self, sources: list[Any], settings: ImageSettings, options: dict[str, Any]) -> None:
        """`settings` have the call's options applied; `options` are those for images."""
        self._settings, self._layout = settings, array_layout(options)
        self._sources = [self._open(source, f"images[{index}]") for index, source in enumerate(sources)]

    def _open(self, source: Any, name: str) -> Any:
        # arrays hold their pixels already, so reading them costs no decoding
        is_array = isinstance(source, np.ndarray | Tensor)
        return read_image(source, layout=self._layout, name=name) if is_array else file_content(source, name)

    def counts(self) -> list[int]:
        """Return the tokens of every image, from its size: that a rotation tag swaps the sides changes no count."""
        names = [f"images[{index}]" for index in range(len(self._sources))]
        sizes = [_size(source, name) for source, name in zip(self._sources, names, strict=True)]
        return [token_count(*size, self._settings, name=name) for size, name in zip(sizes, names, strict=True)]

    def patches(self) -> list[Patches]:
        """Return the patches of every image; their rows are slices of `rows`, which holds all of them in order."""
        names = [f"images[{index}]" for index in range(len(self._sources))]
        pixels = [
            source if isinstance(source, Tensor) else read_image(source, name=name)
            for source, name in zip(self._sources, names, strict=True)
        ]
        sizes = [
            target_size(image.shape[-2], image.shape[-1], self._settings, name=name)
            for image, name in zip(pixels, names, strict=True)
        ]
        shapes = [row_shape(1, size, self._settings) for size in sizes]
        counts = [count for count, _ in shapes]
        self.rows = torch.empty(sum(counts), shapes[0][1], dtype=torch.float32)
        return [
            image_patches(image, self._settings, name=name, out=part)
            for image, name, part in zip(pixels, names, self.rows.split(counts), strict=True)
        ]


def _size(source: Any, name: str) -> tuple[int, int]:
    """(height, width) in pixels as stored."""
    if isinstance(source, Tensor):
        return source.shape[-2], source.shape[-1]
    if isinstance(source, Image.Image):
        return source.height, source.width
    with open_image(source, name) as image:
        return image.height, image.width


def resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize `pixels` [3 height width] uint8 to (height, width): bicubic with antialiasing, in whole levels."""
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    return interpolate(pixels[None], size=size, mode="bicubic", antialias=True, align_corners=False)[0]


def check_divisible(size: tuple[int, int], settings: ImageSettings, name: str) -> None:
    """Raise `InputError` unless both sides, in pixels, are multiples of `settings.factor`."""
    if size[0] % settings.factor or size[1] % settings.factor or not min(size):
        raise InputError(
            f"With do_resize=False the sides of {name} must be multiples of {settings.factor} pixels; "
            f"got {size[0]} x {size[1]}. Resize it, or leave do_resize on."
        )


def row_shape(count: int, size: tuple[int, int], settings: ImageSettings) -> tuple[int, int]:
    """Return the shape of `patch_rows`' result: patches, and numbers in each."""
    p, time = settings.patch_size, settings.temporal_patch_size
    return -(-count // time) * (size[0] // p) * (size[1] // p), 3 * time * p * p


def patch_rows(
    frames: Iterable[Tensor],
    count: int,
    size: tuple[int, int],
    settings: ImageSettings,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Cut `count` frames into rows [patches 3*time*patch*patch] float32 in merge-block order.

    `frames` are uint8 [3 height width] of any size and are resized to `size` (height, width) one at a time, so that
    no more than the result and one frame are held. Where `count` is no multiple of `temporal_patch_size`, the last
    frame is repeated.

    A row holds one patch: channel, then time, then its rows and columns. Four consecutive rows (`merge_size` squared)
    are a merged token, and those follow in raster order, frame by frame. With `out`, a contiguous tensor of that shape,
    they are written there.
    """
    p, merge, time = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    down, across, grids = size[0] // settings.factor, size[1] // settings.factor, -(-count // time)
    if out is None:
        out = torch.empty(row_shape(count, size, settings), dtype=torch.float32)
    rows = out.view(grids, down, across, merge, merge, 3, time, p, p)
    done = 0
    for frame in frames:
        blocks = resize(frame, size).reshape(3, down, merge, p, across, merge, p).permute(1, 4, 2, 5, 0, 3, 6)
        slot = rows[done // time, ..., done % time, :, :]
        slot.copy_(blocks)
        _normalise(slot, settings)
        done += 1
    if done != count:
        raise InputError(
            f"The video must have the {count} frames that it had when it was opened; got {done}. Open it again."
        )
    for index in range(count, grids * time):
        rows[-1, ..., index % time, :, :].copy_(rows[-1, ..., (count - 1) % time, :, :])
    return out


def _normalise(values: Tensor, settings: ImageSettings) -> None:
    """In place on [… 3 patch patch] values of 0..255; both constants are scaled once, as the reference does."""
    scale = 1.0 / settings.rescale_factor if settings.do_rescale else 1.0
    if settings.do_normalize:
        mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] * scale for v in (settings.mean, settings.std))
        values.sub_(mean).div_(std)
    elif settings.do_rescale:
        values.mul_(settings.rescale_factor)


def fit_image(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, name: str = "the image"
) -> tuple[int, int]:
    """Return the (height, width) that an image of `height` x `width` pixels is resized to.

    Both are multiples of `factor` (patch side times merge side). Their product lies in `min_pixels`..`max_pixels`,
    except for thin images, whose short side is not shrunk below `factor`.

    Raises `InputError` for a side of zero and for an aspect ratio above `MAX_ASPECT`.
    """
    _check_sides(height, width, name)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        return _shrink(height, width, factor, math.sqrt((height * width) / max_pixels))
    if rows * columns < min_pixels:
        return _grow(height, width, factor, math.sqrt(min_pixels / (height * width)))
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
    """Return the (height, width) of a video's frames where the budget counts the pixels of all `frames` (3-VL, 3.5).

    The count is rounded half to even to a multiple of `temporal` for the test against the budget, but enters the scale
    as it is. Frames smaller than `factor` are scaled up to it before the aspect ratio is judged.

    Raises `InputError` as `fit_image` does, and for fewer than `temporal` frames.
    """
    if frames < temporal:
        raise InputError(
            f"{name} must have at least {temporal} frames for this size rule; got {frames}. Repeat the frame."
        )
    if height > 0 and width > 0 and (height < factor or width < factor):
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_sides(height, width, name)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    total = round(frames / temporal) * temporal * rows * columns
    if total > max_pixels:
        return _shrink(height, width, factor, math.sqrt((frames * height * width) / max_pixels))
    if total < min_pixels:
        return _grow(height, width, factor, math.sqrt(min_pixels / (frames * height * width)))
    return rows, columns


def _check_sides(height: int, width: int, name: str) -> None:
    if height < 1 or width < 1:
        raise InputError(f"{name} must be at least 1 x 1 pixels; got {height} x {width}.")
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT:
        raise InputError(
            f"{name} may be at most {MAX_ASPECT} times as long as it is wide; got {height} x {width} pixels "
            f"(ratio {ratio:.1f}). Crop it or pad it."
        )


def _shrink(height: int, width: int, factor: int, scale: float) -> tuple[int, int]:
    # The lower bound can push a thin image over its budget: the published rule, so the budget gives way.
    return (
        max(factor, math.floor(height / scale / factor) * factor),
        max(factor, math.floor(width / scale / factor) * factor),
    )


def _grow(height: int, width: int, factor: int, scale: float) -> tuple[int, int]:
    return math.ceil(height * scale / factor) * factor, math.ceil(width * scale / factor) * factor
