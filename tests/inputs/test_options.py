"""The processor's options: what is no value for one is refused by name, and none is passed over in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import InputError
from cutaway.inputs.options import NAMES
from cutaway.inputs.processor import Processor

FOLDER = Path(__file__).parents[1] / "data" / "oracle" / "ckpt" / "qwen3_vl"
SQUARE = Image.new("RGB", (64, 64), (90, 20, 200))
VIDEO = np.full((4, 64, 64, 3), 80, np.uint8)


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_folder(FOLDER, read_config(FOLDER))


def both(processor: Processor, **options):
    """An image and a video with these options."""
    options = {"video_metadata": [{"fps": 2.0}], **options}
    return processor(processor.prompt("x", images=1, videos=1), images=[SQUARE], videos=[VIDEO], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_mean": "grey"}, "image_mean must be three numbers"),
        ({"image_mean": [0.5, 0.5]}, "image_mean must be three numbers"),
        ({"image_std": [0, 0, 0]}, "image_std must be three numbers above 0"),
        ({"rescale_factor": "a"}, "rescale_factor must be a number above 0"),
        ({"rescale_factor": float("nan")}, "rescale_factor must be a number above 0"),
        ({"do_resize": "no"}, "do_resize must be True or False"),
        ({"cap_pixels_per_frame": 1}, "cap_pixels_per_frame must be True or False"),
        ({"max_frames": "a"}, "max_frames must be a whole number above 0"),
        ({"min_frames": 2.5}, "min_frames must be a whole number above 0"),
        ({"min_frames": 9, "max_frames": 8}, "min_frames may not exceed max_frames; got 9 and 8"),
        ({"max_length": "5"}, "max_length must be a whole number above 0"),
        ({"max_length": -1, "truncation": True}, "max_length must be a whole number above 0"),
        ({"truncation": True}, "got no `max_length`"),
        ({"images_kwargs": "max_pixels"}, "`images_kwargs` is a dict"),
        ({"images_kwargs": {"fps": 3}}, "`fps` is no option of `images_kwargs`"),
        ({"text_kwargs": {"max_pixels": 3}}, "`max_pixels` is no option of `text_kwargs`"),
        ({"videos_kwargs": {"padding_side": "left"}}, "`padding_side` is no option of `videos_kwargs`"),
        ({"videos_kwargs": {"max_pixel": 3}}, "Did you mean 'max_pixels'"),
        ({"tools": [{"name": "f"}]}, "tools: for the chat template, and a prompt string has been through it"),
        ({"enable_thinking": False}, "enable_thinking: for the chat template"),
    ],
    ids=str,
)
def test_what_is_no_value_of_an_option(processor, options, message) -> None:
    with pytest.raises(InputError, match=message):
        both(processor, **options)


def test_an_option_for_one_kind_changes_that_kind_alone(processor) -> None:
    plain = both(processor)
    dark = both(processor, videos_kwargs={"image_mean": [0.9, 0.9, 0.9]})
    assert torch.equal(dark.pixel_values, plain.pixel_values)
    assert not torch.equal(dark.pixel_values_videos, plain.pixel_values_videos)
    assert bool((both(processor, image_mean=0.9).pixel_values_videos == dark.pixel_values_videos).all())


def test_metadata_without_a_video(processor) -> None:
    with pytest.raises(InputError, match="describes videos, and none was given"):
        processor("hello", video_metadata=[{"fps": 2.0}])
    assert processor("hello", video_metadata=[]).input_ids.shape[0] == 1


def test_template_variables_are_a_dict(processor) -> None:
    with pytest.raises(InputError, match="`variables` is a dict"):
        processor([{"role": "user", "content": "x"}], variables="a")


def test_an_option_that_is_none_is_as_if_not_given(processor) -> None:
    plain = both(processor)
    same = both(processor, **dict.fromkeys(name for name in NAMES if name != "video_metadata"))
    assert torch.equal(same.pixel_values, plain.pixel_values)
    assert torch.equal(same.input_ids, plain.input_ids)


def test_an_error_about_a_size_says_which_one_it_is(processor) -> None:
    strip = Image.new("RGB", (201, 1))
    with pytest.raises(InputError, match=r"^images\[1\] may be at most 200 times"):
        processor(processor.prompt("x", images=2), images=[SQUARE, strip])


def test_a_value_without_end_is_named_by_its_type(processor: Processor) -> None:
    nested: list = []
    for _ in range(3000):
        nested = [nested]
    shared: list = [1]
    for _ in range(60):
        shared = [shared, shared]
    for value in (nested, shared, float("nan"), float("inf"), 10**5000, np.zeros(3), torch.zeros(3)):
        for name in ("variables", "padding", "return_tensors", "max_length", "max_pixels", "truncation", "size"):
            with pytest.raises(InputError):
                both(processor, **{name: value})
