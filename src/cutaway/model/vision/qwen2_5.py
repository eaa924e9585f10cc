"""The vision encoder of Qwen2.5-VL: most of its blocks attend inside windows.

The patches are put into window order at entry, so that each window is a segment of the row; the merger's output is
put back into merge-block order. In between every value is in window order. It does not know the text model.

Source: Qwen2.5-VL (Bai et al. 2025); the reference's module `qwen2_5_vl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.config import VisionConfig
from cutaway.model.layers import RMSNorm, Stack
from cutaway.model.rope import vision_tables
from cutaway.model.vision.encoder import Encoder, VisionOutput
from cutaway.model.vision.parts import PatchEmbedding, PatchLayout, VisionBlock
from cutaway.model.vision.qwen2 import Merger


@dataclass(frozen=True)
class Windows:
    """How the packed row is cut into windows.

    - `tokens`: [tokens] int64, for each place of the window order the merged token that stands there.
    - `patches`: [patches] int64, the same for patches, the four of a token together.
    - `cu_seqlens`: [windows+1] int32 on the CPU, where each window begins, in patches.
    """

    tokens: Tensor
    patches: Tensor
    cu_seqlens: Tensor

    @classmethod
    def of(cls, grids: Sequence[Sequence[int]], merge: int, side: int, device: torch.device) -> Windows:
        """Windows of `side` × `side` merged tokens, cut off at a frame's edges, frame by frame in raster order."""
        numbers, count = [], 0
        for time, height, width in grids:
            rows, columns = (torch.arange(n // merge, device="cpu") // side for n in (height, width))
            across = int(columns[-1]) + 1
            frame = (rows[:, None] * across + columns).flatten()
            per_frame = (int(rows[-1]) + 1) * across
            numbers.append((torch.arange(time, device="cpu")[:, None] * per_frame + frame).flatten() + count)
            count += time * per_frame
        number = torch.cat(numbers)
        tokens = torch.argsort(number, stable=True)
        fold = merge**2
        patches = (tokens[:, None] * fold + torch.arange(fold, device="cpu")).flatten()
        ends = torch.cat((torch.zeros(1, dtype=torch.int64, device="cpu"), torch.bincount(number).cumsum(0) * fold))
        return cls(tokens.to(device), patches.to(device), ends.int())


class VisionEncoder(Encoder):
    """From patches to the tokens that enter the text stream::

    patches -> patch_embed -> window order -> blocks -> merger -> merge-block order -> image_features, video_features
                                              └─ per window, or per frame in `full_attention_indexes`
    """

    def __init__(self, config: VisionConfig, implementation: str) -> None:
        super().__init__(config)
        if config.window_size is None:
            raise ValueError("this encoder attends inside windows; its config says no window_size")
        self.window_side = config.window_size // config.spatial_merge_size // config.patch_size
        self.full_attention = frozenset(config.full_attention_indexes)
        self.patch_embed = PatchEmbedding(config, bias=False)
        self.blocks = Stack(
            VisionBlock(config, implementation, RMSNorm, ("gate_proj", "up_proj", "down_proj"))
            for _ in range(config.num_layers)
        )
        self.merger = Merger(config, RMSNorm)

    def forward(self, patches: Tensor, *, grids: list[list[int]], images: int) -> VisionOutput:
        """Return the features of all images and of all videos; there is no DeepStack.

        `patches` [patches channels*time*height*width], images first; `grids` has (time, height, width) in patches for
        each item, of which the first `images` are images.
        """
        layout = PatchLayout.of(grids, self.spatial_merge_size, patches.device)
        windows = Windows.of(grids, self.spatial_merge_size, self.window_side, patches.device)
        rope = vision_tables(layout.rows[windows.patches], layout.columns[windows.patches], self.head_dim)
        x = self.value("patch_embeddings", self.patch_embed(patches))[windows.patches]
        for index, block in enumerate(self.blocks):
            segments = layout if index in self.full_attention else windows
            x = block(x, cu_seqlens=segments.cu_seqlens, rope=rope)
        features = self.merger(x)[windows.tokens.argsort()]
        self.value("tower_output", x)
        return VisionOutput(*self.split(features, grids, images))
