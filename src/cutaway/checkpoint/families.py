"""What differs between the six families where their files leave a key out, or have none for it.

The sizes are the defaults of transformers' config classes: files that it saved leave out what equals them.
"""

from __future__ import annotations

from typing import Any

_FAMILIES = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
}

FAMILIES = tuple(_FAMILIES)
"""The six families, by the `model_type` of their files."""


def generation(family: str) -> str:
    """The generation that a family belongs to: qwen2 (2-VL and 2.5-VL), qwen3_vl or qwen3_5."""
    return _FAMILIES[family]


_OLD_TEXT = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
}

TEXT: dict[str, dict[str, Any]] = {
    "qwen2_vl": _OLD_TEXT,
    "qwen2_5_vl": _OLD_TEXT,
    "qwen3_vl": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
    },
    "qwen3_vl_moe": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
    },
    "qwen3_5": {
        "vocab_size": 248320,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_theta": 1e4,
    },
    "qwen3_5_moe": {
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_theta": 1e4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}
"""Text sizes of a file that does not state them."""

ROPE_SECTIONS = {"qwen2": (16, 24, 24), "qwen3_vl": (24, 20, 20), "qwen3_5": (11, 11, 10)}
"""Rotary frequencies that follow the time, height and width position."""

ROPE_FRACTION = {"qwen2": 1.0, "qwen3_vl": 1.0, "qwen3_5": 0.25}
"""Part of a head that is rotated."""

LINEAR = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Sizes of Qwen3.5's gated delta net."""

_NEW_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "patch_size": 16,
    "num_position_embeddings": 2304,
}

VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "mlp_ratio": 4,
        "num_heads": 16,
        "patch_size": 14,
    },
    "qwen2_5_vl": {
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "tokens_per_second": 4,
        "window_size": 112,
        "fullatt_block_indexes": (7, 15, 23, 31),
    },
    "qwen3_vl": {**_NEW_VISION, "deepstack_visual_indexes": (8, 16, 24)},
    "qwen3_vl_moe": {**_NEW_VISION, "deepstack_visual_indexes": (8, 16, 24)},
    "qwen3_5": _NEW_VISION,
    "qwen3_5_moe": _NEW_VISION,
}
"""Vision sizes of a file that does not state them."""

VISION_ACT = {"qwen2_vl": "quick_gelu", "qwen2_5_vl": "silu"}
"""Activation of the vision blocks; the later families all have gelu_pytorch_tanh."""

TIMESTAMPS = {
    "qwen2_vl": False,
    "qwen2_5_vl": False,
    "qwen3_vl": True,
    "qwen3_vl_moe": True,
    "qwen3_5": True,
    "qwen3_5_moe": True,
}
"""Whether a video's prompt has a time stamp per temporal grid; no file says it."""

TOKENS = {
    "qwen2": {
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "image_token_id": 151655,
        "video_token_id": 151656,
    },
    "qwen3_vl": {
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "image_token_id": 151655,
        "video_token_id": 151656,
    },
    "qwen3_5": {
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "image_token_id": 248056,
        "video_token_id": 248057,
    },
}
"""Ids of the control tokens around and for images and videos."""
