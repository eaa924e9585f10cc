"""Attention of the text decoder: the kernels, fused and step by step, the mask, and the module that uses them.

A fused kernel has no pattern. The block whose scores or probabilities are asked for takes the step-by-step path for
that call; every other block stays fused. This module does not know who asks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.config import TextConfig
from cutaway.model import varlen
from cutaway.model.cache import Cache
from cutaway.model.layers import Linear, RMSNorm, wide_softmax
from cutaway.model.rope import rotate
from cutaway.named import Named, Value

IMPLEMENTATIONS = ("sdpa", "eager", "varlen")


def recorded(x: Tensor) -> bool:
    """Whether what is done to `x` is being recorded as a CUDA graph, in which nothing can be looked at."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def attention_mask(mask: Tensor, seq: int) -> Tensor | None:
    """[batch 1 seq keys] bool, true where a query may look; None where plain causality says it all.

    `mask` is [batch keys] with 0 at padding; the `seq` queries are its last columns.
    """
    keys = mask.shape[1]
    if (seq == keys or seq == 1) and not recorded(mask) and bool(mask.all()):
        return None
    causal = torch.ones(seq, keys, dtype=torch.bool, device=mask.device).tril(keys - seq)
    return causal & mask[:, None, None, :].bool()


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """[batch kv_heads seq head_dim] to [batch kv_heads*times seq head_dim], each head `times` times in a row."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scaled dot-product attention [batch heads seq head_dim] through torch's kernel; no mask means causal."""
    groups = int(queries.shape[1] // keys.shape[1])  # numbers, where a trace would go on with tensors
    causal = bool(mask is None and queries.shape[2] > 1)
    if groups > 1 and mask is not None and queries.shape[2] == 1:  # one query: its group's heads become its rows
        batch, heads, _, width = queries.shape
        queries = queries.reshape(batch, heads // groups, groups, width)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        return out.reshape(batch, heads, 1, width)
    if groups > 1 and mask is not None:
        keys, values, groups = repeat_heads(keys, groups), repeat_heads(values, groups), 1
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups > 1
    )


def masked_scores(queries: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scaled scores [batch heads query key] with the dtype's lowest number where a query may not look."""
    keys = repeat_heads(keys, queries.shape[1] // keys.shape[1])
    scores = torch.matmul(queries, keys.transpose(2, 3)) * scale
    unseen = _unseen(mask, queries.shape[2], keys.shape[2], scores.device)
    return scores if unseen is None else scores.masked_fill(unseen, torch.finfo(scores.dtype).min)


def _unseen(mask: Tensor | None, seq: int, keys: int, device: torch.device) -> Tensor | None:
    """[batch 1 query key] or [query key] bool: where a query may not look; None where it may look everywhere."""
    if mask is not None:
        return ~mask
    return torch.ones(seq, keys, dtype=torch.bool, device=device).triu(1) if seq > 1 else None


def probabilities(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Softmax over the keys in float32, rounded to `dtype`."""
    return wide_softmax(scores).to(dtype)


def pattern(queries: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The attention pattern, head by head, so that memory holds one pattern and the scores of one head.

    Each head's scores take the place of the last one's: at thousands of tokens fresh memory for each doubles the time.
    """
    casting = torch.is_autocast_enabled(queries.device.type)  # which knows nothing of results with a place of their own
    if torch.is_grad_enabled() or casting or queries.dtype != torch.float32:
        return probabilities(masked_scores(queries, keys, mask, scale), queries.dtype)
    batch, heads, seq, _ = queries.shape
    groups = heads // keys.shape[1]
    unseen = _unseen(mask, seq, keys.shape[2], queries.device)
    out = queries.new_empty(batch, heads, seq, keys.shape[2])
    scores = queries.new_empty(batch, 1, seq, keys.shape[2])
    for head in range(heads):
        torch.matmul(queries[:, head, None], keys[:, head // groups, None].transpose(2, 3), out=scores)
        scores.mul_(scale)
        if unseen is not None:
            scores.masked_fill_(unseen, torch.finfo(scores.dtype).min)
        torch.softmax(scores, -1, out=out[:, head, None])
    return out


class TextAttention(Named):
    """Causal self-attention with grouped keys and values, per-head norms and M-RoPE.

    Flow: q, k, v -> q_norm, k_norm -> rotary -> cache -> attention -> (gate) -> o_proj.
    """

    attention_queries = Value("batch heads seq head_dim", "queries after norm and rotary")
    attention_keys = Value("batch kv_heads key head_dim", "keys after norm and rotary, as cached, past tokens included")
    attention_values = Value("batch kv_heads key head_dim", "values as cached, past tokens included")
    attention_scores = Value(
        "batch heads query key", "scaled scores with the mask applied, before the softmax", computed=True
    )
    attention_probabilities = Value("batch heads query key", "the attention pattern", computed=True)
    attention_head_outputs = Value("batch seq heads head_dim", "each head's weighted values, before `o_proj`")
    attention_gate = Value("batch seq heads head_dim", "the sigmoid gate on the heads' outputs (Qwen3.5)")
    attention_output = Value("batch seq hidden", "what attention adds to the stream")

    def __init__(self, config: TextConfig, index: int, implementation: str) -> None:
        super().__init__()
        self.index, self.implementation = index, implementation
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale, self.gated = config.head_dim**-0.5, config.output_gate
        width, bias = config.hidden_size, config.qkv_bias
        self.q_proj = Linear(width, config.num_heads * config.head_dim * (2 if self.gated else 1), bias=bias)
        self.k_proj = Linear(width, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = Linear(width, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = Linear(config.num_heads * config.head_dim, width, bias=False)
        self.normed = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps, centred=config.centred_norms)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps, centred=config.centred_norms)
        if not self.gated:
            self.mark_unavailable(
                "attention_gate", "this family's attention has no output gate; Qwen3.5's full attention has one."
            )

    def forward(
        self, x: Tensor, *, rope: tuple[Tensor, Tensor], mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """[batch seq hidden] to the same shape."""
        queries, keys, values, gate = self._project(x)
        queries = self.value("attention_queries", rotate(queries, *rope))
        keys = rotate(keys, *rope)
        if cache is not None:
            keys, values = cache.update(self.index, keys, values)
        past = keys, values
        keys, values = self.value("attention_keys", keys), self.value("attention_values", values)
        if cache is not None and (keys is not past[0] or values is not past[1]):
            cache.replace(self.index, keys, values)  # an assigned value stays in the cache as an in-place edit does
        heads = self._attend(queries, keys, values, mask).transpose(1, 2)  # [batch seq heads head_dim]
        heads = self.value("attention_head_outputs", heads)
        if gate is not None:
            heads = heads * self.value("attention_gate", torch.sigmoid(gate))
        return self.value("attention_output", self.o_proj(heads.flatten(2)))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values [batch heads seq head_dim], normed; and the gate [batch seq heads head_dim]."""
        queries, gate = self.q_proj(x).unflatten(-1, (self.num_heads, -1)), None  # [batch seq heads head_dim]
        if self.gated:  # per head [query | gate]
            queries, gate = queries.chunk(2, -1)
        keys = self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1))
        values = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1))
        if self.normed:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), gate

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        scores_asked = self.wants("attention_scores")
        if self.implementation == "varlen":
            varlen.check(queries)
        if self.implementation != "eager" and not scores_asked and not self.wants("attention_probabilities"):
            if self.implementation == "varlen" and mask is not None and queries.shape[2] == mask.shape[3] > 1:
                return varlen.unpadded(queries, keys, values, mask)
            return fused(queries, keys, values, mask, self.scale)
        if scores_asked or self.implementation == "eager":
            scores = self.value("attention_scores", masked_scores(queries, keys, mask, self.scale))
            weights = probabilities(scores, queries.dtype)
        else:
            weights = pattern(queries, keys, mask, self.scale)
        weights = self.value("attention_probabilities", weights)
        return torch.matmul(weights, repeat_heads(values, self.num_heads // self.num_kv_heads))
