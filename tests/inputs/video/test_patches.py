"""Videos from lists and arrays: which frames, which times, which size, and what contradicts itself."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import InputError
from cutaway.inputs.processor import Processor
from cutaway.inputs.video.patches import open_video, prepare_video, video_size
from cutaway.inputs.video.sampling import time_stamp
from tests.inputs.media import NEW_VIDEOS, OLD_VIDEOS, noise, noise_video, saved

AT_30 = {"fps": 30}


def indices(video, settings=NEW_VIDEOS, **options):
    return open_video(video, settings, **options).indices


def stamps(video, **options):
    return [time_stamp(second) for second in prepare_video(video, NEW_VIDEOS, **options).seconds]


def test_every_form_is_the_same_video(tmp_path) -> None:
    frames = noise_video(6)
    paths = []
    for number, frame in enumerate(frames):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(frame).save(paths[-1])
    forms = [
        frames, torch.from_numpy(frames), frames.transpose(0, 3, 1, 2), torch.from_numpy(frames).permute(0, 3, 1, 2),
        list(frames), tuple(frames), [Image.fromarray(f) for f in frames], paths, [str(p) for p in paths],
        [saved(Image.fromarray(f), "PNG") for f in frames], frames / 255, frames.astype(np.int64),
        frames.astype(np.uint16) * 257, [torch.from_numpy(f).permute(2, 0, 1) for f in frames],
    ]  # fmt: skip
    for settings in (NEW_VIDEOS, OLD_VIDEOS):
        first = prepare_video(frames, settings, metadata=AT_30)
        for form in forms:
            assert torch.equal(prepare_video(form, settings, metadata=AT_30).rows, first.rows)


def test_grey_and_transparent_frames() -> None:
    grey = noise(2, 40, 50, 1)
    assert torch.equal(
        next(open_video(grey, NEW_VIDEOS, metadata=AT_30).frames())[2], torch.from_numpy(grey[0, ..., 0])
    )
    clear = np.zeros((2, 40, 50, 4), np.uint8)
    assert next(open_video(clear, NEW_VIDEOS, metadata=AT_30).frames()).min() == 255


def test_frames_are_the_ones_sampled() -> None:
    frames = noise_video(60)
    video = open_video(frames, NEW_VIDEOS, metadata=AT_30)
    assert video.indices == (0, 20, 39, 59)
    for number, frame in zip(video.indices, video.frames(), strict=True):
        assert np.array_equal(frame.permute(1, 2, 0).numpy(), frames[number])
    assert len(list(video.frames())) == 4  # they can be asked for again


@pytest.mark.parametrize(("count", "grids"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
@pytest.mark.parametrize("settings", [NEW_VIDEOS, OLD_VIDEOS])
def test_odd_counts(count, grids, settings) -> None:
    patches = prepare_video(noise_video(count), settings, metadata=AT_30, do_sample_frames=False)
    assert patches.grid[0] == grids == len(patches.seconds)
    assert len(patches.indices) == count == len(patches.frame_seconds)
    assert patches.resized_size == video_size(count, 64, 96, settings)
    assert len(patches.rows) == np.prod(patches.grid)


@pytest.mark.parametrize("settings", [NEW_VIDEOS, OLD_VIDEOS])
def test_one_frame_is_a_grid_of_itself_twice(settings) -> None:
    one, two = noise_video(1), np.repeat(noise_video(1), 2, 0)
    single = prepare_video(one, settings, metadata=AT_30)
    double = prepare_video(two, settings, metadata=AT_30, do_sample_frames=False)
    assert torch.equal(single.rows, double.rows)
    assert single.grid == double.grid
    assert single.seconds == (0.0,)


def test_no_warning_where_the_rate_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_video(noise_video(1), NEW_VIDEOS)
        prepare_video(Image.fromarray(noise_video(1)[0]), NEW_VIDEOS)


def test_without_metadata_24_frames_a_second_are_assumed_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="24 frames a second") as seen:
        video = prepare_video(noise_video(8), NEW_VIDEOS)
    assert len(seen) == 1
    assert video.grid[0] == 2
    assert [time_stamp(second) for second in video.seconds] == ["<0.0 seconds>", "<0.2 seconds>"]
    with pytest.warns(UserWarning, match="24 frames"):
        kept = prepare_video(noise_video(8), NEW_VIDEOS, do_sample_frames=False)
    assert [time_stamp(s) for s in kept.seconds] == [f"<0.{i} seconds>" for i in range(4)]


def test_fps_is_the_rate_of_frames_that_are_all_kept() -> None:
    video = prepare_video(noise_video(4), NEW_VIDEOS, fps=2, do_sample_frames=False)
    assert video.source_fps == 2
    assert video.seconds == (0.25, 1.25)
    message = prepare_video(noise_video(4), NEW_VIDEOS, fps=2, do_sample_frames=False, metadata={"fps": 4})
    assert message.source_fps == 4


def test_stamps_of_a_video() -> None:
    assert stamps(noise_video(60), metadata=AT_30) == ["<0.3 seconds>", "<1.6 seconds>"]
    options = {"fps": 30, "total_num_frames": 120, "frames_indices": [0, 30, 60, 119]}
    assert stamps(noise_video(4), metadata=options, do_sample_frames=False) == ["<0.5 seconds>", "<3.0 seconds>"]
    assert stamps(noise_video(3), metadata={"fps": 2}, do_sample_frames=False) == ["<0.2 seconds>", "<1.0 seconds>"]


def test_asking_for_a_rate_or_a_count_samples_on_every_family() -> None:
    assert indices(noise_video(20), OLD_VIDEOS, metadata=AT_30) == tuple(range(20))
    assert len(indices(noise_video(20), OLD_VIDEOS, metadata={"fps": 5}, fps=2)) == 8
    assert len(indices(noise_video(20), OLD_VIDEOS, metadata={"fps": 5}, num_frames=6)) == 6
    assert indices(noise_video(60), NEW_VIDEOS, metadata=AT_30, num_frames=5) == (0, 15, 30, 44, 59)
    assert indices(noise_video(60), NEW_VIDEOS, metadata=AT_30, num_frames=1) == (0,)
    with pytest.raises(InputError, match="exclude each other"):
        indices(noise_video(60), NEW_VIDEOS, metadata=AT_30, num_frames=5, fps=2)
    with pytest.raises(InputError, match="needs fps= or num_frames="):
        indices(noise_video(60), OLD_VIDEOS, metadata=AT_30, do_sample_frames=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("fps", 0), ("fps", float("nan")), ("fps", "2"), ("num_frames", 0), ("num_frames", 2.5), ("num_frames", True)],
)
def test_rates_and_counts_that_are_none(option, value) -> None:
    with pytest.raises(InputError, match=option):
        open_video(noise_video(4), NEW_VIDEOS, metadata=AT_30, **{option: value})


def test_a_number_of_frames_through_the_processor(oracle) -> None:
    """The count overrides the settings' rate, and stamps and grids agree."""
    folder = oracle / "ckpt" / "qwen3_vl"
    processor = Processor.from_folder(folder, read_config(folder))
    inputs = processor(
        text=processor.prompt("What happens?", videos=1), videos=[noise_video(60)], video_metadata=[AT_30], num_frames=5
    )
    assert inputs["video_grid_thw"][0, 0] == 3
    assert processor.tokenizer.decode(inputs["input_ids"][0].tolist()).count(" seconds>") == 3


def test_images_keep_their_order_whatever_their_size(oracle) -> None:
    folder = oracle / "ckpt" / "qwen3_vl"
    processor = Processor.from_folder(folder, read_config(folder))
    sizes, levels = [(64, 96), (96, 64), (64, 96), (96, 64)], [10, 60, 120, 240]
    flat = [Image.new("RGB", size[::-1], (level,) * 3) for size, level in zip(sizes, levels, strict=True)]
    inputs = processor(text=processor.prompt("Compare.", images=4), images=flat)
    parts = inputs["pixel_values"].split(inputs["image_grid_thw"].prod(-1).tolist())
    assert [round((part.mean().item() + 1) * 127.5) for part in parts] == levels
    assert inputs["image_grid_thw"][:, 1].tolist() == [4, 6, 4, 6]


def test_metadata_in_part() -> None:
    with pytest.warns(UserWarning, match=r"says 120 frames; got 4 without frames_indices.*0 to 3"):
        video = prepare_video(
            noise_video(4), NEW_VIDEOS, metadata={"total_num_frames": 120, "fps": 30}, do_sample_frames=False
        )
    assert video.indices == (0, 1, 2, 3)
    video = prepare_video(
        noise_video(4), NEW_VIDEOS, metadata={"frames_indices": [0, 8, 16, 24], "fps": 16}, do_sample_frames=False
    )
    assert video.frame_seconds == (0.0, 0.5, 1.0, 1.5)
    assert video.seconds_per_grid == pytest.approx(1.0)


def test_a_selection_is_not_sampled_again() -> None:
    selection = {"fps": 30, "total_num_frames": 120, "frames_indices": [0, 30, 60, 90, 100, 110]}
    assert indices(noise_video(6), metadata=selection) == (0, 30, 60, 90, 100, 110)
    with pytest.raises(InputError, match="sampled already"):
        indices(noise_video(6), metadata=selection, fps=1)
    with pytest.raises(InputError, match="sampled already"):
        indices(noise_video(6), metadata=selection, do_sample_frames=True)
    whole = {"fps": 30, "total_num_frames": 60, "frames_indices": list(range(60))}
    assert indices(noise_video(60), metadata=whole) == (0, 20, 39, 59)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"fps": 30, "total_num_frames": 60}, "says 60, got 20"),
        ({"fps": 30, "frames_indices": [0, 1]}, "got 2 of them for 20 frames"),
        ({"fps": 30, "total_num_frames": 19, "frames_indices": list(range(20))}, "got 19"),
    ],
)
def test_metadata_of_another_video(metadata, message) -> None:
    with pytest.raises(InputError, match=message):
        open_video(noise_video(20), NEW_VIDEOS, metadata=metadata)


def test_seconds_per_grid() -> None:
    assert prepare_video(noise_video(60), OLD_VIDEOS, metadata=AT_30, fps=2).seconds_per_grid == 1.0
    assert prepare_video(noise_video(60), OLD_VIDEOS, metadata=AT_30).seconds_per_grid == pytest.approx(2 / 30)
    with pytest.warns(UserWarning, match="24 frames"):
        assert prepare_video(noise_video(6), OLD_VIDEOS).seconds_per_grid == 2 / 24


def test_the_cap_is_explicit() -> None:
    frames = np.zeros((2, 1400, 1400, 3), np.uint8)
    free = prepare_video(frames, NEW_VIDEOS, metadata=AT_30)
    capped = prepare_video(frames, replace(NEW_VIDEOS, cap_pixels_per_frame=True), metadata=AT_30)
    assert free.resized_size == (1408, 1408)
    assert np.prod(capped.resized_size) <= 768 * 32 * 32


@pytest.mark.parametrize(
    ("video", "message"),
    [
        ([], "empty list"),
        (np.zeros((0, 5, 5, 3), np.uint8), "must have a frame"),
        (np.zeros((5, 5, 3), np.uint8), "must have axes.*list of one"),
        (np.zeros((2, 5, 0, 3), np.uint8), "at least 1 x 1"),
        (np.zeros((2, 3, 8, 3), np.uint8), "does not tell which.*layout='thwc' or layout='tchw'"),
        (np.zeros((2, 5, 6, 7), np.uint8), "neither end"),
        (np.full((2, 5, 6, 3), 9.0), "frame 0 of videos.0. as floats"),
        ([noise_video(1)[0], noise_video(1, 32, 32)[0]], "one size.*64 x 96.*32 x 32 for frame 1"),
        ([noise_video(1)[0], "no such file.png"], "frame 1 of videos.0.*does not exist"),
        ([noise_video(1)[0], None], "frame 1 of videos.0.*NoneType"),
        ({"type": "video"}, "got dict"),
        (7, "must be a video file"),
        (None, "must be a video file"),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'shape', str(value)[:20])}",
)
def test_what_is_no_video(video, message) -> None:
    with pytest.raises(InputError, match=message):
        prepare_video(video, NEW_VIDEOS, metadata=AT_30, name="videos[0]", do_sample_frames=False)


def test_a_layout_that_is_said() -> None:
    strange = noise(2, 3, 80, 3)
    one = open_video(strange, NEW_VIDEOS, metadata=AT_30, layout="thwc")
    assert one.size == (3, 80)
    two = open_video(strange, NEW_VIDEOS, metadata=AT_30, layout="tchw")
    assert two.size == (80, 3)
    listed = open_video(list(strange), NEW_VIDEOS, metadata=AT_30, layout="hwc")
    assert listed.size == (3, 80)
    for video in (strange, list(strange)):
        with pytest.raises(InputError, match="`layout` must be"):
            open_video(video, NEW_VIDEOS, metadata=AT_30, layout="whc")
    with pytest.raises(InputError, match="Leave it out"):
        open_video("video.mp4", NEW_VIDEOS, layout="thwc")
