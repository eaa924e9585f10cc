"""The vision encoder alone, beside transformers with its fused attention: many small images, a large one, a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, pair

SIZES = {"depth": 2, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12, "num_position_embeddings": 2304}
"""Two layers of the encoder of Qwen3-VL-2B, at three quarters of its width."""


def sides(grids: list[list[int]], quick: bool) -> dict[str, Callable[[], Any]]:
    """Features of items with these grids (time, height, width in patches)."""
    vision = {} if quick else SIZES
    ours, theirs = pair(decoder(64, 1, 32, **vision))
    rows = sum(t * h * w for t, h, w in grids)
    patches = torch.randn(rows, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(0))
    table = torch.tensor(grids)

    @torch.no_grad()
    def mine() -> torch.Tensor:
        return ours.vision(patches, grids=grids, images=len(grids))[0]

    @torch.no_grad()
    def others() -> torch.Tensor:
        out = theirs.model.visual(patches, grid_thw=table)
        return out.pooler_output if hasattr(out, "pooler_output") else out[0]

    return {OURS: mine, "transformers sdpa": others}


def works(quick: bool) -> Sequence[Work]:
    small, large, video = [[1, 8, 8]] * 32, [[1, 60, 76]], [[8, 28, 46]]
    if quick:
        small, large, video = small[:3], [[1, 12, 8]], [[2, 4, 6]]
    return [
        Work("vision encoder, 32 images of 64 patches", partial(sides, small, quick), target=0.6),
        Work("vision encoder, one image of 4,560 patches", partial(sides, large, quick), target=1.0),
        Work("vision encoder, a video of 8 × 28 × 46", partial(sides, video, quick), target=0.8),
    ]
