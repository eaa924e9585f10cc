"""The frozen dataclasses that describe a model: sizes and switches, under one name each, whatever a file calls them.

`cutaway.checkpoint.config_reader` fills them from a `config.json`; models, inputs and analyses read them. They hold
numbers and switches and nothing else, and know neither files nor families: whatever a family decides is a field here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rope:
    """The text model's multimodal rotary embedding (M-RoPE).

    - `theta`: base of the frequencies.
    - `sections`: how many of the rotary frequencies follow the time, height and width position.
    - `interleaved`: frequencies go t h w t h w … (Qwen3-VL on) instead of in three bands (Qwen2-VL, Qwen2.5-VL).
    - `fraction`: part of a head's dimensions that is rotated (0.25 on Qwen3.5).
    """

    theta: float
    sections: tuple[int, int, int]
    interleaved: bool
    fraction: float = 1.0


@dataclass(frozen=True)
class MixtureSizes:
    """A mixture's sizes: `count` experts of which `chosen` act on a token, each `intermediate_size` wide."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int | None = None


@dataclass(frozen=True)
class LinearAttention:
    """Sizes of the gated delta net (Qwen3.5): heads, dimensions per head, width of the causal convolution."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int


@dataclass(frozen=True)
class TextConfig:
    """One text decoder. `layer_types` and `mlp_types` have an entry per layer.

    - `layer_types`: ``"full_attention"`` or ``"linear_attention"``.
    - `mlp_types`: ``"dense"`` or ``"experts"``.
    - `qkv_bias`, `qk_norm`, `output_gate`: biases on q, k, v (2-VL, 2.5-VL); RMSNorm per head on q and k (3-VL on); a
      sigmoid gate on the attention's output, packed into `q_proj` (3.5).
    - `centred_norms`: norm weights are stored as an offset from one (3.5).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    rope: Rope
    layer_types: tuple[str, ...]
    mlp_types: tuple[str, ...]
    qkv_bias: bool = False
    qk_norm: bool = True
    output_gate: bool = False
    centred_norms: bool = False
    experts: MixtureSizes | None = None
    linear: LinearAttention | None = None


@dataclass(frozen=True)
class VisionConfig:
    """One vision encoder.

    - `encoder`: which of `cutaway.model.vision`'s encoders it is: ``"qwen2"``, ``"qwen2_5"`` or ``"qwen3"``.
    - `hidden_size`: width of the encoder; `out_hidden_size`: the text model's width, which the merger maps to.
    - `num_positions`: entries of the learned position table (a square), None where positions are rotary alone.
    - `deepstack_indexes`: layers whose output also goes to the text model, the k-th through the k-th DeepStack merger.
    - `window_size`: side of an attention window in pixels (2.5-VL), None where every layer sees a whole frame;
      `full_attention_indexes`: layers that see a whole frame all the same.
    - `tokens_per_second`: positions per second of a video (2.5-VL), None where time counts grids.
    """

    encoder: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch_size: int
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    in_channels: int = 3
    hidden_act: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    num_positions: int | None = None
    deepstack_indexes: tuple[int, ...] = ()
    window_size: int | None = None
    full_attention_indexes: tuple[int, ...] = ()
    tokens_per_second: float | None = None

    @property
    def head_dim(self) -> int:
        """Dimensions of one attention head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class Config:
    """A whole model.

    - `family`: the `model_type` of its files: qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5 or qwen3_5_moe. It
      names the model; what differs between families is in the other fields.
    - `timestamps`: a video's prompt has a time stamp per temporal grid, each grid placed as an image (3-VL, 3.5).
    - `whole_video`: the pixel limits of a video are for all its frames together, not for each (3-VL, 3.5).
    - `split_marks`: the tokenizer's split pattern counts combining marks as letters (3.5); it is read only where the
      folder has no tokenizer.json.
    - `dtype`: the dtype that the checkpoint states (a torch name such as ``"bfloat16"``), None when it states none.
    """

    family: str
    text: TextConfig
    vision: VisionConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    tie_word_embeddings: bool
    timestamps: bool
    whole_video: bool = True
    split_marks: bool = False
    dtype: str | None = None
