"""A published config cut down: what makes a family its family is kept, the numbers are small."""

from __future__ import annotations

import pytest

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.published_sizes import names, published
from cutaway.checkpoint.shrink import shrunk


@pytest.mark.parametrize("name", names())
def test_every_published_size_keeps_its_make(name) -> None:
    whole, small = read_config(published(name)), read_config(shrunk(published(name)))
    assert small.family == whole.family
    assert small.tie_word_embeddings == whole.tie_word_embeddings
    assert set(small.text.layer_types) == set(whole.text.layer_types)
    assert small.text.layer_types == whole.text.layer_types[: small.text.num_layers]
    assert set(small.text.mlp_types) == set(whole.text.mlp_types)
    assert len(small.vision.deepstack_indexes) == len(whole.vision.deepstack_indexes) < small.text.num_layers
    assert (small.vision.window_size is None) == (whole.vision.window_size is None)
    assert bool(small.vision.full_attention_indexes) == bool(whole.vision.full_attention_indexes)
    assert len(small.vision.full_attention_indexes) < small.vision.num_layers
    for switch in ("qkv_bias", "qk_norm", "output_gate", "centred_norms", "norm_eps"):
        assert getattr(small.text, switch) == getattr(whole.text, switch), switch
    for key in ("patch_size", "hidden_act", "num_positions", "tokens_per_second", "window_size"):
        assert getattr(small.vision, key) == getattr(whole.vision, key), key


@pytest.mark.parametrize("name", names())
def test_the_rotary_keeps_its_shares(name) -> None:
    whole, small = (read_config(config).text for config in (published(name), shrunk(published(name))))
    assert (small.rope.theta, small.rope.interleaved, small.rope.fraction) == (
        whole.rope.theta,
        whole.rope.interleaved,
        whole.rope.fraction,
    )
    assert sum(small.rope.sections) == int(small.head_dim * small.rope.fraction) // 2
    assert all(small.rope.sections)
    assert small.num_heads > small.num_kv_heads > 1
    if whole.linear is not None:
        assert small.linear is not None
        ratio = whole.linear.value_heads // whole.linear.key_heads
        assert small.linear.value_heads == ratio * small.linear.key_heads
    if whole.experts is not None:
        assert small.experts is not None
        assert 1 < small.experts.per_token < small.experts.count
        shared = whole.experts.shared_intermediate_size is None, small.experts.shared_intermediate_size is None
        assert shared[0] == shared[1]


def test_the_published_mapping_stays_as_it_is() -> None:
    options = published("Qwen3.5-35B-A3B")
    shrunk(options)
    assert options == published("Qwen3.5-35B-A3B")


def test_a_list_of_block_types_is_cut_with_the_blocks() -> None:
    options = published("Qwen3.5-0.8B")
    options["text_config"]["layer_types"] = ["full_attention", *["linear_attention"] * 23]
    assert read_config(shrunk(options)).text.layer_types == ("full_attention", *["linear_attention"] * 3)


def test_blocks_without_experts_stay_without() -> None:
    options = published("Qwen3-VL-30B-A3B")
    options["text_config"]["mlp_only_layers"] = [1, 7]
    assert read_config(shrunk(options)).text.mlp_types == ("experts", "dense", "experts", "experts")


@pytest.mark.parametrize("name", ["Qwen2-VL-2B", "Qwen2.5-VL-3B", "Qwen3-VL-2B", "Qwen3-VL-30B-A3B", "Qwen3.5-35B-A3B"])
def test_a_small_model_sees_its_image_and_answers(name, red) -> None:
    from cutaway import random

    model = random(name, small=True, device="cpu")
    assert sum(p.numel() for p in model.parameters()) < 2_000_000
    prompt = model.prompt("What?", images=1)
    assert (model(prompt, images=[red]) - model(prompt, images=[red.rotate(45)])).abs().max() > 1e-3
    assert isinstance(model.ask("What?", images=[red], max_new_tokens=2), str)
