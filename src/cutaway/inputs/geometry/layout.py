"""The orders in which patches and tokens are stored, and the plain data that says where each of them lies.

In *raster* order they go by time, row, column. In *merge-block* order the patches of one merged token are consecutive
and merged tokens are in raster order; the processor's patch rows and most values of the vision encoder are so.
Qwen2.5-VL's encoder works in *window* order: windows in raster order, cut at the edges, merged tokens in raster order
inside. This module has numbers and dataclasses only; `cutaway.inputs.geometry.geometry` fills them for a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.validation import integer

Grid = tuple[int, int, int]
Array = TypeVar("Array", np.ndarray, Tensor)


def block_order(grid: Grid, merge: int) -> np.ndarray:
    """Return [patches], the raster index of each patch row in merge-block order. `grid` is in patches."""
    time, height, width = grid
    raster = np.arange(time * height * width).reshape(time, height // merge, merge, width // merge, merge)
    return raster.transpose(0, 1, 3, 2, 4).reshape(-1)


def to_raster(values: Array, grid: Grid, merge: int) -> Array:
    """Lay patch rows [patches …] in merge-block order out as [time height width …]. Raises `InputError`."""
    order = block_order(grid, merge)
    _check_rows(values, len(order), grid)
    return _reordered(values, np.argsort(order)).reshape(*grid, *values.shape[1:])


def to_blocks(values: Array, merge: int) -> Array:
    """Put values in raster order [time height width …] into merge-block order [patches …]. Raises `InputError`."""
    time, height, width = values.shape[:3]
    if height % merge or width % merge:
        raise InputError(
            f"Height and width must be multiples of the merge size {merge}; got {height} x {width}. Give patches."
        )
    flat = values.reshape(time * height * width, *values.shape[3:])
    return _reordered(flat, block_order((time, height, width), merge))


def windows(grid: Grid, side: int) -> np.ndarray:
    """Return [tokens], the window of each merged token, in raster order. `grid` is merged; `side` in tokens."""
    time, height, width = grid
    across, down = -(-width // side), -(-height // side)
    frame, row, col = np.unravel_index(np.arange(time * height * width), grid)
    return (frame * down + row // side) * across + col // side


def window_order(grid: Grid, side: int, group: int = 1) -> np.ndarray:
    """Return the raster index of each merged token in window order; with `group` patches a token, of each patch row."""
    tokens = np.argsort(windows(grid, side), kind="stable")
    return (tokens[:, None] * group + np.arange(group)).reshape(-1)


def _reordered(values: Array, order: np.ndarray) -> Array:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(order).to(values.device)]
    return values[order]


def _check_rows(values: Array, rows: int, grid: Grid) -> None:
    if values.shape[:1] != (rows,):
        raise InputError(
            f"A grid of {grid} has {rows} patch rows; got values of shape {tuple(values.shape)}. Give one a patch."
        )


KINDS = ("padding", "text", "marker", "image", "video")


@dataclass(frozen=True)
class MediaItem:
    """An image or video of a batch.

    - `kind`: ``"image"`` or ``"video"``; `index`: its number among the batch's; `sample`: the sample that it is in.
    - `grid`: (time, height, width) in patches; `size`: (height, width) in pixels of the image or frames as they came.
    - `seconds`: the time of each temporal grid, empty where unknown.
    """

    kind: str
    index: int
    sample: int
    grid: tuple[int, int, int]
    size: tuple[int, int]
    seconds: tuple[float, ...] = ()

    def validate_frame(self, frame: Any) -> int:
        """Return the number of one of its temporal grids as an int. Raises `InputError` for any other."""
        index = integer(frame, "`frame`", InputError)
        if not 0 <= index < self.grid[0]:
            raise InputError(
                f"{self.kind.capitalize()} {self.index} has {self.grid[0]} temporal grids, "
                f"numbered from 0; got frame={frame}. Give one of those."
            )
        return index


@dataclass(frozen=True)
class MediaInfo:
    """What an image or video has besides its grid: (height, width) in pixels, seconds of its temporal grids."""

    size: tuple[int, int]
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class TokenTable:
    """Locations of all sequence positions or patch rows, as arrays of one shape (`box` has a last axis of four).

    - `kind`: one of `KINDS`; `sample`; `item`: number of the image or video among its kind, -1 for none.
    - `frame`, `row`, `col`: -1 outside images and videos. `seconds`, `box`: NaN where there is none.
    - `token`: row of `image_features` or `video_features`, -1 for none.
    - `window`: the attention window inside the item (Qwen2.5-VL), else -1.
    """

    kind: np.ndarray
    sample: np.ndarray
    item: np.ndarray
    frame: np.ndarray
    seconds: np.ndarray
    row: np.ndarray
    col: np.ndarray
    box: np.ndarray
    token: np.ndarray
    window: np.ndarray


@dataclass(frozen=True)
class TokenLocation:
    """The location of one sequence position; fields as in `TokenTable`, None where a field does not apply."""

    sample: int
    position: int
    kind: str
    item: int | None = None
    frame: int | None = None
    seconds: float | None = None
    row: int | None = None
    col: int | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Selection:
    """Selected tokens and their patches.

    - `mask`: [batch seq] bool, for values with these axes.
    - `image_tokens`, `video_tokens`: rows of `image_features` and `video_features` (and of `deepstack_output`).
    - `image_patches`, `video_patches`: patch rows in merge-block order.
    """

    mask: Tensor
    image_tokens: Tensor
    video_tokens: Tensor
    image_patches: Tensor
    video_patches: Tensor

    def __len__(self) -> int:
        """How many sequence positions are selected."""
        return int(self.mask.sum())


def empty_table(shape: tuple[int, ...], samples: int | None = None) -> TokenTable:
    """Return a table of padding; with `samples` its first axis is the sample."""
    kind = np.full(shape, "padding", dtype="<U7")
    sample = np.zeros(shape, np.int64)
    if samples is not None:
        sample += np.arange(samples)[:, None]
    none = {name: np.full(shape, -1, np.int64) for name in ("item", "frame", "row", "col", "token", "window")}
    return TokenTable(
        kind=kind, sample=sample, seconds=np.full(shape, np.nan), box=np.full((*shape, 4), np.nan), **none
    )
