"""Settings of images and videos: every published spelling, one effective pair of limits, nothing silently ignored."""

from __future__ import annotations

import json

import pytest

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import ConfigError, InputError
from cutaway.inputs.image.patches import prepare_image
from cutaway.inputs.settings import CLIP_MEAN, CLIP_STD, ImageSettings, VideoSettings
from tests.inputs.media import NEW, NEW_VIDEOS, OLD, OLD_VIDEOS

PUBLISHED_OLD = {
    "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD), "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
}  # fmt: skip
PUBLISHED_NEW = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip
PUBLISHED_VIDEOS = {
    "size": {"longest_edge": 25165824, "shortest_edge": 4096}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "fps": 2, "min_frames": 4,
    "max_frames": 768, "do_sample_frames": True, "video_processor_type": "Qwen3VLVideoProcessor",
    "processor_class": "Qwen3VLProcessor", "do_resize": True, "resample": 3, "rescale_factor": 1 / 255,
    "crop_size": None, "do_center_crop": None,
}  # fmt: skip


def test_published_files_are_the_published_settings() -> None:
    assert ImageSettings.from_config(PUBLISHED_OLD) == OLD
    assert ImageSettings.from_config(PUBLISHED_NEW) == NEW
    assert VideoSettings.from_config(PUBLISHED_VIDEOS) == NEW_VIDEOS
    assert VideoSettings.from_config(PUBLISHED_VIDEOS, whole_video=False) == VideoSettings.published(whole_video=True)
    assert VideoSettings.from_config(PUBLISHED_OLD, whole_video=False) == OLD_VIDEOS


def test_reference_files_of_all_families_load(oracle) -> None:
    for folder in (oracle / "ckpt").iterdir():
        if not (folder / "preprocessor_config.json").exists():
            continue
        image_file = json.loads((folder / "preprocessor_config.json").read_text())
        assert ImageSettings.from_config(image_file).min_pixels in (3136, 4096)
        file = folder / "video_preprocessor_config.json"
        video_file = json.loads(file.read_text()) if file.exists() else image_file
        video = VideoSettings.from_config(video_file, whole_video=read_config(folder).whole_video)
        assert video.whole_video == video.do_sample_frames == folder.name.startswith("qwen3")


def grid(settings) -> tuple[int, int, int]:
    import numpy as np

    return prepare_image(np.zeros((280, 280, 3), np.uint8), settings).grid


@pytest.mark.parametrize(
    "settings",
    [
        ImageSettings.from_config({**PUBLISHED_OLD, "max_pixels": 3136}),
        ImageSettings.from_config({"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 3136}}),
        ImageSettings.from_config(
            {**PUBLISHED_OLD, "max_pixels": 3136, "size": {"shortest_edge": 9, "longest_edge": 99}}
        ),
        OLD.with_limits(max_pixels=3136),
        OLD.with_limits(size={"shortest_edge": 3136, "longest_edge": 3136}),
        OLD.with_limits(max_pixels=3136, size={"shortest_edge": 3136, "longest_edge": 9999}),
    ],
    ids=["file", "file, size", "file, both", "call", "call, size", "call, both"],
)
def test_a_limit_counts_in_every_form(settings) -> None:
    assert grid(settings) == (1, 4, 4)
    assert grid(OLD) == (1, 20, 20)


@pytest.mark.parametrize(
    "size",
    [
        {"shortest_edge": 3136}, {"longest_edge": 3136}, {"min_pixels": 3136, "max_pixels": 3136},
        {"height": 56, "width": 56}, {"shortest_edge": 1, "longest_edge": 2, "depth": 3}, 3136, [3136, 3136],
        {"shortest_edge": 100, "longest_edge": 50}, {"shortest_edge": 0, "longest_edge": 50},
        {"shortest_edge": "9", "longest_edge": 50}, {"shortest_edge": 1.5, "longest_edge": 50},
        {"shortest_edge": True, "longest_edge": 50},
    ],
    ids=str,
)  # fmt: skip
def test_a_size_that_says_too_little_or_too_much(size) -> None:
    with pytest.raises(InputError, match=r"shortest_edge|min_pixels|max_pixels"):
        OLD.with_limits(size=size)
    with pytest.raises(ConfigError, match=r"shortest_edge|min_pixels|max_pixels"):
        ImageSettings.from_config({"patch_size": 14, "size": size})


def test_an_old_file_that_repeats_its_limits_in_size() -> None:
    config = {**PUBLISHED_OLD, "size": {"min_pixels": 3136, "max_pixels": 12845056}}
    assert ImageSettings.from_config(config) == OLD
    with pytest.raises(ConfigError):
        ImageSettings.from_config({**config, "max_pixels": 999999})  # which of the two?


def test_limits_alone_keep_the_other_one() -> None:
    assert OLD.with_limits(min_pixels=10_000).max_pixels == OLD.max_pixels
    assert OLD_VIDEOS.with_limits(max_pixels=50_000) == VideoSettings.from_config(
        {**PUBLISHED_OLD, "max_pixels": 50_000}, whole_video=False
    )
    with pytest.raises(InputError, match="may not exceed"):
        OLD.with_limits(max_pixels=100)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"resample": 2}, "resample must be 3"),
        ({"do_center_crop": True}, "do_center_crop"),
        ({"do_convert_rgb": False}, "do_convert_rgb"),
        ({"crop_size": {"height": 5, "width": 5}}, "Cropping"),
        ({"image_mean": [0.5, 0.5]}, "image_mean must be three"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std must be three numbers above 0"),
        ({"image_std": "0.5"}, "image_std"),
        ({"patch_size": 0}, "patch_size must be a whole number"),
        ({"merge_size": None, "temporal_patch_size": 1.5}, "temporal_patch_size"),
        ({"rescale_factor": float("nan")}, "rescale_factor"),
        ({"fps": -1}, "fps must be"),
        ({"max_frames": 0}, "max_frames"),
    ],
    ids=str,
)
def test_a_file_that_asks_for_what_is_not_there(extra, message) -> None:
    with pytest.raises(ConfigError, match=message):
        VideoSettings.from_config({**PUBLISHED_VIDEOS, **extra})


def test_a_file_without_its_patch_size_or_family() -> None:
    with pytest.raises(ConfigError, match="patch_size"):
        ImageSettings.from_config({"min_pixels": 3136})
    with pytest.raises(ConfigError, match="video_processor_type"):
        VideoSettings.from_config({"patch_size": 14})
    with pytest.raises(ConfigError, match="Llava"):
        VideoSettings.from_config({"patch_size": 14, "video_processor_type": "LlavaProcessor"}, whole_video=True)


def test_an_unknown_key_is_named_once() -> None:
    with pytest.warns(UserWarning, match="sharpen, soften") as seen:
        ImageSettings.from_config({**PUBLISHED_NEW, "soften": 1, "sharpen": 2, "unset": None})
    assert len(seen) == 1
