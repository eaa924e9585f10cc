"""Random weights: the spread that is promised, the same for the same seed, tied where the config says so."""

from __future__ import annotations

import pytest
import torch

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.random_weights import draw_weights
from tests.checkpoint.trees import module_of, our_shapes, raw_config


def drawn(family: str = "qwen3_vl", seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A tiny model's tree with random weights."""
    config = read_config(raw_config(family))
    tree = module_of(our_shapes(family), tied=config.tie_word_embeddings)
    draw_weights(tree, config, dtype=dtype, device="cpu", seed=seed)
    return tree


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_drawn(family) -> None:
    for name, parameter in drawn(family).named_parameters():
        assert not parameter.is_meta
        assert parameter.numel() < 8 or parameter.std() > 0, name


def test_spreads_and_centres() -> None:
    state = drawn().state_dict()
    layer = "model.language_model.layers.0"
    assert state[f"{layer}.mlp.up_proj.weight"].std() == pytest.approx(0.7 / 32**0.5, rel=0.1)
    assert state["model.visual.patch_embed.proj.weight"].std() == pytest.approx(0.7 / (3 * 2 * 16 * 16) ** 0.5, rel=0.1)
    assert state[f"{layer}.input_layernorm.weight"].mean() == pytest.approx(1, abs=0.1)
    assert state["model.visual.blocks.0.norm1.bias"].mean() == pytest.approx(0, abs=0.1)
    assert state["model.visual.blocks.0.norm1.weight"].mean() == pytest.approx(1, abs=0.1)
    assert state["model.language_model.embed_tokens.weight"].mean() == pytest.approx(0, abs=0.02)


def test_norms_stored_as_an_offset_lie_around_zero() -> None:
    state = drawn("qwen3_5").state_dict()
    assert state["model.language_model.norm.weight"].mean() == pytest.approx(0, abs=0.1)
    assert state["model.language_model.layers.0.linear_attn.norm.weight"].mean() == pytest.approx(1, abs=0.1)
    assert state["model.visual.merger.norm.weight"].mean() == pytest.approx(1, abs=0.1)
    assert drawn("qwen2_5_vl").state_dict()["model.visual.merger.ln_q.weight"].mean() == pytest.approx(1, abs=0.1)


def test_the_seed_decides() -> None:
    one, same, other = (drawn(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    half = drawn(seed=1, dtype=torch.bfloat16).state_dict()
    for name, tensor in one.items():
        assert half[name].dtype == torch.bfloat16
        torch.testing.assert_close(half[name].float(), tensor, rtol=2e-2, atol=1e-2)


def test_heads() -> None:
    tied = drawn("qwen3_vl")
    assert tied.lm_head.weight is tied.model.language_model.embed_tokens.weight
    free = drawn("qwen3_vl_moe")
    assert not torch.equal(free.lm_head.weight, free.model.language_model.embed_tokens.weight)
