"""Configs: every spelling gives the same model, what is not honoured is refused, what is not known is named."""

from __future__ import annotations

import json
import warnings

import pytest

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.config import LinearAttention, MixtureSizes, Rope
from cutaway.errors import ConfigError
from tests.checkpoint.trees import raw_config


def text_of(config: dict) -> dict:
    """Where a file keeps the text model's settings."""
    return config.get("text_config", config)


@pytest.mark.parametrize("family", FAMILIES)
def test_published_and_saved_files_describe_the_same_model(family) -> None:
    assert read_config(raw_config(family)) == read_config(raw_config(f"{family}.v5"))


def test_a_flat_file_is_read_whole() -> None:
    config = read_config(raw_config("qwen2_vl"))
    assert (config.family, config.tie_word_embeddings, config.dtype) == ("qwen2_vl", True, "float32")
    text, vision = config.text, config.vision
    assert (text.hidden_size, text.intermediate_size, text.num_layers, text.num_heads, text.num_kv_heads) == (
        32,
        48,
        3,
        2,
        1,
    )
    assert (text.head_dim, text.qkv_bias, text.qk_norm, text.layer_types) == (16, True, False, ("full_attention",) * 3)
    assert text.rope == Rope(theta=1e6, sections=(2, 3, 3), interleaved=False)
    # hidden_size is the text model's width here and embed_dim the tower's; the activation is the class's
    assert (vision.hidden_size, vision.out_hidden_size, vision.intermediate_size) == (24, 32, 48)
    assert (vision.hidden_act, vision.num_positions, vision.window_size) == ("quick_gelu", None, None)


def test_the_second_family_has_windows_and_a_clock() -> None:
    vision = read_config(raw_config("qwen2_5_vl")).vision
    assert (vision.hidden_size, vision.out_hidden_size, vision.intermediate_size) == (24, 32, 40)
    assert (vision.window_size, vision.full_attention_indexes, vision.tokens_per_second) == (56, (1, 3), 2.0)
    assert vision.hidden_act == "silu"


def test_the_third_family_has_taps_and_positions() -> None:
    config = read_config(raw_config("qwen3_vl"))
    assert config.text.rope == Rope(theta=5e6, sections=(4, 2, 2), interleaved=True)
    assert (config.text.qk_norm, config.text.qkv_bias, config.text.head_dim) == (True, False, 16)
    assert (config.vision.deepstack_indexes, config.vision.num_positions) == ((0, 2), 36)
    assert (config.image_token_id, config.video_token_id) == (292, 293)


def test_mixtures() -> None:
    text = read_config(raw_config("qwen3_vl_moe")).text
    assert text.experts == MixtureSizes(count=5, per_token=2, intermediate_size=20)
    assert text.mlp_types == ("experts",) * 4
    text = read_config(raw_config("qwen3_5_moe")).text
    assert text.experts == MixtureSizes(count=5, per_token=2, intermediate_size=20, shared_intermediate_size=24)


def test_dense_blocks_inside_a_mixture() -> None:
    config = raw_config("qwen3_vl_moe")
    config["text_config"] |= {"mlp_only_layers": [1], "decoder_sparse_step": 2}
    assert read_config(config).text.mlp_types == ("dense", "dense", "dense", "experts")


def test_the_hybrid_family() -> None:
    text = read_config(raw_config("qwen3_5")).text
    assert text.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert text.linear == LinearAttention(2, 4, 8, 12, 4)
    assert text.rope == Rope(theta=1e7, sections=(3, 3, 2), interleaved=True, fraction=0.5)
    assert (text.output_gate, text.centred_norms) == (True, True)


@pytest.mark.parametrize(("interval", "full"), [(None, [3]), (2, [1, 3]), (1, [0, 1, 2, 3])])
def test_missing_layer_types_follow_the_interval(interval, full) -> None:
    config = raw_config("qwen3_5")
    del config["text_config"]["layer_types"]
    config["text_config"]["full_attention_interval"] = interval
    types = read_config(config).text.layer_types
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == full


BANDS = {"mrope_section": [4, 2, 2]}
SPELLINGS = {
    "scaling, type mrope, theta outside": {"rope_scaling": {"type": "mrope", **BANDS}, "rope_theta": 7.0},
    "scaling, rope_type default": {"rope_scaling": {"rope_type": "default", **BANDS}, "rope_theta": 7.0},
    "parameters, theta inside": {"rope_parameters": {"rope_theta": 7.0, **BANDS}},
    "both words": {"rope_parameters": {"rope_type": "default", "type": "mrope", **BANDS, "rope_theta": 7.0}},
    "parameters, theta outside": {"rope_parameters": BANDS, "rope_theta": 7.0},
    "theta inside wins": {"rope_parameters": {**BANDS, "rope_theta": 7.0}, "rope_theta": 9.0},
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_rotary_settings_in_every_spelling(family, spelled) -> None:
    config = raw_config(family)
    text = text_of(config)
    for key in ("rope_scaling", "rope_parameters", "rope_theta"):
        text.pop(key, None)
    text |= spelled
    assert read_config(config).text.rope == Rope(7.0, (4, 2, 2), interleaved=family.startswith("qwen3"))


@pytest.mark.parametrize(
    ("family", "head_dim", "rope"),
    [
        ("qwen2_vl", 128, Rope(1e6, (16, 24, 24), False)),
        ("qwen2_5_vl", 128, Rope(1e6, (16, 24, 24), False)),
        ("qwen3_vl", 128, Rope(5e5, (24, 20, 20), True)),
        ("qwen3_vl_moe", 128, Rope(5e5, (24, 20, 20), True)),
        ("qwen3_5", 256, Rope(1e4, (11, 11, 10), True, 0.25)),
        ("qwen3_5_moe", 256, Rope(1e4, (11, 11, 10), True, 0.25)),
    ],
)
def test_absent_rotary_settings_are_the_familys(family, head_dim, rope) -> None:
    config = raw_config(family)
    text = text_of(config)
    for key in ("rope_scaling", "rope_parameters", "rope_theta"):
        text.pop(key, None)
    if family.startswith("qwen2"):
        text["hidden_size"] = 2 * head_dim
        config["vision_config"]["hidden_size" if family == "qwen2_vl" else "out_hidden_size"] = 2 * head_dim
    else:
        text["head_dim"] = head_dim
    assert read_config(config).text.rope == rope


def test_a_saved_file_that_leaves_out_the_classs_sizes() -> None:
    config = {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280, "out_hidden_size": 8192}}
    read = read_config(config)
    assert (read.text.hidden_size, read.text.num_layers, read.text.vocab_size) == (8192, 80, 152064)
    assert (read.vision.intermediate_size, read.vision.tokens_per_second) == (3420, 4)
    assert (read.image_token_id, read.vision_start_token_id, read.dtype) == (151655, 151652, None)


def test_every_family_says_for_itself_whether_videos_have_time_stamps() -> None:
    result = {family for family in FAMILIES if read_config(raw_config(family)).timestamps}
    assert result == {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("outer", "inner"), [(True, False), (False, True), (None, True), (True, None), (None, None)])
def test_the_tie_flag_counts_where_the_reference_looks(family, outer, inner) -> None:
    config = raw_config(f"{family}.v5")
    for section, flag in ((config, outer), (config["text_config"], inner)):
        section.pop("tie_word_embeddings", None)
        if flag is not None:
            section["tie_word_embeddings"] = flag
    expected = bool(outer) or (bool(inner) and family.startswith("qwen2"))
    assert read_config(config).tie_word_embeddings is expected


def test_the_section_counts_where_a_file_has_the_keys_twice() -> None:
    config = raw_config("qwen2_5_vl")
    nested = {**config, "text_config": {**raw_config("qwen2_5_vl.v5")["text_config"], "num_hidden_layers": 2}}
    nested["text_config"]["layer_types"] = ["full_attention"] * 2
    assert read_config(nested).text.num_layers == 2


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"dtype": "auto"}, None),
        ({}, None),
    ],
)
def test_dtype(stated, read) -> None:
    config = raw_config("qwen3_vl")
    config["text_config"].pop("dtype")
    assert read_config(config | stated).dtype == read


def test_a_list_of_equal_patch_sides_is_one_side() -> None:
    config = raw_config("qwen3_vl")
    config["vision_config"]["patch_size"] = [16, 16]
    assert read_config(config).vision.patch_size == 16


YARN = {"type": "yarn", "factor": 4.0, "mrope_section": [2, 3, 3]}
LINEAR = {"rope_type": "linear", "factor": 2.0, **BANDS}
WINDOWED = ["full_attention", "sliding_attention", "full_attention"]
REFUSED = {
    "yarn": ("qwen2_5_vl", {"rope_scaling": YARN}, {}, "rope_scaling.type"),
    "linear rope": ("qwen3_vl", {"rope_scaling": LINEAR}, {}, "rope_type"),
    "windows in text": ("qwen2_vl", {"use_sliding_window": True, "max_window_layers": 1}, {}, "use_sliding_window"),
    "windowed layers": ("qwen2_vl", {"layer_types": WINDOWED}, {}, "layer_types"),
    "windows on a family without": ("qwen3_vl", {"sliding_window": 4096}, {}, "sliding_window"),
    "another text activation": ("qwen3_vl", {"hidden_act": "gelu"}, {}, "hidden_act"),
    "another vision activation": ("qwen2_vl", {}, {"hidden_act": "silu"}, "vision_config.hidden_act"),
    "attention biases": ("qwen3_vl", {"attention_bias": True}, {}, "attention_bias"),
    "uneven heads": ("qwen2_5_vl", {"head_dim": 64}, {}, "head_dim"),
    "another order": ("qwen3_vl", {"rope_scaling": {"mrope_interleaved": False, **BANDS}}, {}, "mrope_interleaved"),
    "sections that do not add up": ("qwen3_vl", {"rope_scaling": {"mrope_section": [4, 2, 3]}}, {}, "add up to the 8"),
    "partial rotary": ("qwen3_vl", {"partial_rotary_factor": 0.5}, {}, "rotates whole heads"),
    "no gate": ("qwen3_5", {"attn_output_gate": False}, {}, "attn_output_gate"),
    "state in bfloat16": ("qwen3_5", {"mamba_ssm_dtype": "bfloat16"}, {}, "mamba_ssm_dtype"),
    "dense blocks in 3.5": ("qwen3_5_moe", {"mlp_only_layers": [0]}, {}, "mlp_only_layers"),
    "DeepStack in 3.5": ("qwen3_5", {}, {"deepstack_visual_indexes": [1]}, "deepstack_visual_indexes"),
    "scaled vision positions": ("qwen3_vl", {}, {"rope_parameters": {"rope_theta": 5000.0}}, "rope_theta"),
    "grey images": ("qwen2_vl", {}, {"in_chans": 1}, "in_chans"),
    "oblong patches": ("qwen3_vl", {}, {"patch_size": [16, 14]}, "patch_size"),
    "DeepStack layers that are not there": (
        "qwen3_vl",
        {},
        {"deepstack_visual_indexes": [1, 9]},
        "deepstack_visual_indexes",
    ),
    "widths that do not meet": ("qwen3_vl", {}, {"out_hidden_size": 64}, "output width 64"),
    "positions that are no square": ("qwen3_vl", {}, {"num_position_embeddings": 35}, "must be a square"),
    "kv heads that do not divide": ("qwen3_vl", {"num_key_value_heads": 3}, {}, "multiple of num_key_value_heads"),
    "a size in words": ("qwen3_vl", {"hidden_size": "32"}, {}, "whole number"),
    "a size below one": ("qwen3_vl", {"num_hidden_layers": 0}, {}, "at least 1"),
    "too many experts chosen": ("qwen3_vl_moe", {"num_experts_per_tok": 9}, {}, "num_experts_per_tok"),
}


@pytest.mark.parametrize(("family", "text", "vision", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_honoured_is_refused(family, text, vision, says) -> None:
    config = raw_config(family)
    text_of(config).update(text)
    config["vision_config"].update(vision)
    with pytest.raises(ConfigError) as error:
        read_config(config)
    assert says in str(error.value)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "bitsandbytes"])
@pytest.mark.parametrize("where", ["top", "text_config"])
def test_quantised_models_are_refused_with_what_to_do(method, where) -> None:
    config = raw_config("qwen3_vl")
    (config if where == "top" else config[where])["quantization_config"] = {"quant_method": method, "bits": 4}
    with pytest.raises(ConfigError, match=rf"quantised \({method}\).*unquantised release"):
        read_config(config)


def test_windows_that_are_switched_off_or_reach_no_layer_change_nothing() -> None:
    config = raw_config("qwen2_vl")
    plain = read_config(config)
    assert read_config(config | {"use_sliding_window": True, "max_window_layers": 3}) == plain
    assert read_config(config | {"use_sliding_window": True, "sliding_window": None}) == plain


def test_unknown_keys_are_named_once() -> None:
    config = raw_config("qwen3_vl")
    config["surprise"] = 1
    config["text_config"]["logit_softcap"] = 30.0
    config["text_config"]["rope_scaling"]["factor"] = 2.0
    config["vision_config"]["registers"] = 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_config(config)
    assert len(caught) == 1
    for name in ("surprise", "text_config.logit_softcap", "text_config.rope_scaling.factor", "vision_config.registers"):
        assert name in str(caught[0].message)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_of_the_published_files_raise_no_warning(family) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in (family, f"{family}.v5"):
            read_config(raw_config(name))


def test_unnormed_experts_are_warned_of() -> None:
    config = raw_config("qwen3_vl_moe")
    config["text_config"]["norm_topk_prob"] = False
    with pytest.warns(UserWarning, match="norm_topk_prob"):
        read_config(config)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "llama"}, "model_type must be one of qwen2_vl"),
        ({}, "model_type must be one of"),
        ({"model_type": "qwen3_vl", "vision_config": {"depth": 1}}, "text_config is missing"),
        ({"model_type": "qwen2_vl", "hidden_size": 32}, "vision_config is missing"),
        ({"model_type": "qwen3_vl", "vision_config": 3}, "vision_config must be a mapping"),
    ],
)
def test_files_of_other_models(config, says) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(config)


def test_folders_files_and_what_cannot_be_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw_config("qwen3_vl")))
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == read_config(raw_config("qwen3_vl"))
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="must hold a mapping"):
        read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"must have a config\.json"):
        read_config(tmp_path)
