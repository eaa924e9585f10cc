"""The base of the vision encoders: their values and sizes, and the split of features into images and videos.

How features come about is in the file of each encoder.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from cutaway.config import VisionConfig
from cutaway.errors import Unavailable
from cutaway.named import Alias, Named, Value

NO_VISION = (
    'this model was loaded with task="text-generation", without its vision encoder. Load it with '
    'task="image-text-to-text" to give it images.'
)


class VisionOutput(NamedTuple):
    """What the vision encoder makes of a batch, each [tokens hidden]; what the batch does not have is None or empty.

    - `images`, `videos`: the features of all images and of all videos.
    - `deepstack`: the terms that the first text layers add, one tensor each, for all images and then all videos.
    """

    images: Tensor | None = None
    videos: Tensor | None = None
    deepstack: tuple[Tensor, ...] = ()


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

    def split(self, features: Tensor, grids: list[list[int]], images: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the images' and the videos' rows of `features` [tokens hidden], named; None where there are none.

        `grids` has (time, height, width) in patches for each item, of which the first `images` are images.
        """
        count = sum(t * h * w for t, h, w in grids[:images]) // self.spatial_merge_size**2
        image_rows = self.value("image_features", features[:count]) if count else None
        video_rows = self.value("video_features", features[count:]) if count < len(features) else None
        return image_rows, video_rows


class NoVision:
    """Stands in for the encoder of a text-only load: any read says why there is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unavailable(f"`vision.{name}` is unavailable: {NO_VISION}")

    def __bool__(self) -> bool:
        return False
