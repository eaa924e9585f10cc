"""A published config cut down to a size for trying things: every part of the model is there, each small.

What makes a model its family stays: DeepStack, windows and layers without them, delta nets between full attention,
experts, tied heads. It works on the mapping of a `config.json`; it does not read files or build anything.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES

BLOCKS, HEADS, HEAD_DIM = 4, 4, 32
"""Blocks of text and vision; query heads; dimensions of one (twice that where only a part is rotated)."""

WIDTH, VISION_WIDTH = HEADS * HEAD_DIM, 64
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
FIRST_CONTROL = 256
"""The id of the first control token: below it are the bytes of the stand-in tokenizer."""


def shrunk(published: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a model of the same make with about a million weights, in float32.

    The vocabulary is 256 bytes and the control tokens. Raises `ConfigError` for a config that cannot be read.
    """
    config = read_config(published)
    small = copy.deepcopy(dict(published))
    text = small.get("text_config", small)
    _text(text, config.text.rope.fraction)
    if config.text.linear is not None:
        groups = config.text.linear.value_heads // config.text.linear.key_heads
        text.update(linear_num_key_heads=2, linear_num_value_heads=2 * groups)
        text.update(linear_key_head_dim=16, linear_value_head_dim=16)
    _vision(small["vision_config"], FAMILIES[config.family].vision_width_key)
    _control_tokens(small, text, config.vision_start_token_id)
    for position in (small, text):
        position.update({key: "float32" for key in ("dtype", "torch_dtype") if key in position})
    return small


def _text(text: dict[str, Any], fraction: float) -> None:
    """Sizes of the text model; the rotary's sections keep their shares of a head."""
    head = HEAD_DIM if fraction == 1 else 2 * HEAD_DIM
    text.update(hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2)
    for key, size in (("intermediate_size", 2 * WIDTH), ("head_dim", head), *EXPERTS.items()):
        if key in text:
            text[key] = size
    for key in ("layer_types", "mlp_only_layers"):
        if key in text:
            text[key] = [entry for entry in text[key][:BLOCKS] if isinstance(entry, str) or entry < BLOCKS]
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if isinstance(rope, dict):
        pairs = int(head * fraction) // 2
        _, height, width = (share * pairs // sum(rope["mrope_section"]) for share in rope["mrope_section"])
        rope["mrope_section"] = [pairs - height - width, height, width]


def _vision(vision: dict[str, Any], width: str) -> None:
    """Sizes of the vision encoder; of DeepStack layers and of those without windows as many as fit."""
    vision.update({"depth": BLOCKS, "num_heads": HEADS, "hidden_size": WIDTH, width: VISION_WIDTH})
    for key, size in (("intermediate_size", 2 * VISION_WIDTH), ("out_hidden_size", WIDTH)):
        if key in vision:
            vision[key] = size
    if vision.get("deepstack_visual_indexes"):
        vision["deepstack_visual_indexes"] = list(range(BLOCKS - 1))
    if "fullatt_block_indexes" in vision:
        vision["fullatt_block_indexes"] = list(range(1, BLOCKS, 2))


def _control_tokens(config: dict[str, Any], text: dict[str, Any], vision_start: int) -> None:
    """Moves the control tokens, whose order the families share, down to the bytes."""
    shift = vision_start - 9 - FIRST_CONTROL  # the vision start is the tenth of them
    for position in (config,) if text is config else (config, text):  # one mapping where the file is flat
        for key, number in position.items():
            if key.endswith("_token_id") and isinstance(number, int):
                position[key] = number - shift
    text["vocab_size"] = FIRST_CONTROL + 16
