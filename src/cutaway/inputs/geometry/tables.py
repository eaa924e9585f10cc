"""What the geometry of a batch is told in: items, tables of places, one place, a selection. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.validation import integer

KINDS = ("padding", "text", "marker", "image", "video")


@dataclass(frozen=True)
class Item:
    """An image or video of a batch.

    - `kind`: ``"image"`` or ``"video"``; `index`: its number among the batch's; `sample`: the row that it is in.
    - `grid`: (time, height, width) in patches; `size`: (height, width) in pixels of the image or frames as they came.
    - `seconds`: the time of each temporal grid, empty where unknown.
    """

    kind: str
    index: int
    sample: int
    grid: tuple[int, int, int]
    size: tuple[int, int]
    seconds: tuple[float, ...] = ()

    def checked_frame(self, frame: Any) -> int:
        """The number of one of its temporal grids. Raises `InputError` for what is none."""
        index = integer(frame, "`frame`", InputError)
        if not 0 <= index < self.grid[0]:
            raise InputError(
                f"{self.kind} {self.index} has {self.grid[0]} temporal grids, from 0; there is no frame {frame}."
            )
        return index


@dataclass(frozen=True)
class Source:
    """What is known of an image or video apart from its grid: (height, width) in pixels, seconds of its grids."""

    size: tuple[int, int]
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Table:
    """Places, one per sequence position or patch row, as arrays of one shape (`box` has a last axis of four).

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
class Place:
    """One sequence position, in words; fields as in `Table`, None where there is nothing to say."""

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
    """Chosen tokens and their patches.

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
        """How many sequence positions are chosen."""
        return int(self.mask.sum())


def empty_table(shape: tuple[int, ...], samples: int | None = None) -> Table:
    """A table that says nothing yet; with `samples` its first axis is the sample."""
    kind = np.full(shape, "padding", dtype="<U7")
    sample = np.zeros(shape, np.int64)
    if samples is not None:
        sample += np.arange(samples)[:, None]
    none = {name: np.full(shape, -1, np.int64) for name in ("item", "frame", "row", "col", "token", "window")}
    return Table(kind=kind, sample=sample, seconds=np.full(shape, np.nan), box=np.full((*shape, 4), np.nan), **none)
