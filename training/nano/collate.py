"""From a batch of numpy arrays to the model's `Inputs`: what the real processor gives for the same chats, but fast.

It uses that all samples of a batch have one layout: the patches are cut in one reshape, and positions are counted once
for all samples whose tokens are of the same types.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.inputs.batch.mrope import mrope_positions
from training.nano.batches import Batch, Layout, Writer

PATCH, MERGE, TIME = 16, 2, 2


def patches(frames: NDArray[np.uint8]) -> Tensor:
    """[items frames height width 3] uint8 to [items patches channels*time*height*width] float32 in merge-block order.

    One frame is an image and is shown twice; a video has an even number of frames.
    """
    items, count, height, width, _ = frames.shape
    pixels = (torch.from_numpy(frames).float() - 127.5) / 127.5
    if count == 1:
        pixels = pixels.expand(-1, TIME, -1, -1, -1)
    rows, columns = height // (PATCH * MERGE), width // (PATCH * MERGE)
    split = pixels.reshape(items, -1, TIME, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    return split.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8).reshape(items, -1, 3 * TIME * PATCH * PATCH)


@lru_cache(maxsize=512)
def _positions(types: tuple[int, ...], grids: tuple[tuple[int, int, int], ...], video: bool) -> Tensor:
    row = torch.tensor([types])
    table = torch.tensor(grids)
    ids, _ = mrope_positions(
        row,
        torch.ones_like(row),
        None if video else table,
        table if video else None,
        merge=MERGE,
        timestamps=True,
    )
    return ids


def grids(layout: Layout) -> tuple[tuple[int, int, int], ...]:
    """Time, height and width in patches of each image of one sample, or of its video."""
    return tuple((max(1, layout.grids), height // PATCH, width // PATCH) for height, width in layout.sizes)


def inputs(batch: Batch, writer: Writer) -> Inputs:
    """The model's `Inputs`. Samples are padded on the right, unmasked: nothing before the padding sees it."""
    ids = torch.from_numpy(batch.ids)
    types = (ids == writer.image) * IMAGE + (ids == writer.video) * VIDEO
    video = batch.layout.grids > 0
    sizes = grids(batch.layout)
    # time stamps of unlike lengths shift the tokens, so that samples of one layout can differ
    kinds, index = torch.unique(types, dim=0, return_inverse=True)
    position_ids = torch.cat([_positions(tuple(kind.tolist()), sizes, video) for kind in kinds], 1)[:, index]
    rows = torch.cat([patches(p) for p in batch.pixels], 1).flatten(0, 1)
    table = torch.tensor(sizes).repeat(len(ids), 1)
    return Inputs(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=types,
        position_ids=position_ids,
        next_position=position_ids.amax((0, 2)) + 1,
        pixel_values=None if video else rows,
        image_grid_thw=None if video else table,
        pixel_values_videos=rows if video else None,
        video_grid_thw=table if video else None,
    )
