"""Sizes, samplings, stamps, colours and patches against transformers' own code, where that needs no torchvision."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as image_size
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as video_smart_resize
from transformers.video_utils import VideoMetadata

from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image
from cutaway.inputs.image.patches import fit_image, fit_video, prepare_image
from cutaway.inputs.video.sampling import grid_seconds, read_metadata, sample
from tests.inputs.media import NEW, NEW_VIDEOS, OLD, noise


def outcome(rule, *numbers, **named):
    """What a rule gives, or that it refuses."""
    try:
        return tuple(rule(*numbers, **named))
    except (InputError, ValueError):
        return "refused"


def test_sizes_of_images() -> None:
    chance = random.Random(0)
    for _ in range(20_000):
        top = chance.choice([40, 400, 6000])
        height, width = chance.randint(1, top), chance.randint(1, top)
        factor, low, high = chance.choice(
            [(28, 3136, 12845056), (32, 65536, 16777216), (32, 4096, 24576), (28, 784, 784)]
        )
        numbers = (height, width, factor, low, high)
        assert outcome(fit_image, *numbers) == outcome(image_size, *numbers), numbers


def test_sizes_of_videos() -> None:
    chance = random.Random(0)
    for _ in range(20_000):
        top = chance.choice([40, 400, 3000])
        frames, height, width = chance.randint(1, 800), chance.randint(1, top), chance.randint(1, top)
        low, high = chance.choice([(4096, 25165824), (131072, 786432), (4096, 73728)])
        ours = outcome(fit_video, frames, height, width, 32, low, high)
        theirs = outcome(video_smart_resize, frames, height, width, 2, 32, low, high)
        assert ours == theirs, (frames, height, width)


def test_frames_and_stamps() -> None:
    theirs, chance = Qwen3VLVideoProcessor(), random.Random(0)
    for _ in range(3000):
        total, fps = (
            chance.randint(1, 5000),
            chance.choice([1.0, 5.0, 12.5, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 60.0]),
        )
        options = chance.choice([{}, {"fps": 1}, {"fps": 0.3}, {"fps": 7.5}, {"num_frames": 9}])
        metadata = VideoMetadata(total_num_frames=total, fps=fps)
        indices = theirs.sample_frames(metadata, **options).tolist()
        assert list(sample(total, fps, NEW_VIDEOS, **options)) == indices
        stamps = Qwen3VLProcessor._calculate_timestamps(None, list(indices), fps, 2)
        assert list(grid_seconds(indices, fps, 2)) == stamps


def test_its_metadata_is_understood() -> None:
    metadata = VideoMetadata(total_num_frames=40, fps=12.5, frames_indices=np.arange(0, 40, 8), width=3, duration=3.2)
    read = read_metadata(metadata)
    assert (read.total, read.fps, read.indices) == (40, 12.5, (0, 8, 16, 24, 32))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_colours(mode) -> None:
    image = Image.fromarray(noise(20, 30, 3)).convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(noise(20, 30, seed=1)))
    if mode == "P":
        image.info["transparency"] = 7
    theirs = convert_to_rgb(image, return_numpy=True)
    assert np.array_equal(read_image(image).permute(1, 2, 0).numpy(), theirs)


@pytest.mark.parametrize("settings", [OLD, NEW.with_limits(4096)], ids=["14", "16"])
def test_patches_of_an_image_that_fits(settings) -> None:
    """Only without resizing: its Pillow backend resizes with another kernel, and normalises in another order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = Qwen2VLImageProcessorPil(
            patch_size=settings.patch_size,
            image_mean=list(settings.mean),
            image_std=list(settings.std),
            size={"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels},
        )(images=Image.fromarray(noise(112 * 2, 448, 3)), return_tensors="pt")
    ours = prepare_image(noise(112 * 2, 448, 3), settings)
    assert [list(ours.grid)] == theirs["image_grid_thw"].tolist()
    torch.testing.assert_close(ours.rows, torch.as_tensor(theirs["pixel_values"]), rtol=0, atol=3e-7)
