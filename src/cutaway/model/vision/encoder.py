"""The face that every vision encoder shows: its values, its sizes, and the split of features into images and videos.

It does not know how features come about; each family's file does.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from cutaway.config import VisionConfig
from cutaway.errors import Unavailable
from cutaway.named import Alias, Named, Value

NO_VISION = (
    'this model was loaded with task="text-generation", without its vision encoder. Load it with '
    'task="image-text-to-text" to give it images.'
)


class Encoder(Named):
    """Base of the vision encoders. A subclass has `patch_embed`, `blocks` and `merger` under their published names."""

    image_token_mask = Value(
        "batch seq", "true at the tokens of images", from_inputs=True, writable=False, dtype="bool"
    )
    video_token_mask = Value(
        "batch seq", "true at the tokens of videos", from_inputs=True, writable=False, dtype="bool"
    )
    patch_embeddings = Value("1 patches vision_hidden", "the patches after the patch embedding", add_batch_axis=True)
    tower_output = Value(
        "1 patches vision_hidden",
        "the last block's stream, named after the merger has read it; edit `projector.input` to change what it reads",
        add_batch_axis=True,
        writable=False,
    )
    image_features = Value(
        "tokens hidden",
        "the rows that are scattered over the images' placeholders",
        why_absent="The prompt has no image.",
    )
    video_features = Value(
        "tokens hidden",
        "the rows that are scattered over the videos' placeholders",
        why_absent="The prompt has no video.",
    )
    layers = Alias("blocks")

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.vision_hidden_size = self.hidden_size = config.hidden_size
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.intermediate_size = config.intermediate_size
        self.patch_size, self.spatial_merge_size = config.patch_size, config.spatial_merge_size
        self.window_size = config.window_size

    @property
    def image_size(self) -> NoReturn:
        """Raises `Unavailable`: these encoders have no fixed image size."""
        raise Unavailable(
            "`image_size` is unavailable: the processor cuts each image into its own grid, so there is no one size. "
            "Read `inputs['image_grid_thw']`, or `inputs.geometry` for where each patch lies."
        )

    def named_features(self, features: Tensor, grids: list[list[int]], images: int) -> Tensor:
        """Names the images' and the videos' rows of `features` [tokens hidden]; returns all rows, edits included."""
        fold = self.spatial_merge_size**2
        count = sum(t * h * w for t, h, w in grids[:images]) // fold
        if count == features.shape[0]:
            return self.value("image_features", features)
        if count == 0:
            return self.value("video_features", features)
        image_features = self.value("image_features", features[:count])
        return torch.cat((image_features, self.value("video_features", features[count:])))


class NoVision:
    """Stands in for the encoder of a text-only load: any read says why there is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unavailable(f"`vision.{name}` is unavailable: {NO_VISION}")

    def __bool__(self) -> bool:
        return False
