"""Published sizes: found by any usual name, complete, and with the parameters that their names promise."""

from __future__ import annotations

import warnings

import pytest

from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import ConfigError


@pytest.mark.parametrize("name", sizes.names())
def test_every_size_is_a_whole_config(name) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = read_config(sizes.published(name))
    assert config.dtype == "bfloat16"
    assert config.family.startswith({"2-": "qwen2_vl", "2.": "qwen2_5", "3-": "qwen3_vl", "3.": "qwen3_5"}[name[4:6]])
    assert config.family.endswith("moe") == ("-A" in name)


def test_rows_of_the_table() -> None:
    config = read_config(sizes.published("Qwen3-VL-4B"))
    text, vision = config.text, config.vision
    assert (text.hidden_size, text.intermediate_size, text.num_layers, text.num_heads, text.num_kv_heads) == (
        2560,
        9728,
        36,
        32,
        8,
    )
    assert (text.head_dim, text.vocab_size, text.max_positions, text.rope.theta) == (128, 151936, 262144, 5e6)
    assert (vision.num_layers, vision.hidden_size, vision.intermediate_size) == (24, 1024, 4096)
    assert (vision.deepstack_indexes, vision.num_positions, config.tie_word_embeddings) == ((5, 11, 17), 2304, True)
    hybrid = read_config(sizes.published("Qwen3.5-35B-A3B")).text
    assert hybrid.layer_types[:4] == ("linear_attention",) * 3 + ("full_attention",)
    assert (hybrid.rope.sections, hybrid.rope.fraction, hybrid.linear.value_heads) == ((11, 11, 10), 0.25, 32)
    assert (hybrid.experts.count, hybrid.experts.per_token, hybrid.experts.shared_intermediate_size) == (256, 8, 512)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-VL-2B-Instruct", "qwen3-vl-2b", "QWEN/QWEN3-VL-2B-THINKING", "Qwen3-VL-2B"]
)
def test_names_are_taken_loosely(name) -> None:
    assert sizes.known(name)
    assert sizes.published(name) == sizes.published("Qwen3-VL-2B")


def test_an_unknown_name_offers_the_nearest() -> None:
    assert not sizes.known("Qwen3-VL-3B")
    with pytest.raises(ConfigError, match="Qwen3-VL-32B") as error:
        sizes.published("Qwen/Qwen3-VL-3B-Instruct")
    assert "Qwen3-VL-4B" in str(error.value)


def test_a_copy_each_time() -> None:
    sizes.published("Qwen3-VL-2B")["text_config"]["hidden_size"] = 1
    assert sizes.published("Qwen3-VL-2B")["text_config"]["hidden_size"] == 2048
