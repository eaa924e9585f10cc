"""The sizes of a text model small enough to be worked out by hand."""

from __future__ import annotations

from typing import Any

from cutaway.config import Rope, TextConfig


def text_config(*, layer_types: tuple[str, ...], mlp_types: tuple[str, ...], **sizes: Any) -> TextConfig:
    """A decoder of these kinds of blocks, two heads of 8 on one for keys and values; `sizes` are the other fields."""
    usual: dict[str, Any] = {
        "vocab_size": 11,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_layers": len(layer_types),
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "norm_eps": 1e-6,
        "max_positions": 512,
        "rope": Rope(1e4, (2, 1, 1), interleaved=True),
    }
    return TextConfig(**{**usual, **sizes}, layer_types=layer_types, mlp_types=mlp_types)
