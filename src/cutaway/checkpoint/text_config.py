"""The text half of a `config.json`, in every spelling of it, read into `TextConfig`.

It knows rotary settings in three spellings, layers of several types and mixtures. What a family decides comes from its
entry in the table. It does not know files or vision.
"""

from __future__ import annotations

import warnings
from typing import Any

from cutaway.checkpoint.config_section import Section
from cutaway.checkpoint.families import Family
from cutaway.config import LinearAttention, MixtureSizes, Rope, TextConfig
from cutaway.errors import ConfigError

MOST_LAYERS = 1000
"""The largest number of layers that is read; the deepest published model has 94."""

_MOST_TOKENS = 2**31


def text_config(family: Family, s: Section) -> TextConfig:
    """Return the text model's sizes and switches. Raises `ConfigError` for what is not implemented."""
    usual = family.text
    hidden, heads = (s.integer(key, usual[key]) for key in ("hidden_size", "num_attention_heads"))
    layers = s.integer("num_hidden_layers", usual["num_hidden_layers"], most=MOST_LAYERS)
    head_dim = _head_dim(family, s, hidden, heads)
    s.require_one_of("hidden_act", ["silu"], "the text MLP is gated by silu.")
    if not family.qkv_bias:
        s.require_one_of("attention_bias", [False], f"the attention of {family.title} has no biases.")
    # A null here stands for "as many as heads"; only an absent key falls back to the class's number.
    kv_heads = heads if s.data.get("num_key_value_heads", 0) is None else usual["num_key_value_heads"]
    return TextConfig(
        vocab_size=s.integer("vocab_size", usual["vocab_size"], most=2**24),
        hidden_size=hidden,
        # A mixture without dense layers states no dense width: the experts' stands in, and nothing is built of it.
        intermediate_size=s.integer(
            "intermediate_size", usual.get("intermediate_size", usual.get("moe_intermediate_size"))
        ),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=s.integer("num_key_value_heads", kv_heads),
        head_dim=head_dim,
        norm_eps=s.number("rms_norm_eps", usual["rms_norm_eps"]),
        max_positions=s.integer("max_position_embeddings", usual["max_position_embeddings"], most=_MOST_TOKENS),
        rope=_rope(family, s, head_dim),
        layer_types=_layer_types(family, s, layers),
        mlp_types=_mlp_types(family, s, layers),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        output_gate=family.output_gate,
        centred_norms=family.centred_norms,
        experts=_experts(family, s),
        linear=_linear(family, s),
    )


def _head_dim(family: Family, s: Section, hidden: int, heads: int) -> int:
    even = hidden // heads
    if not family.even_heads:
        return s.integer("head_dim", family.text.get("head_dim", even))
    s.require_one_of("head_dim", [even], f"the heads of {family.title} split the hidden size evenly.")
    if hidden % heads:
        raise ConfigError(f"{s.address('hidden_size')} must be a multiple of the {heads} heads; got {hidden}.")
    return even


def rotary_section(s: Section) -> Section:
    """Return the rotary settings of a text section; of two spellings the older counts, as in transformers."""
    older, newer = s.section("rope_scaling"), s.section("rope_parameters")
    if older and newer:
        newer.ignore(newer.data)
    return older or newer or Section({}, s.address("rope_parameters"))


def _rope(family: Family, s: Section, head_dim: int) -> Rope:
    rope = rotary_section(s)
    for key in ("rope_type", "type"):
        why = "frequencies are not rescaled. Remove the rescaling to work within the trained positions."
        rope.require_one_of(key, ["default", "mrope"], why)
    interleaved = family.rope_interleaved
    rope.require_one_of("mrope_interleaved", [interleaved], f"{family.title} was trained with this order.")
    rope.ignore(["original_max_position_embeddings"])
    fraction = rope.number("partial_rotary_factor", s.number("partial_rotary_factor", family.rope_fraction))
    if fraction > 1 or (fraction != 1 and not family.partial_rotary):
        raise ConfigError(
            f"{rope.address('partial_rotary_factor')} must be {'at most ' if family.partial_rotary else ''}1, as "
            f"{family.title} rotates {'parts of heads' if family.partial_rotary else 'whole heads'}; got {fraction:g}."
        )
    pairs = int(head_dim * fraction) // 2
    sections = rope.integers("mrope_section", family.rope_sections, length=3)
    if sum(sections) != pairs:
        raise ConfigError(
            f"{rope.address('mrope_section')} must add up to the {pairs} rotary frequencies of a head (head_dim "
            f"{head_dim} x {fraction:g} / 2); got {list(sections)}, which add up to {sum(sections)}."
        )
    theta = rope.number("rope_theta", s.number("rope_theta", family.text["rope_theta"]))
    return Rope(theta, (sections[0], sections[1], sections[2]), interleaved, fraction)


def _layer_types(family: Family, s: Section, layers: int) -> tuple[str, ...]:
    every = s.integer("full_attention_interval", 4) if family.linear else 1
    derived = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    windows = _windows(family, s)
    types: Any = s.raw("layer_types", None)
    if types is None:
        if windows and s.integer("max_window_layers", 80, least=0) < layers:
            raise ConfigError(
                f"{s.address('use_sliding_window')} must be false, as text attention over a sliding window is not "
                f"implemented; got true. Set it to false to attend over the whole sequence."
            )
        return tuple(derived)
    allowed = ("full_attention", "linear_attention") if family.linear else ("full_attention",)
    if not isinstance(types, list) or len(types) != layers or any(kind not in allowed for kind in types):
        raise ConfigError(
            f"{s.address('layer_types')} must have {layers} entries, each {' or '.join(allowed)} on {family.title}: "
            f"other kinds of attention are not implemented. Got {str(types)[:200]}."
        )
    return tuple(types)


def _windows(family: Family, s: Section) -> bool:
    """Return whether the file switches sliding windows on; a size that is only stated does not count."""
    s.ignore(["sliding_window", "max_window_layers"])
    on = s.boolean("use_sliding_window", False)
    if family.window_switch:
        return on and s.has("sliding_window")
    if on or (s.has("sliding_window") and "use_sliding_window" not in s.data):
        raise ConfigError(
            f"{s.address('sliding_window')} must be null, as {family.title} has no sliding windows in its text model; "
            f"got {s.data.get('sliding_window')!r}. Set it to null to attend over the whole sequence."
        )
    return False


def _mlp_types(family: Family, s: Section, layers: int) -> tuple[str, ...]:
    if family.mixture == "listed layers":  # a mixture unless the layer is listed, and only in every n-th layer
        listed = set(s.integers("mlp_only_layers", ()))
        step = s.integer("decoder_sparse_step", 1)
        return tuple("dense" if i in listed or (i + 1) % step else "experts" for i in range(layers))
    why = f"{family.title} has the same kind of MLP in every layer."
    s.require_one_of("mlp_only_layers", [[]], why)
    s.require_one_of("decoder_sparse_step", [1], why)
    return ("experts" if family.mixture else "dense",) * layers


def _experts(family: Family, s: Section) -> MixtureSizes | None:
    if family.mixture is None:
        return None
    usual = family.text
    count = s.integer("num_experts", s.integer("num_local_experts", usual["num_experts"], most=2**16), most=2**16)
    selection = s.integer("num_experts_per_tok", usual["num_experts_per_tok"])
    if selection > count:
        raise ConfigError(f"{s.address('num_experts_per_tok')} must be at most the {count} experts; got {selection}.")
    if not s.boolean("norm_topk_prob", True):
        warnings.warn(
            f"{s.address('norm_topk_prob')} is false, but the experts' weights of {family.title} always add up to one.",
            stacklevel=2,
        )
    shared = usual.get("shared_expert_intermediate_size")
    return MixtureSizes(
        count=count,
        per_token=selection,
        intermediate_size=s.integer("moe_intermediate_size", usual["moe_intermediate_size"]),
        shared_intermediate_size=s.integer("shared_expert_intermediate_size", shared) if shared else None,
    )


def _linear(family: Family, s: Section) -> LinearAttention | None:
    if family.linear is None:
        return None
    s.require_one_of("attn_output_gate", [True], f"the q_proj of {family.title} always has the gate in it.")
    s.require_one_of("mamba_ssm_dtype", ["float32"], "the recurrent state is kept in float32.")
    keys, values, key_dim, value_dim, kernel = (s.integer(key, usual) for key, usual in family.linear.items())
    if values % keys:
        raise ConfigError(
            f"{s.address('linear_num_value_heads')} must be a multiple of the {keys} key heads; got {values}."
        )
    return LinearAttention(keys, values, key_dim, value_dim, kernel)
