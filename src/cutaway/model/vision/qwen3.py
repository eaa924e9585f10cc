"""The vision encoder of Qwen3-VL, Qwen3-VL-MoE, Qwen3.5 and Qwen3.5-MoE.

Patch embedding plus a learned position table resampled to each image's grid, LayerNorm blocks with a tanh-GELU MLP,
DeepStack mergers after some layers (none on Qwen3.5), the merger. It does not know the text model.

Source: Qwen3-VL technical report (2025); the reference's module `qwen3_vl`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.config import VisionConfig
from cutaway.model.layers import Embedding, LayerNorm, Linear, Stack
from cutaway.model.rope import vision_tables
from cutaway.model.vision.encoder import Encoder, VisionOutput
from cutaway.model.vision.parts import PatchEmbedding, PatchLayout, VisionBlock, resampling
from cutaway.named import Named
from cutaway.observe import observer


class Merger(Named):
    """Folds each 2 × 2 block of patches into one token of the text model's width.

    The main merger norms each patch and then joins four of them; a DeepStack merger (`late_norm`) joins first and norms
    the joined vector.
    """

    def __init__(self, config: VisionConfig, *, late_norm: bool = False) -> None:
        super().__init__()
        self.width = config.hidden_size * config.spatial_merge_size**2
        self.late_norm = late_norm
        self.norm = LayerNorm(self.width if late_norm else config.hidden_size, eps=config.norm_eps)
        self.linear_fc1 = Linear(self.width, self.width)
        self.linear_fc2 = Linear(self.width, config.out_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[patches vision_hidden] to [patches/4 hidden]."""
        x = self.norm(x.reshape(-1, self.width)) if self.late_norm else self.norm(x).reshape(-1, self.width)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class VisionEncoder(Encoder):
    """From patches to the tokens that enter the text stream::

    patches -> patch_embed -> + pos_embed (resampled) -> blocks -> merger -> image_features, video_features
                                                           └─ after `deepstack_layers[k]`: deepstack_merger_list[k]
    """

    def __init__(self, config: VisionConfig, implementation: str) -> None:
        super().__init__(config)
        if config.num_positions is None:
            raise ValueError("this encoder has a learned position table; its config says no size of it")
        self.side = round(config.num_positions**0.5)
        self.patch_embed = PatchEmbedding(config, bias=True)
        self.pos_embed = Embedding(config.num_positions, config.hidden_size)
        self.blocks = Stack(
            VisionBlock(config, implementation, LayerNorm, ("linear_fc1", "linear_fc2"))
            for _ in range(config.num_layers)
        )
        self.merger = Merger(config)
        self.deepstack_layers = config.deepstack_indexes
        if self.deepstack_layers:
            self.deepstack_merger_list = Stack(Merger(config, late_norm=True) for _ in self.deepstack_layers)

    def forward(self, patches: Tensor, *, grids: list[list[int]], images: int) -> VisionOutput:
        """Return the features of all images and of all videos, and a DeepStack tensor for each of `deepstack_layers`.

        `patches` [patches channels*time*height*width], images first; `grids` has (time, height, width) in patches for
        each item, of which the first `images` are images.
        """
        layout = PatchLayout.of(grids, self.spatial_merge_size, patches.device)
        x = self.value("patch_embeddings", self.patch_embed(patches))
        x = x + self._positions(grids, layout).to(x.dtype)
        rope = vision_tables(layout.rows, layout.columns, self.head_dim)
        deepstack = []
        for index, block in enumerate(self.blocks):
            x = block(x, cu_seqlens=layout.cu_seqlens, rope=rope)
            if index in self.deepstack_layers:
                k = self.deepstack_layers.index(index)
                deepstack.append(self.deepstack_merger_list[k](x))
        features = self.merger(x)
        self.value("tower_output", x)
        return VisionOutput(*self.split(features, grids, images), tuple(deepstack))

    def _positions(self, grids: list[list[int]], layout: PatchLayout) -> Tensor:
        """The learned positions at each patch [patches vision_hidden], made once for all frames of a size.

        With an observer, or where a gradient is recorded, each patch looks up its own row of `pos_embed`.
        """
        if torch.is_grad_enabled() or observer.get() is not None:
            return self._resampled(layout)
        frames = [(height, width) for time, height, width in grids for _ in range(time)]
        sizes = list(dict.fromkeys(frames))
        once = PatchLayout.of([[1, *size] for size in sizes], self.spatial_merge_size, layout.rows.device)
        of_size = dict(zip(sizes, self._resampled(once).split([h * w for h, w in sizes]), strict=True))
        return torch.cat([of_size[size] for size in frames])

    def _resampled(self, layout: PatchLayout) -> Tensor:
        positions, parts = resampling(layout, self.side)
        return (self.pos_embed(positions) * parts[:, :, None]).sum(1)
