"""Resize, normalise, patches: the reference's pixels bit for bit, the order of rows, and back again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image
from cutaway.inputs.image.patches import image_patches, patch_rows, prepare_image, resize
from tests.inputs.media import NEW, NEW_VIDEOS, OLD, PRE, noise

IMAGES = load_file(PRE / "images.safetensors")
DIGESTS = json.loads((PRE / "digests.json").read_text())
SETTINGS = {"clip14": OLD, "half16": NEW.with_limits(4096, 65536)}


@pytest.mark.parametrize("key", DIGESTS)
@pytest.mark.parametrize("form", ["pil", "array", "contiguous"])
def test_pixels_of_the_reference(key, form) -> None:
    family, name = key.split(".", 1)
    raw = IMAGES[name]
    source = {
        "pil": Image.fromarray(raw.numpy()),
        "array": raw.numpy(),
        "contiguous": raw.permute(2, 0, 1).contiguous(),
    }
    patches = prepare_image(source[form], SETTINGS[family])
    assert list(patches.grid) == DIGESTS[key]["grid"]
    assert patches.rows.dtype == torch.float32
    assert patches.original_size == tuple(raw.shape[:2])
    assert hashlib.sha256(patches.rows.numpy().tobytes()).hexdigest() == DIGESTS[key]["sha256"]


def test_pixels_of_the_reference_as_numbers() -> None:
    """The same as above for one image, so that a difference can be looked at."""
    patches = prepare_image(IMAGES["60x100.smooth"].numpy(), OLD)
    torch.testing.assert_close(patches.rows, IMAGES["clip14.60x100.smooth.pixel_values"], rtol=0, atol=0)


def plain(settings):
    return replace(settings, do_rescale=False, do_normalize=False)


def test_rows_are_in_merge_block_order() -> None:
    counted = torch.arange(56 * 56, dtype=torch.int32).reshape(1, 56, 56).expand(3, -1, -1)
    patches = image_patches(counted, plain(OLD))
    first = [0, 14, 784, 798, 28, 42, 812, 826, 1568, 1582, 2352, 2366, 1596, 1610, 2380, 2394]
    assert patches.rows[:, 0].tolist() == first
    assert patches.grid == (1, 4, 4)


def test_a_row_is_channel_time_row_column() -> None:
    patches = image_patches(torch.from_numpy(noise(3, 64, 64)), plain(NEW.with_limits(1024)))
    row = patches.rows[0].reshape(3, 2, 16, 16)
    assert torch.equal(row[:, 0], row[:, 1])
    assert torch.equal(row[:, 0], torch.from_numpy(noise(3, 64, 64))[:, :16, :16].float())


def unpatched(rows, grid, settings):
    """Frames [time 3 height width] of rows: the inverse of cutting."""
    t, h, w = grid
    p, m = settings.patch_size, settings.merge_size
    blocks = rows.reshape(t, h // m, w // m, m, m, 3, 2, p, p)
    return blocks.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(t * 2, 3, h * p, w * p)


@hypothesis.settings(deadline=None)  # machines under load are slow
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from([OLD, NEW]))
def test_patches_and_pixels_are_inverse(frames, down, across, settings) -> None:
    size = (down * settings.factor, across * settings.factor)
    pixels = torch.from_numpy(noise(frames, 3, *size))
    rows = patch_rows(pixels, frames, size, plain(settings))
    back = unpatched(rows, (-(-frames // 2), size[0] // settings.patch_size, size[1] // settings.patch_size), settings)
    assert torch.equal(back[:frames], pixels.float())
    if frames % 2:
        assert torch.equal(back[-1], pixels[-1].float())


@pytest.mark.parametrize(("frames", "grids"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_an_odd_count_repeats_the_last_frame(frames, grids) -> None:
    pixels = torch.from_numpy(noise(frames, 3, 32, 32))
    rows = patch_rows(pixels, frames, (32, 32), plain(NEW_VIDEOS))
    back = unpatched(rows, (grids, 2, 2), NEW)
    assert torch.equal(back[-1], pixels[-1].float())


def test_normalising_in_parts() -> None:
    pixels = torch.from_numpy(noise(3, 64, 64))
    scaled = image_patches(pixels, replace(NEW.with_limits(1024), do_normalize=False)).rows
    assert torch.equal(scaled, image_patches(pixels, plain(NEW.with_limits(1024))).rows * NEW.rescale_factor)
    shifted = image_patches(pixels, replace(NEW.with_limits(1024), do_rescale=False)).rows
    assert torch.equal(shifted, (image_patches(pixels, plain(NEW.with_limits(1024))).rows - 0.5) / 0.5)


def test_resizing_is_smooth_and_in_range() -> None:
    """The kernel is bicubic with antialiasing: near Pillow's, far from what is not."""
    y, x = np.mgrid[0:200, 0:300]
    smooth = np.stack([x * 255 // 300, y * 255 // 200, (x + y) % 256 // 2], -1).astype(np.uint8)
    ours = resize(torch.from_numpy(smooth).permute(2, 0, 1), (112, 168)).permute(1, 2, 0).numpy().astype(int)
    pillow = np.asarray(Image.fromarray(smooth).resize((168, 112), Image.Resampling.BICUBIC)).astype(int)
    assert abs(ours - pillow)[..., :2].max() <= 2
    hard = torch.from_numpy(noise(3, 200, 300))
    aliased = torch.nn.functional.interpolate(hard[None], (112, 168), mode="bicubic")[0]
    assert (resize(hard, (112, 168)).int() - aliased.int()).abs().max() > 60
    assert resize(hard, (200, 300)) is hard


def test_a_resized_image_is_resized_once() -> None:
    """350 x 210 with patches of 14 goes to 252 x 420, not to a multiple of 56 first."""
    patches = prepare_image(noise(350, 210, 3), OLD.with_limits(max_pixels=252 * 168))
    assert patches.resized_size == (252, 140)
    expected = resize(read_image(noise(350, 210, 3)), (252, 140))
    back = unpatched(image_patches(expected, OLD.with_limits(max_pixels=252 * 168)).rows, patches.grid, OLD)
    assert torch.equal(unpatched(patches.rows, patches.grid, OLD), back)


def test_a_video_that_changes_while_it_is_read() -> None:
    with pytest.raises(InputError, match=r"the 2 frames that it had .* got 1"):
        patch_rows([torch.zeros(3, 32, 32, dtype=torch.uint8)], 2, (32, 32), NEW)
