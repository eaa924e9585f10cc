"""Size rules: the reference's tables to the pixel, the limits, and what holds for every size."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.inputs.image.patches import fit_image, fit_video, target_size, token_count
from cutaway.inputs.video.patches import video_size, video_token_count
from tests.inputs.media import NEW, NEW_VIDEOS, OLD, OLD_VIDEOS, TABLES

SIDES = st.integers(1, 5000)


def size_or_none(rule, *numbers):
    try:
        return list(rule(*numbers))
    except InputError:
        return None


def test_image_sizes_of_the_reference() -> None:
    wrong = [row for row in TABLES["image_size"] if size_or_none(fit_image, *row[:-1]) != row[-1]]
    assert not wrong


def test_video_sizes_of_the_reference() -> None:
    wrong = [row for row in TABLES["video_size"] if size_or_none(fit_video, *row[:-1]) != row[-1]]
    assert not wrong


@pytest.mark.parametrize(
    ("height", "width", "most", "size"),
    [(639, 31, 20 * 784, (560, 28)), (20, 4000, 7840, (28, 1232))],
)
def test_a_thin_image_keeps_a_merged_token_of_width(height, width, most, size) -> None:
    assert fit_image(height, width, 28, 3136, most) == size


def test_a_thin_image_may_exceed_the_budget() -> None:
    assert fit_image(10, 1999, 32, 65536, 65536) == (32, 3648)


def test_the_aspect_limit_is_of_the_raw_image() -> None:
    assert fit_image(1, 200, 28, 3136, 12845056)
    with pytest.raises(InputError, match=r"200 times.*1 x 201.*Crop"):
        fit_image(1, 201, 28, 3136, 12845056)


@pytest.mark.parametrize(("height", "width"), [(10, 3000), (64, 12864)])
def test_the_aspect_limit_of_a_video_is_after_it_grew(height, width) -> None:
    with pytest.raises(InputError, match="200 times"):
        fit_video(2, height, width, 32, 4096, 768 * 1024)


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (0, 0), (-3, 4)])
def test_a_side_of_zero_is_an_error(height, width) -> None:
    with pytest.raises(InputError, match="at least 1 x 1"):
        fit_image(height, width, 28, 3136, 12845056)
    with pytest.raises(InputError, match="at least 1 x 1"):
        fit_video(2, height, width, 32, 4096, 65536)


@pytest.mark.parametrize(
    ("frames", "height", "width", "low", "size"),
    [
        (5, 100, 100, 4096, (96, 96)),
        (2, 31, 64, 4096, (32, 64)),
        (8, 720, 1280, 4096, (224, 416)),
        (3, 64, 64, 128 * 1024, (224, 224)),
    ],
)
def test_the_budget_of_the_new_families_is_the_videos(frames, height, width, low, size) -> None:
    assert fit_video(frames, height, width, 32, low, 768 * 1024) == size


def test_the_budget_of_the_old_families_is_the_frames() -> None:
    sizes = {video_size(frames, 720, 1280, OLD_VIDEOS) for frames in (2, 8, 100)}
    assert sizes == {fit_image(720, 1280, 28, 3136, 12845056)}


def test_the_cap_bounds_what_a_video_costs() -> None:
    # Expected areas: transformers 5.24's formulas, written out.
    new, old = (replace(s, cap_pixels_per_frame=True) for s in (NEW_VIDEOS, OLD_VIDEOS))
    assert video_size(8, 1080, 1920, new) == fit_video(8, 1080, 1920, 32, 4096, 8 * 768 * 1024)
    assert video_size(8, 1080, 1920, NEW_VIDEOS) != video_size(8, 1080, 1920, new)
    share = int(128000 * 784 * 0.9) * 2 // 400
    assert video_size(400, 1080, 1920, old) == fit_image(1080, 1920, 28, 3136, share)


def test_one_frame_is_sized_as_the_grid_it_fills() -> None:
    assert video_size(1, 300, 500, NEW_VIDEOS) == video_size(2, 300, 500, NEW_VIDEOS)
    with pytest.raises(InputError, match="at least 2 frames"):
        fit_video(1, 300, 500, 32, 4096, 65536)


@hypothesis.settings(deadline=None)  # machines under load are slow
@given(SIDES, SIDES, st.sampled_from([NEW, OLD]), st.integers(4096, 200_000), st.integers(1, 50))
def test_every_size_divides_and_stays_in_the_budget(height, width, settings, low, times) -> None:
    settings = settings.with_limits(low, low * times)
    try:
        rows, columns = target_size(height, width, settings)
    except InputError:
        assert max(height, width) > 200 * min(height, width)
        return
    factor = settings.factor
    assert rows % factor == 0 == columns % factor
    assert min(rows, columns) >= factor
    assert token_count(height, width, settings) == rows * columns // factor**2
    # Published exceptions: a side that is at its minimum already, and limits closer than rounding can meet.
    if min(rows, columns) > factor and times > 4:
        assert low <= rows * columns <= low * times


@hypothesis.settings(deadline=None)  # machines under load are slow
@given(st.integers(1, 60), SIDES, SIDES, st.sampled_from([NEW_VIDEOS, OLD_VIDEOS]))
def test_every_video_size_divides(frames, height, width, settings) -> None:
    try:
        rows, columns = video_size(frames, height, width, settings)
    except InputError:
        assert max(height, width) > 100 * min(height, width)
        return
    assert rows % settings.factor == 0 == columns % settings.factor
    merged = rows * columns // settings.factor**2
    assert video_token_count(frames, height, width, settings) == (frames + 1) // 2 * merged


def test_without_resizing_the_sides_must_fit() -> None:
    settings = replace(NEW, do_resize=False)
    assert target_size(64, 96, settings) == (64, 96)
    with pytest.raises(InputError, match=r"multiples of 32.*64 x 100"):
        target_size(64, 100, settings)
    with pytest.raises(InputError, match="multiples of 32"):
        video_size(4, 60, 64, replace(NEW_VIDEOS, do_resize=False))
