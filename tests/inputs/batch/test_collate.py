"""Mappings with transformers' keys: what is filled in, and what does not agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cutaway.batch import Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import InputError
from cutaway.inputs.processor import Processor

DATA = Path(__file__).parents[2] / "data" / "oracle" / "ckpt"
PAD = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_folder(DATA / "qwen3_vl", read_config(DATA / "qwen3_vl"))


@pytest.fixture
def batch(processor: Processor) -> dict:
    inputs = processor(f"a {PAD} b", images=Image.new("RGB", (96, 64), "red"))
    return dict(inputs)


def emitted(batch: dict, *ids: int) -> dict:
    """The batch with ids put behind it, as an answer would be."""
    more = torch.tensor([ids])
    joined = torch.cat([batch["input_ids"], more], 1)
    return {**batch, "input_ids": joined, "attention_mask": torch.ones_like(joined)}


def test_inputs_pass_through(processor: Processor) -> None:
    inputs = processor("a")
    assert processor.complete(inputs) is inputs


def test_text_alone_needs_only_ids(processor: Processor) -> None:
    made = processor.complete({"input_ids": np.array([5, 6, 7])})
    assert isinstance(made, Inputs)
    assert made.position_ids.tolist() == [[[0, 1, 2]]] * 3
    assert made.attention_mask.tolist() == [[1, 1, 1]]


def test_types_follow_from_ids_and_grids(processor: Processor, batch: dict) -> None:
    types = batch.pop("mm_token_type_ids")
    assert torch.equal(processor.complete(batch).mm_token_type_ids, types)
    del batch["attention_mask"]
    assert torch.equal(processor.complete(batch).mm_token_type_ids, types)


def test_a_placeholder_that_the_model_wrote_is_text(processor: Processor, batch: dict) -> None:
    image, video = processor.config.image_token_id, processor.config.video_token_id
    before = processor.complete(batch)
    del batch["mm_token_type_ids"]
    made = processor.complete(emitted(batch, 9, image, video, image))
    assert made.mm_token_type_ids[0, -4:].tolist() == [0] * 4
    assert made.next_position - 4 == before.next_position
    alone = processor.complete({"input_ids": [[9, image, 9]]})
    assert alone.mm_token_type_ids.sum() == 0


def test_a_placeholder_that_a_vision_start_introduces_needs_its_image(processor: Processor, batch: dict) -> None:
    del batch["mm_token_type_ids"]
    config = processor.config
    with pytest.raises(InputError, match=r"7 placeholders \(by sample \[7\]\), the grids describe 6"):
        processor.complete(emitted(batch, config.vision_start_token_id, config.image_token_id))
    with pytest.raises(InputError, match="1 placeholders"):
        processor.complete({"input_ids": [[config.vision_start_token_id, config.image_token_id]]})


def test_given_positions_are_kept(processor: Processor, batch: dict) -> None:
    length = batch["input_ids"].shape[1]
    positions = torch.arange(length).expand(3, 1, -1) * 2
    made = processor.complete({**batch, "position_ids": positions})
    assert torch.equal(made.position_ids, positions)
    assert made.next_position.tolist() == [2 * (length - 1) + 1]
    four = torch.cat([torch.zeros(1, 1, length, dtype=torch.int64), positions])
    assert torch.equal(processor.complete({**batch, "position_ids": four}).position_ids, positions)


def test_geometry_has_the_grids_pixels_where_the_image_is_unknown(processor: Processor, batch: dict) -> None:
    assert processor.complete(batch).geometry.images[0].size == (64, 96)


def test_a_clock_gives_videos_their_seconds() -> None:
    line = Processor.from_folder(DATA / "qwen2_5_vl", read_config(DATA / "qwen2_5_vl"))
    text = "<|vision_start|><|video_pad|><|vision_end|>"
    inputs = line(text, videos=np.zeros((6, 56, 56, 3), np.uint8), video_metadata={"fps": 2}, layout="thwc")
    made = line.complete(dict(inputs))
    assert made.geometry.videos[0].seconds == (0.0, 1.0, 2.0)
    assert torch.equal(made.position_ids, inputs.position_ids)


def test_a_clock_has_an_entry_per_video(processor: Processor) -> None:
    video = {
        "input_ids": [[processor.config.video_token_id]],
        "pixel_values_videos": torch.zeros(4, 1536),
        "video_grid_thw": [[1, 2, 2]],
        "second_per_grid_ts": [1.0, 1.0],
    }
    with pytest.raises(InputError, match="got 2 for 1"):
        processor.complete(video)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": None}, "needs `input_ids`"),
        ({"input_ids": [[1, 2], [3]]}, "rectangle"),
        ({"input_ids": torch.zeros(0)}, "whole numbers"),
        ({"input_ids": torch.zeros(1, 2, 3, dtype=torch.int64)}, "whole numbers"),
        ({"input_ids": torch.ones(1, 11)}, "whole numbers"),
        ({"input_ids": [[-1]]}, "these go from -1"),
        ({"input_ids": [[9999]]}, "to 9999"),
        ({"input_ids": "abc"}, "rectangle"),
        ({"pixel_values": ["a"]}, "`pixel_values` must be"),
        ({"labels": [1]}, "'labels'"),
        ({"attention_mask": [[1]]}, "`attention_mask` is"),
        ({"mm_token_type_ids": [[1]]}, "`mm_token_type_ids` is"),
        ({"pixel_values": None}, "no `pixel_values`"),
        ({"image_grid_thw": None}, "no `image_grid_thw`"),
        ({"pixel_values": torch.zeros(24, 7)}, r"\[patches 1536\]"),
        ({"pixel_values": torch.zeros(24, 1536, dtype=torch.int64)}, r"\[patches 1536\]"),
        ({"pixel_values": torch.zeros(20, 1536)}, "20 patches, `image_grid_thw` describes 24"),
        ({"image_grid_thw": [[1, 4, 5]]}, "merge size 2"),
        ({"position_ids": torch.zeros(2, 1, 4)}, r"\[3 batch seq\]"),
    ],
)
def test_what_does_not_agree_is_named(processor: Processor, batch: dict, change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor.complete({**batch, **change})


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 2, 2]],  # packed
        [[0.0, -1e9, 0.0, 0.0]],  # additive
        [[0.0, float("-inf"), 0.0, 0.0]],
        [[1, float("nan"), 1, 1]],
        [[1, 1, -1, 1]],
        [[0.5, 1, 1, 1]],
        [[3, 3, 3, 3]],
        [1, 1, 2, 2],
    ],
)
def test_a_mask_has_zeros_and_ones_alone(processor: Processor, mask: list) -> None:
    with pytest.raises(InputError, match=r"`attention_mask` has the values 1 .* and 0"):
        processor.complete({"input_ids": [[5, 6, 7, 8]], "attention_mask": mask})


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32])
def test_a_mask_of_any_dtype_says_the_same(processor: Processor, dtype: torch.dtype) -> None:
    mask = torch.tensor([[0, 1, 1, 1]]).to(dtype)
    made = processor.complete({"input_ids": [[5, 6, 7, 8]], "attention_mask": mask})
    assert made.attention_mask.tolist() == [[0, 1, 1, 1]]
    assert made.attention_mask.dtype == torch.int64
    assert made.position_ids[0].tolist() == [[0, 0, 1, 2]]


def test_a_mask_has_two_axes(processor: Processor) -> None:
    for shape in ((1, 1, 4, 4), (1, 4, 4), (1, 1, 1, 4), (1, 5)):
        with pytest.raises(InputError, match=r"`attention_mask` is \[batch seq\]"):
            processor.complete({"input_ids": [[5, 6, 7, 8]], "attention_mask": torch.ones(shape)})


@pytest.mark.parametrize(
    "change",
    [
        {"mm_token_type_ids": [[0.0, 0.5, 0.0, 0.0]]},
        {"position_ids": torch.full((3, 1, 4), 1.5)},
        {"position_ids": torch.full((3, 1, 4), float("nan"))},
        {"image_grid_thw": [[1.5, 2, 2]], "pixel_values": torch.zeros(4, 1536)},
    ],
)
def test_fractions_are_not_cut_to_whole_numbers(processor: Processor, change: dict) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        processor.complete({"input_ids": [[5, 6, 7, 8]], **change})
