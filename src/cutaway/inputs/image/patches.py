"""Images: from anything that is an image to the rows of patches that the vision encoder reads.

The size rule is `cutaway.inputs.image.sizing`'s, opening is `image`'s, the arithmetic `pixels`'; this module puts them in
order and keeps what the geometry needs. It knows nothing of prompts, tokens' ids or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cutaway.inputs.image.open import read_image
from cutaway.inputs.image.pixels import check_divisible, patch_rows
from cutaway.inputs.image.sizing import fit_image
from cutaway.inputs.settings import ImageSettings

__all__ = [
    "ImageSettings",
    "Patches",
    "image_patches",
    "prepare_image",
    "read_image",
    "target_size",
    "token_count",
]


@dataclass(frozen=True, eq=False)
class Patches:
    """An image as the vision encoder reads it.

    - `rows`: [patches 3*time*patch*patch] float32, normalised, in merge-block order: the patches of a merged token are
      consecutive, merged tokens in raster order.
    - `grid`: patches in time, height and width, a row of `image_grid_thw`.
    - `original_size`, `resized_size`: (height, width) in pixels, upright: after EXIF rotation.
    """

    rows: Tensor
    grid: tuple[int, int, int]
    original_size: tuple[int, int]
    resized_size: tuple[int, int]


def prepare_image(
    source: Any, settings: ImageSettings, *, layout: str | None = None, name: str = "the image"
) -> Patches:
    """The patches of `source`, anything that `read_image` opens, with its errors and those of `target_size`."""
    return image_patches(read_image(source, layout=layout, name=name), settings, name=name)


def image_patches(
    pixels: Tensor, settings: ImageSettings, *, name: str = "the image", out: Tensor | None = None
) -> Patches:
    """The patches of `pixels` [3 height width] uint8; the image fills every time slot of its one temporal grid.

    With `out` the rows are written there.
    """
    original = (pixels.shape[-2], pixels.shape[-1])
    size = target_size(*original, settings, name=name)
    rows = patch_rows([pixels], 1, size, settings, out=out)
    grid = (1, size[0] // settings.patch_size, size[1] // settings.patch_size)
    return Patches(rows, grid, original, size)


def target_size(height: int, width: int, settings: ImageSettings, *, name: str = "the image") -> tuple[int, int]:
    """(height, width) in pixels after resizing; raises `InputError` for an image that no size fits."""
    if not settings.do_resize:
        check_divisible((height, width), settings, name)
        return height, width
    return fit_image(height, width, settings.factor, settings.min_pixels, settings.max_pixels, name)


def token_count(height: int, width: int, settings: ImageSettings, *, name: str = "the image") -> int:
    """How many image tokens an image of `height` x `width` pixels becomes, from its size alone."""
    rows, columns = target_size(height, width, settings, name=name)
    return (rows // settings.factor) * (columns // settings.factor)
