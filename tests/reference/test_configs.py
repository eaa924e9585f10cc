"""Configs against transformers' own classes: every size that a file states, or leaves to its class, is read alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.parameters import slots
from cutaway.checkpoint.random_weights import draw_weights
from cutaway.checkpoint.write import save_weights
from cutaway.model.build import build
from tests.checkpoint.trees import FILES, raw_config

transformers = pytest.importorskip("transformers")


def reference(raw: dict[str, Any]) -> Any:
    """transformers' config of the same mapping."""
    kind = transformers.AutoConfig.for_model(raw["model_type"]).__class__
    return kind.from_dict(json.loads(json.dumps(raw)))


def silent(family: str) -> dict[str, Any]:
    """A file that states next to nothing, so that the class's defaults count; the widths must meet all the same."""
    text, vision = {"model_type": f"{family}_text"}, {"model_type": family}
    width = transformers.AutoConfig.for_model(family).text_config.hidden_size
    vision["hidden_size" if family == "qwen2_vl" else "out_hidden_size"] = width
    if family == "qwen2_5_vl":
        vision["hidden_size"] = 1280
    if family == "qwen3_vl_moe":
        text["head_dim"] = 128
    return {"model_type": family, "text_config": text, "vision_config": vision}


CASES = {name: sizes.published(name) for name in sizes.names()}
CASES |= {name: raw_config(name) for name in FILES}
CASES |= {f"{family} by default": silent(family) for family in FAMILIES}


@pytest.mark.parametrize("raw", CASES.values(), ids=CASES)
def test_what_is_read_is_what_transformers_reads(raw) -> None:
    ours, theirs = read_config(raw), reference(raw)
    text, other = ours.text, theirs.text_config
    rope = other.rope_parameters
    assert (text.vocab_size, text.hidden_size, text.num_layers) == (
        other.vocab_size,
        other.hidden_size,
        other.num_hidden_layers,
    )
    assert (text.num_heads, text.num_kv_heads, text.norm_eps) == (
        other.num_attention_heads,
        other.num_key_value_heads,
        other.rms_norm_eps,
    )
    assert text.max_positions == other.max_position_embeddings
    assert text.head_dim == (getattr(other, "head_dim", None) or other.hidden_size // other.num_attention_heads)
    assert text.rope.theta == rope["rope_theta"]
    assert text.rope.fraction == rope.get("partial_rotary_factor", 1.0)
    if "mrope_section" in rope:
        assert list(text.rope.sections) == list(rope["mrope_section"])
    assert list(text.layer_types) == list(getattr(other, "layer_types", None) or ["full_attention"] * text.num_layers)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        assert getattr(ours, key) == getattr(theirs, key), key
    if text.experts is None:
        assert text.intermediate_size == other.intermediate_size
    else:
        counts = (other.num_experts, other.num_experts_per_tok, other.moe_intermediate_size)
        assert (text.experts.count, text.experts.per_token, text.experts.intermediate_size) == counts
        assert text.experts.shared_intermediate_size == getattr(other, "shared_expert_intermediate_size", None)


@pytest.mark.parametrize("raw", CASES.values(), ids=CASES)
def test_the_vision_half_too(raw) -> None:
    vision, other = read_config(raw).vision, reference(raw).vision_config
    old = raw["model_type"] == "qwen2_vl"
    width = other.embed_dim if old else other.hidden_size
    assert (vision.num_layers, vision.num_heads, vision.hidden_size) == (other.depth, other.num_heads, width)
    assert vision.out_hidden_size == (other.hidden_size if old else other.out_hidden_size)
    assert vision.intermediate_size == (width * other.mlp_ratio if old else other.intermediate_size)
    assert (vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size, vision.hidden_act) == (
        other.patch_size,
        other.temporal_patch_size,
        other.spatial_merge_size,
        other.hidden_act,
    )
    assert list(vision.deepstack_indexes) == list(getattr(other, "deepstack_visual_indexes", None) or [])
    assert list(vision.full_attention_indexes) == list(getattr(other, "fullatt_block_indexes", None) or [])
    assert vision.window_size == getattr(other, "window_size", None)
    assert vision.tokens_per_second == getattr(other, "tokens_per_second", None)
    assert vision.num_positions == getattr(other, "num_position_embeddings", None)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_we_save_transformers_loads(family, tmp_path) -> None:
    """Names, orientation and ties of a saved folder, judged by the other side."""
    import torch

    raw = raw_config(family)
    config = read_config(raw)
    with torch.device("meta"):
        tree = build(config)
    draw_weights(tree, config, dtype=torch.float32, device="cpu")
    save_weights(tree, tmp_path, raw)
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    theirs = model.state_dict()
    for name, slot in slots(tree).items():
        assert torch.equal(theirs[name], slot.tensor), name
