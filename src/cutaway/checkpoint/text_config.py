"""The text half of a `config.json`, every spelling of it, read into `TextConfig`.

It knows rotary settings in three spellings, layers of several types and mixtures. It does not know files or vision.
"""

from __future__ import annotations

import warnings

from cutaway.checkpoint.config_section import Section
from cutaway.checkpoint.families import LINEAR, ROPE_FRACTION, ROPE_SECTIONS, TEXT, generation
from cutaway.config import Experts, LinearAttention, Rope, TextConfig
from cutaway.errors import ConfigError

TEXT_KEYS = (
    *TEXT["qwen2_vl"],
    "hidden_act",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
)
"""The keys of the text model that lie at the top of Qwen2-VL's and Qwen2.5-VL's flat files."""


def text_config(family: str, s: Section) -> TextConfig:
    """The text model's sizes and switches. Raises `ConfigError` for what is not implemented."""
    usual, old = TEXT[family], generation(family) == "qwen2"
    hidden, heads = (s.whole(key, usual[key]) for key in ("hidden_size", "num_attention_heads"))
    layers = s.whole("num_hidden_layers", usual["num_hidden_layers"])
    head_dim = _head_dim(family, s, hidden, heads)
    s.only("hidden_act", ["silu"], "this family's text MLP is gated by silu.")
    if not old:
        s.only("attention_bias", [False], "this family's attention has no biases.")
    # A null here stands for "as many as heads"; only an absent key falls back to the class's number.
    kv_heads = heads if s.data.get("num_key_value_heads", 0) is None else usual["num_key_value_heads"]
    return TextConfig(
        vocab_size=s.whole("vocab_size", usual["vocab_size"]),
        hidden_size=hidden,
        # A mixture without dense blocks states no dense width: the experts' stands in, and nothing is built of it.
        intermediate_size=s.whole(
            "intermediate_size", usual.get("intermediate_size", usual.get("moe_intermediate_size"))
        ),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=s.whole("num_key_value_heads", kv_heads),
        head_dim=head_dim,
        norm_eps=s.number("rms_norm_eps", usual["rms_norm_eps"]),
        max_positions=s.whole("max_position_embeddings", usual["max_position_embeddings"]),
        rope=_rope(family, s, head_dim),
        layer_types=_layer_types(family, s, layers),
        mlp_types=_mlp_types(family, s, layers),
        qkv_bias=old,
        qk_norm=not old,
        output_gate=generation(family) == "qwen3_5",
        centred_norms=generation(family) == "qwen3_5",
        experts=_experts(family, s),
        linear=_linear(family, s),
    )


def _head_dim(family: str, s: Section, hidden: int, heads: int) -> int:
    even = hidden // heads
    if generation(family) == "qwen2":
        s.only("head_dim", [even], "this family's heads split the hidden size evenly.")
        if hidden % heads:
            raise ConfigError(f"{s.address('hidden_size')} {hidden} must be a multiple of the {heads} heads.")
        return even
    return s.whole("head_dim", TEXT[family].get("head_dim", even))


def _rope(family: str, s: Section, head_dim: int) -> Rope:
    series = generation(family)
    # The reference takes the older spelling when both are there.
    older, newer = s.section("rope_scaling"), s.section("rope_parameters")
    rope = older or newer or Section({}, s.address("rope_parameters"))
    if older and newer:
        newer.passed_over(list(newer.data))
    for key in ("rope_type", "type"):
        why = "frequencies are not rescaled here. Remove the rescaling to work within the trained positions."
        rope.only(key, ["default", "mrope"], why)
    interleaved = series != "qwen2"
    rope.only("mrope_interleaved", [interleaved], f"{family} was trained with this order of rotary frequencies.")
    rope.passed_over(["original_max_position_embeddings"])
    fraction = rope.number("partial_rotary_factor", s.number("partial_rotary_factor", ROPE_FRACTION[series]))
    if fraction > 1 or (fraction != 1 and series != "qwen3_5"):
        raise ConfigError(f"{rope.address('partial_rotary_factor')} is {fraction:g}, and {family} rotates whole heads.")
    sections = rope.wholes("mrope_section", ROPE_SECTIONS[series], length=3)
    if sum(sections) != int(head_dim * fraction) // 2:
        raise ConfigError(
            f"{rope.address('mrope_section')} {list(sections)} must add up to the {int(head_dim * fraction) // 2} "
            f"rotary frequencies of a head (head_dim {head_dim} x {fraction:g} / 2), not to {sum(sections)}."
        )
    theta = rope.number("rope_theta", s.number("rope_theta", TEXT[family]["rope_theta"]))
    return Rope(theta, (sections[0], sections[1], sections[2]), interleaved, fraction)


def _layer_types(family: str, s: Section, layers: int) -> tuple[str, ...]:
    linear = generation(family) == "qwen3_5"
    every = s.whole("full_attention_interval", 4) if linear else 1
    derived = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    windows = _windows(family, s)
    types = s.raw("layer_types", None)
    if types is None:
        if windows and s.whole("max_window_layers", 80, least=0) < layers:
            raise ConfigError(
                f"{s.address('use_sliding_window')} is true, and text attention over a sliding window is not "
                f"implemented. Set it to false to attend over the whole sequence."
            )
        return tuple(derived)
    allowed = {"full_attention", "linear_attention"} if linear else {"full_attention"}
    if not isinstance(types, list) or not set(types) <= allowed or len(types) != layers:
        raise ConfigError(
            f"{s.address('layer_types')} must have {layers} entries, each {' or '.join(sorted(allowed))} on {family}, "
            f"not {types!r}: other kinds of attention are not implemented."
        )
    return tuple(types)


def _windows(family: str, s: Section) -> bool:
    """Whether the file asks for sliding windows; what is only stated and switched off does not count."""
    s.passed_over(["sliding_window", "max_window_layers"])
    on = s.flag("use_sliding_window", False)
    if generation(family) == "qwen2":
        return on and s.has("sliding_window")
    if on or (s.has("sliding_window") and "use_sliding_window" not in s.data):
        raise ConfigError(
            f"{s.address('sliding_window')} is on, and {family} has no sliding windows in its text model. Set it to null "
            f"to attend over the whole sequence."
        )
    return False


def _mlp_types(family: str, s: Section, layers: int) -> tuple[str, ...]:
    if family == "qwen3_vl_moe":  # a mixture unless the block is listed, and only in every n-th block
        listed = set(s.wholes("mlp_only_layers", ()))
        step = s.whole("decoder_sparse_step", 1)
        return tuple("dense" if i in listed or (i + 1) % step else "experts" for i in range(layers))
    s.only("mlp_only_layers", [[]], f"{family} has the same kind of MLP in every block.")
    s.only("decoder_sparse_step", [1], f"{family} has the same kind of MLP in every block.")
    return ("experts" if family == "qwen3_5_moe" else "dense",) * layers


def _experts(family: str, s: Section) -> Experts | None:
    if not family.endswith("moe"):
        return None
    usual = TEXT[family]
    count = s.whole("num_experts", s.whole("num_local_experts", usual["num_experts"]))
    chosen = s.whole("num_experts_per_tok", usual["num_experts_per_tok"])
    if chosen > count:
        raise ConfigError(f"{s.address('num_experts_per_tok')} {chosen} is more than the {count} experts there are.")
    if not s.flag("norm_topk_prob", True):
        warnings.warn(
            f"{s.address('norm_topk_prob')} is false; the experts' weights of this family add up to one all the same.",
            stacklevel=2,
        )
    shared = usual.get("shared_expert_intermediate_size")
    return Experts(
        count=count,
        chosen=chosen,
        intermediate_size=s.whole("moe_intermediate_size", usual["moe_intermediate_size"]),
        shared_intermediate_size=s.whole("shared_expert_intermediate_size", shared) if shared else None,
    )


def _linear(family: str, s: Section) -> LinearAttention | None:
    if generation(family) != "qwen3_5":
        return None
    s.only("attn_output_gate", [True], f"{family}'s attention always has the gate in its q_proj.")
    s.only("mamba_ssm_dtype", ["float32"], "the recurrent state is kept in float32.")
    keys, values, key_dim, value_dim, kernel = (s.whole(key, usual) for key, usual in LINEAR.items())
    if values % keys:
        raise ConfigError(f"{s.address('linear_num_value_heads')} {values} must be a multiple of the {keys} key heads.")
    return LinearAttention(keys, values, key_dim, value_dim, kernel)
