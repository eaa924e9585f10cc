"""Rotary position tables: M-RoPE for the text decoder, two-dimensional for the vision encoders, and the rotation.

Tables are float32 whatever the weights' dtype. This module turns positions into angles; how positions are counted is
not its business.

Source: RoPE (Su et al. 2021); M-RoPE (Wang et al. 2024, Qwen2-VL) in its sectioned and its interleaved form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.config import Rope

VISION_THETA = 10000.0


def frequencies(theta: float, width: int, device: torch.device) -> Tensor:
    """[width/2] float32: the angle per position of each rotated pair, ``theta ** (-2i / width)``."""
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float, device=device) / width))


def text_axes(rope: Rope, count: int) -> list[int]:
    """Which position (0 time, 1 height, 2 width) each of the `count` frequencies follows."""
    time, height, width = rope.sections
    if not rope.interleaved:
        return [0] * time + [1] * height + [2] * width
    axes = [0] * count
    for axis, length in ((1, height), (2, width)):
        axes[axis : 3 * length : 3] = [axis] * len(range(axis, min(3 * length, count), 3))
    return axes


def text_tables(position_ids: Tensor, rope: Rope, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [batch 1 seq rotary_dim] for `position_ids` [3 batch seq]; see `rotate`."""
    width = int(head_dim * rope.fraction)
    inverse = frequencies(rope.theta, width, position_ids.device)
    axes = torch.tensor(text_axes(rope, width // 2), device=position_ids.device)
    angles = position_ids[axes].permute(1, 2, 0).float() * inverse  # each frequency reads its own axis' position
    return _tables(angles)


def vision_tables(rows: Tensor, columns: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [patches 1 head_dim]: half of a head's pairs turn by the row, half by the column."""
    inverse = frequencies(VISION_THETA, head_dim // 2, rows.device)
    angles = torch.cat((rows[:, None].float() * inverse, columns[:, None].float() * inverse), -1)
    return _tables(angles)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns the first ``cosines.shape[-1]`` dimensions of `x` in the plane of each pair (i, i + half).

    The first of a pair gets ``cos * first - sin * second``. The minus is in the table, once for all blocks.
    """
    width = cosines.shape[-1]
    turned, kept = (x, None) if x.shape[-1] == width else (x[..., :width], x[..., width:])
    out = turned * cosines + turned.roll(width // 2, -1) * sines
    out = out if out.dtype is x.dtype else out.to(x.dtype)
    return out if kept is None else torch.cat((out, kept), -1)


def _tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Both tables of the angles [… half], for both of each pair, with an axis for the heads."""
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), -1)[:, None], torch.cat((-sines, sines), -1)[:, None]
