"""The orders in which patches and tokens of an image or video stand: raster, merge blocks, windows.

*Raster* is time, row, column. In *merge-block* order the patches of one merged token are consecutive and merged tokens
are in raster order; the processor's patch rows and most values of the vision encoder are so. Qwen2.5-VL's encoder
works in *window* order: windows in raster order, cut at the edges, merged tokens in raster order inside. Numbers only;
nothing here knows images or models.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InputError

Grid = tuple[int, int, int]
Array = TypeVar("Array", np.ndarray, Tensor)


def block_order(grid: Grid, merge: int) -> np.ndarray:
    """[patches]: the raster index of each patch row in merge-block order. `grid` is in patches."""
    time, height, width = grid
    raster = np.arange(time * height * width).reshape(time, height // merge, merge, width // merge, merge)
    return raster.transpose(0, 1, 3, 2, 4).reshape(-1)


def to_raster(values: Array, grid: Grid, merge: int) -> Array:
    """[time height width …] of patch rows [patches …] in merge-block order."""
    order = block_order(grid, merge)
    _check_rows(values, len(order), grid)
    return _taken(values, np.argsort(order)).reshape(*grid, *values.shape[1:])


def to_blocks(values: Array, merge: int) -> Array:
    """[patches …] in merge-block order of values in raster order [time height width …]."""
    time, height, width = values.shape[:3]
    if height % merge or width % merge:
        raise InputError(f"height and width must be multiples of the merge size {merge}; got {height} x {width}.")
    flat = values.reshape(time * height * width, *values.shape[3:])
    return _taken(flat, block_order((time, height, width), merge))


def windows(grid: Grid, side: int) -> np.ndarray:
    """[tokens]: the window of each merged token, counted in raster order. `grid` is merged; `side` in tokens."""
    time, height, width = grid
    across, down = -(-width // side), -(-height // side)
    frame, row, col = np.unravel_index(np.arange(time * height * width), grid)
    return (frame * down + row // side) * across + col // side


def window_order(grid: Grid, side: int, group: int = 1) -> np.ndarray:
    """The raster index of each merged token in window order; with `group` patches a token, of each patch row."""
    tokens = np.argsort(windows(grid, side), kind="stable")
    return (tokens[:, None] * group + np.arange(group)).reshape(-1)


def _taken(values: Array, order: np.ndarray) -> Array:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(order).to(values.device)]
    return values[order]


def _check_rows(values: Array, rows: int, grid: Grid) -> None:
    if values.shape[:1] != (rows,):
        raise InputError(f"a grid of {grid} has {rows} patch rows; the values have the shape {tuple(values.shape)}.")
