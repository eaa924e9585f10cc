"""The images and videos of one call: their token counts from sizes alone, and then their patches.

It joins `image` and `video` with the processor's options. It does not know prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cutaway.inputs import gather
from cutaway.inputs.image.open import file_content, open_image
from cutaway.inputs.image.patches import Patches, image_patches, read_image, target_size, token_count
from cutaway.inputs.image.pixels import row_shape
from cutaway.inputs.options import array_layout
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.video.patches import Video, VideoPatches, open_video, video_patches, video_token_count


class Images:
    """The images of a call, in order, not yet decoded where a header tells their size."""

    def __init__(self, sources: list[Any], settings: ImageSettings, options: dict[str, Any]) -> None:
        """`settings` have the call's options applied; `options` are those for images."""
        self._settings, self._layout = settings, array_layout(options)
        self._sources = [self._opened(source, f"images[{index}]") for index, source in enumerate(sources)]

    def _opened(self, source: Any, name: str) -> Any:
        # arrays hold their pixels already, so reading them costs no decoding
        is_array = isinstance(source, np.ndarray | Tensor)
        return read_image(source, layout=self._layout, name=name) if is_array else file_content(source, name)

    def counts(self) -> list[int]:
        """Tokens of every image, from its size. (A rotation tag can swap the sides; the count is the same.)"""
        names = [f"images[{index}]" for index in range(len(self._sources))]
        sizes = [_size(source, name) for source, name in zip(self._sources, names, strict=True)]
        return [token_count(*size, self._settings, name=name) for size, name in zip(sizes, names, strict=True)]

    def patches(self) -> list[Patches]:
        """Patches of every image; their rows are parts of `rows`, which holds all of them, one behind the other."""
        names = [f"images[{index}]" for index in range(len(self._sources))]
        pixels = [
            source if isinstance(source, Tensor) else read_image(source, name=name)
            for source, name in zip(self._sources, names, strict=True)
        ]
        sizes = [
            target_size(image.shape[-2], image.shape[-1], self._settings, name=name)
            for image, name in zip(pixels, names, strict=True)
        ]
        shapes = [row_shape(1, size, self._settings) for size in sizes]
        counts = [count for count, _ in shapes]
        self.rows = torch.empty(sum(counts), shapes[0][1], dtype=torch.float32)
        return [
            image_patches(image, self._settings, name=name, out=part)
            for image, name, part in zip(pixels, names, self.rows.split(counts), strict=True)
        ]


def _size(source: Any, name: str) -> tuple[int, int]:
    """(height, width) in pixels as stored."""
    if isinstance(source, Tensor):
        return source.shape[-2], source.shape[-1]
    if isinstance(source, Image.Image):
        return source.height, source.width
    with open_image(source, name) as image:
        return image.height, image.width


class Videos:
    """The videos of a call, in order: opened and their frames chosen, not decoded."""

    def __init__(self, sources: list[Any], settings: VideoSettings, options: dict[str, Any]) -> None:
        """As `Images`; `options` hold `fps`, `num_frames`, `do_sample_frames` and `video_metadata` as well."""
        self._settings = settings
        metadata = gather.arrange_metadata(options.get("video_metadata"), len(sources))
        chosen = {key: options[key] for key in ("fps", "num_frames", "do_sample_frames") if key in options}
        self._videos: list[Video] = []
        for index, (source, told) in enumerate(zip(sources, metadata, strict=True)):
            is_array = isinstance(source, np.ndarray | Tensor | list | tuple)
            axes = array_layout(options, video=True) if is_array else None
            self._videos.append(
                open_video(source, settings, metadata=told, layout=axes, name=f"videos[{index}]", **chosen)
            )

    def counts(self) -> list[int]:
        """Tokens of every video from its size and number of frames, time stamps not counted."""
        return [
            video_token_count(len(video.indices), *video.size, self._settings, name=f"videos[{index}]")
            for index, video in enumerate(self._videos)
        ]

    def patches(self) -> list[VideoPatches]:
        """Patches of every video."""
        return [
            video_patches(video, self._settings, name=f"videos[{index}]") for index, video in enumerate(self._videos)
        ]
