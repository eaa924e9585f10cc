"""The vision encoder of Qwen2-VL, and the merger that it shares with Qwen2.5-VL.

LayerNorm blocks with a quick-GELU MLP; positions enter through the rotary embedding alone. It does not know the text
model.

Source: Qwen2-VL (Wang et al. 2024); the reference's module `qwen2_vl`.
"""

from __future__ import annotations

from torch import Tensor, nn

from cutaway.config import VisionConfig
from cutaway.model.layers import LayerNorm, Linear, Stack
from cutaway.model.rope import vision_tables
from cutaway.model.vision.encoder import Encoder, VisionOutput
from cutaway.model.vision.parts import Norm, PatchEmbedding, PatchLayout, VisionBlock
from cutaway.named import Named


class Merger(Named):
    """Norms each patch and folds each 2 × 2 block of patches into one token of the text model's width."""

    def __init__(self, config: VisionConfig, norm: Norm) -> None:
        super().__init__()
        self.width = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = norm(config.hidden_size, eps=config.norm_eps)
        self.mlp = nn.Sequential(Linear(self.width, self.width), nn.GELU(), Linear(self.width, config.out_hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """[patches vision_hidden] to [patches/4 hidden]."""
        return self.mlp(self.ln_q(x).reshape(-1, self.width))


class VisionEncoder(Encoder):
    """From patches to the tokens that enter the text stream::

    patches -> patch_embed -> blocks -> merger -> image_features, video_features
    """

    def __init__(self, config: VisionConfig, implementation: str) -> None:
        super().__init__(config)
        self.patch_embed = PatchEmbedding(config, bias=False)
        self.blocks = Stack(
            VisionBlock(config, implementation, LayerNorm, ("fc1", "fc2")) for _ in range(config.num_layers)
        )
        self.merger = Merger(config, LayerNorm)

    def forward(self, patches: Tensor, *, grids: list[list[int]], images: int) -> VisionOutput:
        """Return the features of all images and of all videos; there is no DeepStack.

        `patches` [patches channels*time*height*width], images first; `grids` has (time, height, width) in patches for
        each item, of which the first `images` are images.
        """
        layout = PatchLayout.of(grids, self.spatial_merge_size, patches.device)
        rope = vision_tables(layout.rows, layout.columns, self.head_dim)
        x = self.value("patch_embeddings", self.patch_embed(patches))
        for block in self.blocks:
            x = block(x, cu_seqlens=layout.cu_seqlens, rope=rope)
        features = self.merger(x)
        self.value("tower_output", x)
        return VisionOutput(*self.split(features, grids, images))
