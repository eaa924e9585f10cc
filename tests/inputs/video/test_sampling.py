"""Which frames are taken and when they are shown: the reference's tables, arguments, metadata."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError, LimitError
from cutaway.inputs.video.sampling import Metadata, grid_seconds, read_metadata, sample, time_stamp
from tests.inputs.media import NEW_VIDEOS, OLD_VIDEOS, TABLES

TWO_A_SECOND = replace(OLD_VIDEOS, fps=2)


def indices_or_none(row, settings):
    total, fps, options, _ = row
    try:
        return list(sample(total, fps, settings, **options))
    except InputError:
        return None


def test_frames_of_the_new_families() -> None:
    wrong = [row for row in TABLES["sample_new"] if indices_or_none(row, NEW_VIDEOS) != row[-1]]
    assert not wrong


def test_frames_of_the_old_families() -> None:
    """A single frame is a video of one grid here, where the reference divides by zero."""
    wrong = [row for row in TABLES["sample_old"] if indices_or_none(row, OLD_VIDEOS) != row[-1]]
    assert all(total == 1 and kept is None and "num_frames" not in options for total, _, options, kept in wrong)
    assert {tuple(indices_or_none(row, OLD_VIDEOS)) for row in wrong} == {(0,)}


def test_stamps_of_the_reference() -> None:
    assert all([time_stamp(s) for s in grid_seconds(row[1], row[0], 2)] == row[2] for row in TABLES["stamps"])


@pytest.mark.parametrize(
    ("total", "fps", "options", "old", "new"),
    [
        (100, 25, {}, (0, 12, 25, 37, 50, 62, 75, 87), (0, 14, 28, 42, 57, 71, 85, 99)),
        (7, 30, {}, (0, 1, 3, 5), (0, 2, 4, 6)),
        (3, 30, {}, (0, 1), (0, 1, 2)),
        (100, 25, {"num_frames": 5}, (0, 25, 50, 75), (0, 25, 50, 74, 99)),
        (1, 25, {}, (0,), (0,)),
        (1, 25, {"num_frames": 1}, (0,), (0,)),
        (100, 25, {"num_frames": 1}, (0, 50), (0,)),
        (2, 25, {"fps": 100}, (0, 1), (0, 1)),
    ],
)
def test_frames_by_hand(total, fps, options, old, new) -> None:
    assert sample(total, fps, TWO_A_SECOND, **options) == old
    assert sample(total, fps, NEW_VIDEOS, **options) == new


def test_counts_stay_between_four_and_768() -> None:
    for settings in (TWO_A_SECOND, NEW_VIDEOS):
        assert len(sample(100_000, 10, settings)) == 768
        assert len(sample(100, 1000, settings)) == 4
        assert len(sample(100_000, 10, settings, fps=50)) == 768


@hypothesis.settings(deadline=None)  # machines under load are slow
@given(st.integers(1, 5000), st.floats(0.5, 240), st.floats(0.1, 60), st.sampled_from([TWO_A_SECOND, NEW_VIDEOS]))
def test_indices_ascend_within_the_video(total, source_fps, fps, settings) -> None:
    used_names = sample(total, source_fps, settings, fps=fps)
    assert list(used_names) == sorted(set(used_names))
    assert used_names[0] == 0
    assert used_names[-1] < total
    assert len(used_names) >= min(total, 4) // 2 * 2
    assert settings.whole_video or total == 1 or len(used_names) % 2 == 0


@pytest.mark.parametrize("settings", [TWO_A_SECOND, NEW_VIDEOS])
def test_arguments_that_contradict(settings) -> None:
    with pytest.raises(InputError, match="exclude each other"):
        sample(100, 25, settings, fps=2, num_frames=4)
    with pytest.raises(LimitError, match="at most 768"):
        sample(100, 25, settings, num_frames=10**9)


def test_more_frames_than_there_are() -> None:
    assert sample(3, 25, NEW_VIDEOS, num_frames=5) == (0, 0, 1, 2, 2)  # repeated, as the reference does
    with pytest.raises(InputError, match=r"has 3 frames.*ask for 2 or fewer"):
        sample(3, 25, OLD_VIDEOS, num_frames=6)
    with pytest.raises(InputError, match="has 1 frames"):
        sample(1, 25, OLD_VIDEOS, num_frames=6)


def test_sampling_without_a_default_needs_an_argument() -> None:
    with pytest.raises(InputError, match="needs fps= or num_frames="):
        sample(100, 25, OLD_VIDEOS)
    assert len(sample(100, 25, replace(OLD_VIDEOS, num_frames=6))) == 6


@pytest.mark.parametrize(
    ("indices", "fps", "stamps"),
    [
        ([0, 30, 60, 119], 30, ["<0.5 seconds>", "<3.0 seconds>"]),
        ([0, 1, 2, 3], 4, ["<0.1 seconds>", "<0.6 seconds>"]),
        ([0, 1, 2], 2, ["<0.2 seconds>", "<1.0 seconds>"]),
        (list(np.linspace(0, 59, 4).round().astype(int)), 30, ["<0.3 seconds>", "<1.6 seconds>"]),
        ([7], 2, ["<3.5 seconds>"]),
    ],
)
def test_stamps_are_the_mean_of_source_times(indices, fps, stamps) -> None:
    assert [time_stamp(second) for second in grid_seconds(indices, fps, 2)] == stamps


@pytest.mark.parametrize(
    ("second", "text"), [(0.25, "0.2"), (0.35, "0.3"), (0.05, "0.1"), (0.45, "0.5"), (0.15, "0.1")]
)
def test_stamps_round_the_binary_value(second, text) -> None:
    assert time_stamp(second) == f"<{text} seconds>"


def test_metadata_in_every_form() -> None:
    full = Metadata(30.0, 120, (0, 1, 2))
    assert read_metadata({"fps": 30, "total_num_frames": 120, "frames_indices": [0, 1, 2]}) == full
    assert read_metadata({"fps": np.float32(30), "total_num_frames": 120.0, "frames_indices": np.arange(3)}) == full
    assert read_metadata({"fps": 30}) == Metadata(30.0)
    attributes = SimpleNamespace(
        fps=30, total_num_frames=120, frames_indices=torch.arange(3), width=5, height=None, duration=4.0
    )
    assert read_metadata(attributes) == full
    assert read_metadata({"width": 5, "video_backend": "x", "duration": 3}) == Metadata()
    assert read_metadata(None) == Metadata()
    assert read_metadata(full) is full


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"fsp": 3}, "may have fps, total_num_frames, frames_indices, got fsp"),
        ({"fps": 0}, "above 0"),
        ({"fps": -1}, "above 0"),
        ({"fps": float("nan")}, "above 0"),
        ({"fps": float("inf")}, "above 0"),
        ({"fps": "24"}, "above 0"),
        ({"fps": True}, "above 0"),
        ({"total_num_frames": 0}, "whole number above 0"),
        ({"total_num_frames": 1.5}, "whole number above 0"),
        ({"frames_indices": 5}, "list of frame numbers"),
        ({"frames_indices": "012"}, "list of frame numbers"),
        ({"frames_indices": [0, -1]}, "from 0 on"),
        ({"frames_indices": [0, 1.5]}, "from 0 on"),
        ({"frames_indices": [[0]]}, "from 0 on"),
        (7, "must be a mapping"),
        ([{"fps": 3}], "must be a mapping"),
    ],
    ids=str,
)
def test_metadata_that_says_nothing_sensible(source, message) -> None:
    with pytest.raises(InputError, match=message):
        read_metadata(source, "videos[2]")
