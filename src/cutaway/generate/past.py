"""`Past`: what a cache has read, so that a later prompt that begins alike need not be read again.

A prompt goes on from a past as far as ids, kinds and positions agree and every image inside is the same, pixel for
pixel. It knows `Inputs` and `Cache`; not models, templates or text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.errors import InputError
from cutaway.model.cache import Cache


@dataclass(frozen=True, eq=False)
class Visual:
    """An image or video of a prompt: kind, first and last place in the row, grid [3], patches [n width]."""

    kind: int
    first: int
    last: int
    grid: Tensor
    patches: Tensor

    def same(self, other: Visual | None) -> bool:
        """Whether both are the same image."""
        return (
            other is not None
            and (self.kind, self.first, self.last) == (other.kind, other.first, other.last)
            and torch.equal(self.grid, other.grid)
            and torch.equal(self.patches, other.patches)
        )


class Past:
    """The tokens of one row that a cache holds. It is used up by the generation that goes on from it.

    `ids`, `types` [tokens], `positions` [3 tokens]: what was read, the answer included; `visuals`: its images.
    """

    def __init__(self, cache: Cache, ids: Tensor, types: Tensor, positions: Tensor, visuals: list[Visual]) -> None:
        self.ids, self.types, self.positions, self.visuals = ids, types, positions, visuals
        self._cache: Cache | None = cache

    @property
    def used(self) -> bool:
        """Whether a generation has gone on from it."""
        return self._cache is None

    def clone(self) -> Past:
        """A copy with a cache of its own, to go on from the same past more than once."""
        return Past(self._present().clone(), self.ids, self.types, self.positions, self.visuals)

    def take(self, inputs: Inputs, merge: int) -> tuple[Cache, Inputs]:
        """The cache, cropped to what `inputs` (one row, unpadded) has in common with it, and the inputs after that.

        `merge` is the model's `spatial_merge_size`. At least one token is left to read. A cache with a recurrent state
        cannot be cropped, and is emptied unless all of it is wanted. Raises `InputError` when used twice.
        """
        cache, start = self._present(), self.common(inputs, merge)
        self._cache = None
        if start < cache.length and cache.recurrent:
            start = 0
        cache.crop(start)
        return cache, after(inputs, start, merge)

    def common(self, inputs: Inputs, merge: int) -> int:
        """How many tokens at the beginning of `inputs` (one row, unpadded) the cache can stand for."""
        count = min(self.ids.shape[0], inputs.input_ids.shape[1] - 1, self._present().length)
        same = (
            (self.ids[:count] == inputs.input_ids[0, :count])
            & (self.types[:count] == inputs.mm_token_type_ids[0, :count])
            & (self.positions[:, :count] == inputs.position_ids[:, 0, :count]).all(0)
        )
        differing = (~same).nonzero()
        start = int(differing[0]) if len(differing) else count
        known = {visual.first: visual for visual in self.visuals}
        for visual in visuals(inputs, merge):
            if visual.first < start and (visual.last >= start or not visual.same(known.get(visual.first))):
                start = visual.first
        return start

    def _present(self) -> Cache:
        if self._cache is None:
            raise InputError(
                "A past is used up by the generation that goes on from it. Take the past of that generation, or "
                "`clone()` it before."
            )
        return self._cache


def visuals(inputs: Inputs, merge: int) -> list[Visual]:
    """Every image and video of a batch of one, in order of place, images first where kinds interleave."""
    found = []
    for kind, patches, grids in (
        (IMAGE, inputs.pixel_values, inputs.image_grid_thw),
        (VIDEO, inputs.pixel_values_videos, inputs.video_grid_thw),
    ):
        if patches is None or grids is None:
            continue
        places = (inputs.mm_token_type_ids[0] == kind).nonzero().flatten().tolist()
        row = place = 0
        for grid in grids:
            size = int(grid.prod())
            end = place + size // merge**2
            if end > len(places) or end == place:
                raise InputError(f"The prompt has {len(places)} placeholder tokens of this kind; its grids need more.")
            found.append(Visual(kind, places[place], places[end - 1], grid, patches[row : row + size]))
            row, place = row + size, end
    return sorted(found, key=lambda visual: visual.first)


def after(inputs: Inputs, start: int, merge: int) -> Inputs:
    """The inputs (one row) from token `start` on, with a mask for all of it and the images that are left."""
    if start == 0:
        return inputs
    kept = [visual for visual in visuals(inputs, merge) if visual.first >= start]

    def left(kind: int) -> tuple[Tensor | None, Tensor | None]:
        mine = [visual for visual in kept if visual.kind == kind]
        if not mine:
            return None, None
        return torch.cat([visual.patches for visual in mine]), torch.stack([visual.grid for visual in mine])

    pixel_values, image_grid_thw = left(IMAGE)
    pixel_values_videos, video_grid_thw = left(VIDEO)
    seconds = inputs.second_per_grid_ts
    video_count = 0 if video_grid_thw is None else len(video_grid_thw)
    return replace(
        inputs,
        input_ids=inputs.input_ids[:, start:],
        mm_token_type_ids=inputs.mm_token_type_ids[:, start:],
        position_ids=inputs.position_ids[:, :, start:],
        pixel_values=pixel_values,
        image_grid_thw=image_grid_thw,
        pixel_values_videos=pixel_values_videos,
        video_grid_thw=video_grid_thw,
        second_per_grid_ts=None if seconds is None or not video_count else seconds[-video_count:],
        geometry=None,
    )
