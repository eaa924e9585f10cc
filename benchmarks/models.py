"""The models that are measured: configs of any width and depth, and the same weights in Cutaway and in transformers.

It knows configs and how to hand one library's tensors to the other; it measures nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

import cutaway
from cutaway.api import Model
from cutaway.checkpoint.files import locate
from cutaway.checkpoint.published_sizes import published

CONTROL = {"vision_start_token_id": 302, "vision_end_token_id": 303, "image_token_id": 305, "video_token_id": 306}
SMALL_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 16}


def decoder(hidden: int, blocks: int, head_dim: int, *, kv_heads: int | None = None, **vision: Any) -> dict[str, Any]:
    """A Qwen3-VL config with this text decoder, and the smallest vision encoder there can be unless `vision` says."""
    heads = hidden // head_dim
    pairs = head_dim // 2
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or max(1, heads // 2),
        "head_dim": head_dim,
        "max_position_embeddings": 16384,
        "rope_theta": 5e6,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
            "rope_type": "default",
            "mrope_interleaved": True,
        },
    }
    vision = {"deepstack_visual_indexes": [], **SMALL_VISION, **vision, "out_hidden_size": hidden}
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, **CONTROL}


def pair(config: dict[str, Any], *, eager: bool = False) -> tuple[Model, Any]:
    """A model with random float32 weights and transformers' on the same tensors."""
    ours = cutaway.random(config, device="cpu", dtype="float32", attn_implementation="eager" if eager else "sdpa")
    return ours, reference(config, ours, "eager" if eager else "sdpa")


def reference(config: dict[str, Any], ours: Model, attention: str) -> Any:
    """transformers' model of `config`, which shares the weights of `ours`."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    read = AutoConfig.for_model(**config)
    theirs = AutoModelForImageTextToText.from_config(read, attn_implementation=attention, dtype=torch.float32)
    theirs.load_state_dict(ours.root.state_dict(), strict=True, assign=True)
    return theirs.eval()


@cache
def nano() -> tuple[Model, Any]:
    """The bundled model in both."""
    from transformers import AutoModelForImageTextToText

    folder = locate("nano")
    theirs = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return cutaway.load("nano", dtype="float32", device="cpu"), theirs.eval()


def two_billion(quick: bool) -> dict[str, Any]:
    """The published config of Qwen3-VL-2B; for a test, a decoder of two layers."""
    return decoder(64, 2, 32) if quick else published("Qwen3-VL-2B")


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image with detail at every scale, the same for every run."""
    drawn = np.random.default_rng(seed)
    coarse = Image.fromarray(drawn.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((width, height))
    fine = drawn.integers(-20, 20, (height, width, 3), dtype=np.int16)
    return Image.fromarray((np.asarray(coarse, np.int16) + fine).clip(0, 255).astype(np.uint8))


def keys(inputs: Any) -> dict[str, Any]:
    """What transformers takes of a batch."""
    return dict(inputs.items())
