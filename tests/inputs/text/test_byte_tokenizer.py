"""The tokenizer of bytes for models without one: every text there and back, control tokens at the config's ids."""

from __future__ import annotations

import pytest

from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import CheckpointError
from cutaway.inputs.text.byte_tokenizer import CONTROL, byte_level_processor
from tests.checkpoint.trees import raw_config


@pytest.mark.parametrize("name", ["Qwen2-VL-2B", "Qwen2.5-VL-3B", "Qwen3-VL-2B", "Qwen3.5-0.8B"])
def test_control_tokens_stand_where_the_release_has_them(name) -> None:
    config = read_config(sizes.published(name))
    tokenizer = byte_level_processor(config).tokenizer
    for token, id in {
        "<|vision_start|>": config.vision_start_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|video_pad|>": config.video_token_id,
    }.items():
        assert tokenizer.token_to_id(token) == id
        assert tokenizer.encode(token) == [id]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        tokenizer.token_to_id("<|im_end|>"),
        tokenizer.token_to_id("<|endoftext|>"),
    )
    assert len(tokenizer) == config.text.vocab_size


@pytest.mark.parametrize("text", ["plain", "é ✓ 中文 \n\t", "👩‍👩‍👧", "<1000>", "".join(map(chr, range(1, 128)))])
def test_text_is_its_bytes(text) -> None:
    tokenizer = byte_level_processor(read_config(raw_config("qwen3_vl"))).tokenizer
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_id_can_be_shown() -> None:
    config = read_config(raw_config("qwen3_vl"))
    tokenizer = byte_level_processor(config).tokenizer
    pieces = tokenizer.strings(range(config.text.vocab_size))
    assert len(pieces) == config.text.vocab_size
    assert pieces[300] == "<300>"
    assert all(pieces)


def test_the_prompt_and_its_images(red) -> None:
    processor = byte_level_processor(read_config(raw_config("qwen3_vl")))
    inputs = processor(text=processor.prompt("What?", images=1), images=[red])
    assert (inputs.input_ids == 292).sum() == inputs.image_grid_thw.prod() // 4


def test_ids_that_leave_no_room_are_an_error() -> None:
    raw = raw_config("qwen3_vl") | {"vision_start_token_id": 20}
    with pytest.raises(CheckpointError, match="tokenizer="):
        byte_level_processor(read_config(raw))
    assert CONTROL.index("<|video_pad|>") == 13


def test_a_tokenizer_without_a_chat_template_gets_a_plain_one(oracle, tmp_path) -> None:
    position = oracle / "ckpt" / "qwen3_vl"
    (tmp_path / "tokenizer.json").write_bytes((position / "tokenizer.json").read_bytes())
    processor = byte_level_processor(read_config(position), tmp_path)
    assert processor.prompt("What?", images=1) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    )
