"""The text decoder of every family: one stack of blocks with switches for what differs.

It knows embeddings, positions and the terms that DeepStack adds between its blocks. It does not know images.
"""

from __future__ import annotations

from torch import Tensor

from cutaway.config import TextConfig
from cutaway.model.attention import TextAttention, attention_mask
from cutaway.model.cache import Cache
from cutaway.model.delta_net import GatedDeltaNet
from cutaway.model.experts import MixtureMLP
from cutaway.model.layers import Embedding, GatedMLP, RMSNorm, Stack
from cutaway.model.merge import add_at
from cutaway.model.rope import text_tables
from cutaway.named import Named, Value


class TextBlock(Named):
    """One decoder block::

        h   = x + self_attn(input_layernorm(x))
        out = h + mlp(post_attention_layernorm(h))

    On Qwen3.5 most blocks have `linear_attn` in place of `self_attn`, on a mixture `mlp` is a router with its experts.
    On Qwen3-VL the text model then adds `deepstack_output` at the visual tokens, after the first blocks.
    """

    layer_output = Value("batch seq hidden", "the stream after the block, before any DeepStack term")
    deepstack_output = Value(
        "image_tokens hidden",
        "the DeepStack term that is added at the visual tokens after this block, in sequence order",
        why_absent="The prompt has no image or video.",
    )

    def __init__(self, config: TextConfig, index: int, implementation: str, deepstack_layers: int) -> None:
        super().__init__()
        self.kind = config.layer_types[index]
        if self.kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(config, index)
        else:
            self.self_attn = TextAttention(config, index, implementation)
        self._say_what_lacks(config)
        mixture = config.mlp_types[index] == "experts"
        self.mlp = MixtureMLP(config) if mixture else GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, centred=config.centred_norms)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps, centred=config.centred_norms)
        if deepstack_layers == 0:
            self.mark_unavailable(
                "deepstack_output", "this family has no DeepStack; images enter through image_features alone."
            )
        elif index >= deepstack_layers:
            self.mark_unavailable(
                "deepstack_output", f"DeepStack terms are added after layers 0 to {deepstack_layers - 1} only."
            )

    def _say_what_lacks(self, config: TextConfig) -> None:
        full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
        linear = [i for i, kind in enumerate(config.layer_types) if kind == "linear_attention"]
        if self.kind == "linear_attention":
            self.mark_unavailable(
                "self_attn", f"this block has linear attention, `linear_attn`; `self_attn` is in blocks {full}."
            )
        elif linear:
            self.mark_unavailable(
                "linear_attn", f"this block has full attention, `self_attn`; `linear_attn` is in blocks {linear}."
            )
        else:
            self.mark_unavailable("linear_attn", "every block of this family has full attention, `self_attn`.")

    def forward(
        self, x: Tensor, *, rope: tuple[Tensor, Tensor], mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """[batch seq hidden] to the same shape; `mask` as the block's kind of attention takes it."""
        normed = self.input_layernorm(x)
        if self.kind == "linear_attention":
            x = x + self.linear_attn(normed, mask=mask, cache=cache)
        else:
            x = x + self.self_attn(normed, rope=rope, mask=mask, cache=cache)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return self.value("layer_output", x)


class TextModel(Named):
    """Embedding table, blocks and final norm. The embedding lookup itself is called by the flow in `vlm`."""

    def __init__(self, config: TextConfig, implementation: str, deepstack_layers: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = Stack(TextBlock(config, i, implementation, deepstack_layers) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, centred=config.centred_norms)

    def forward(
        self,
        x: Tensor,
        *,
        position_ids: Tensor,
        attention_mask: Tensor,
        visual_mask: Tensor | None = None,
        deepstack: tuple[Tensor, ...] = (),
        cache: Cache | None = None,
        first: int = 0,
    ) -> Tensor:
        """The normed stream [batch seq hidden] of the embeddings `x` [batch seq hidden].

        `position_ids` [3 batch seq]; `attention_mask` [batch past+seq]; `deepstack` terms [visual_tokens hidden] for
        the first blocks, one each, at the tokens of `visual_mask` [batch seq]. With `first` the blocks before that one
        are left out, and `x` is the stream that enters it.
        """
        rope = text_tables(position_ids, self.config.rope, self.config.head_dim)
        masks = self._masks(attention_mask, x.shape[1])
        for index, block in enumerate(self.layers):
            if index < first:
                continue
            x = block(x, rope=rope, mask=masks[block.kind], cache=cache)
            if visual_mask is not None and index < len(deepstack):
                x = add_at(x, visual_mask, block.value("deepstack_output", deepstack[index]))
        if cache is not None:
            cache.advance(x.shape[1])
        return self.norm(x)

    def _masks(self, mask: Tensor, seq: int) -> dict[str, Tensor | None]:
        """What each kind of block needs of the mask [batch past+seq]; None where nothing is padded."""
        masks = {"full_attention": attention_mask(mask, seq)}
        if self.config.linear is not None:
            tokens = mask[:, -seq:].bool()
            masks["linear_attention"] = None if bool(tokens.all()) else tokens
        return masks
