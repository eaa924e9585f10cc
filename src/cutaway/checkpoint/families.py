"""The one table of model families: whatever a family decides is read from its entry, here and nowhere else.

To add a family, add an entry to `FAMILIES`. The config readers turn an entry and a `config.json` into the switches of
`cutaway.config`, from which models and inputs are built; these know no families. The sizes are the defaults of
transformers' config classes, since files that it saved leave out what equals them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Family:
    """What distinguishes one family of checkpoints from the others.

    - `model_type`: the name in `config.json`; `title`: the name in prose.
    - `text`, `vision`, `linear`: keys of the file's sections, with the values that stand for absent ones. Some keys of
      `vision` switch a part on: `window_size` attention windows, `num_position_embeddings` learned positions,
      `deepstack_visual_indexes` DeepStack, `mlp_ratio` an MLP width given by a ratio. `linear` has the sizes of the
      gated delta net, None where every layer has full attention.
    - `vision_start_token_id` …: ids of the control tokens around and for images and videos.
    - `flat`: published files have the text model's keys at the top, and `tie_word_embeddings` counts in either place.
    - `text_prefix`, `visual_prefix`: how names of published weights begin.
    - `experts_transposed`: published files have fused experts as [experts in out].
    - `mixture`: ``"every layer"``, or ``"listed layers"`` where `mlp_only_layers` and `decoder_sparse_step` choose;
      None for dense MLPs.
    - `rope_sections`, `rope_interleaved`, `rope_fraction`: as in `cutaway.config.Rope`; `partial_rotary`: a file may
      give another fraction.
    - `even_heads`: a head has `hidden_size / num_attention_heads` dimensions, whatever a file says.
    - `window_switch`: `sliding_window` counts only with `use_sliding_window`.
    - `qkv_bias`, `qk_norm`, `output_gate`, `centred_norms`: as in `cutaway.config.TextConfig`.
    - `encoder`, `vision_act`: the vision encoder and the activation of its layers; `vision_width_key`: the key of its
      width in the file.
    - `timestamps`, `whole_video`, `split_marks`: as in `cutaway.config.Config`.
    """

    model_type: str
    title: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    linear: Mapping[str, int] | None = None
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    image_token_id: int = 151655
    video_token_id: int = 151656
    flat: bool = False
    text_prefix: str = "model.language_model."
    visual_prefix: str = "model.visual."
    experts_transposed: bool = False
    mixture: Literal["every layer", "listed layers"] | None = None
    rope_sections: tuple[int, int, int]
    rope_interleaved: bool = True
    rope_fraction: float = 1.0
    partial_rotary: bool = False
    even_heads: bool = False
    window_switch: bool = False
    qkv_bias: bool = False
    qk_norm: bool = True
    output_gate: bool = False
    centred_norms: bool = False
    encoder: Literal["qwen2", "qwen2_5", "qwen3"] = "qwen3"
    vision_act: str = "gelu_pytorch_tanh"
    vision_width_key: str = "hidden_size"
    timestamps: bool = True
    whole_video: bool = True
    split_marks: bool = False

    @property
    def tokens(self) -> dict[str, int]:
        """The ids of the control tokens by their keys in `config.json`."""
        names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
        return {name: getattr(self, name) for name in names}


_QWEN2_TEXT = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
}

_QWEN2: dict[str, Any] = {
    "text": _QWEN2_TEXT,
    "flat": True,
    "text_prefix": "model.",
    "visual_prefix": "visual.",
    "rope_sections": (16, 24, 24),
    "rope_interleaved": False,
    "even_heads": True,
    "window_switch": True,
    "qkv_bias": True,
    "qk_norm": False,
    "timestamps": False,
    "whole_video": False,
}
"""What Qwen2-VL and Qwen2.5-VL share."""

_QWEN3_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "patch_size": 16,
    "num_position_embeddings": 2304,
}

_QWEN3_VL: dict[str, Any] = {
    "vision": {**_QWEN3_VISION, "deepstack_visual_indexes": (8, 16, 24)},
    "rope_sections": (24, 20, 20),
}
"""What Qwen3-VL and its mixture share."""

_QWEN3_5: dict[str, Any] = {
    "vision": _QWEN3_VISION,
    "linear": {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "image_token_id": 248056,
    "video_token_id": 248057,
    "rope_sections": (11, 11, 10),
    "rope_fraction": 0.25,
    "partial_rotary": True,
    "output_gate": True,
    "centred_norms": True,
    "split_marks": True,
}
"""What Qwen3.5 and its mixture share."""

_TABLE = (
    Family(
        model_type="qwen2_vl",
        title="Qwen2-VL",
        vision={
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": 3584,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
        },
        encoder="qwen2",
        vision_act="quick_gelu",
        vision_width_key="embed_dim",  # `hidden_size` of that section is the text model's width
        **_QWEN2,
    ),
    Family(
        model_type="qwen2_5_vl",
        title="Qwen2.5-VL",
        vision={
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
        encoder="qwen2_5",
        vision_act="silu",
        **_QWEN2,
    ),
    Family(
        model_type="qwen3_vl",
        title="Qwen3-VL",
        text={
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "rms_norm_eps": 1e-06,
            "max_position_embeddings": 128000,
            "rope_theta": 500000.0,
        },
        **_QWEN3_VL,
    ),
    Family(
        model_type="qwen3_vl_moe",
        title="Qwen3-VL-MoE",
        text={
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-06,
            "max_position_embeddings": 128000,
            "rope_theta": 500000.0,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
        },
        mixture="listed layers",
        experts_transposed=True,
        **_QWEN3_VL,
    ),
    Family(
        model_type="qwen3_5",
        title="Qwen3.5",
        text={
            "vocab_size": 248320,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-06,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
        },
        **_QWEN3_5,
    ),
    Family(
        model_type="qwen3_5_moe",
        title="Qwen3.5-MoE",
        text={
            "vocab_size": 248320,
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "rms_norm_eps": 1e-06,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        mixture="every layer",
        **_QWEN3_5,
    ),
)

FAMILIES: dict[str, Family] = {family.model_type: family for family in _TABLE}
"""The families by the `model_type` of their files."""
