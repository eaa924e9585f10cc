"""From upright RGB pixels to the rows a vision encoder reads: resize, normalise, cut into patches.

The numbers are those of transformers' default backend, byte for byte. This module does not know where pixels come from
or how many of them the settings allow.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cutaway.errors import InputError
from cutaway.inputs.settings import ImageSettings


def resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """`pixels` [3 height width] uint8 at another (height, width): bicubic with antialiasing, in whole levels."""
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    return interpolate(pixels[None], size=size, mode="bicubic", antialias=True, align_corners=False)[0]


def check_divisible(size: tuple[int, int], settings: ImageSettings, name: str) -> None:
    """Raises `InputError` unless both sides, in pixels, are multiples of `settings.factor`: no resizing, no choice."""
    if size[0] % settings.factor or size[1] % settings.factor or not min(size):
        raise InputError(
            f"with do_resize=False {name} needs sides that are multiples of {settings.factor} pixels, "
            f"got {size[0]} x {size[1]}; resize it, or leave do_resize on"
        )


def row_shape(count: int, size: tuple[int, int], settings: ImageSettings) -> tuple[int, int]:
    """The shape of `patch_rows`' result: patches, and numbers in each."""
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
    """Rows [patches 3*time*patch*patch] float32, in merge-block order, of `count` frames of `size` (height, width).

    `frames` are uint8 [3 height width] of any size and are resized one at a time, so that no more than the result and
    one frame are held. Where `count` is no multiple of `temporal_patch_size`, the last frame is repeated.

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
            f"{count} frames were announced, {done} came; the video's file or list changed while it was read"
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
