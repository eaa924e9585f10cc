"""Gated DeltaNet, the linear attention of Qwen3.5: a short causal convolution, the delta rule, a gated norm.

What it keeps of the past is one state per head and the convolution's last inputs, whatever the length. It knows padding
and the cache; the rule itself is in `delta_rule`.

Source: Gated DeltaNet (Yang et al. 2024); the reference's module `qwen3_5`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutaway.config import TextConfig
from cutaway.errors import InputError
from cutaway.model.cache import Cache
from cutaway.model.delta_rule import CHUNK, fused, fused_kernel, in_chunks, one_token
from cutaway.model.layers import Linear, widened
from cutaway.named import Named, Value, ValueAt
from cutaway.observe import observer

RuleInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Queries, keys, values, decays and betas, as the rule takes them: the sequence is the third axis."""


def unit_length(x: Tensor) -> Tensor:
    """`x`, widened to float32, scaled to length one along its last axis."""
    x = widened(x)
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class CausalConv(Named):
    """A depthwise convolution over the sequence, under its published name and shape [channels 1 kernel]."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        nn.init.uniform_(self.weight, -(kernel**-0.5), kernel**-0.5)

    def forward(self, series: Tensor) -> Tensor:
        """[batch channels kernel-1+seq] to [batch channels seq]."""
        return F.conv1d(series, self.weight, groups=self.weight.shape[0])


class GatedNorm(Named):
    """Root-mean-square norm over a head, then the gate: ``norm(x) * silu(gate)``. Weights are stored as they are."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """[… width] and a gate of that shape to the same shape."""
        normed = self.weight * F.rms_norm(widened(x), self.weight.shape, None, self.eps).to(x.dtype)
        return (normed * F.silu(widened(gate))).to(x.dtype)


class GatedDeltaNet(Named):
    """Linear attention with a state that is written by the delta rule::

    x -> in_proj_qkv -> conv1d, silu -> q, k, v -> delta rule (decays, betas) -> norm, gated by z -> out_proj
    x -> in_proj_a -> decays;  in_proj_b -> betas;  in_proj_z -> z
    """

    attention_queries = Value(
        "batch key_heads seq key_dim", "queries as the rule reads them, unit length, scaled", dtype="float32"
    )
    attention_keys = Value(
        "batch key_heads seq key_dim", "keys as the rule reads them, of unit length", dtype="float32"
    )
    attention_values = Value(
        "batch heads seq value_dim", "values; each key head serves a group of value heads", dtype="float32"
    )
    decays = Value(
        "batch heads seq", "log of the factor by which a token lets the state decay: 0 keeps it", dtype="float32"
    )
    betas = Value("batch heads seq", "how much of its correction a token writes, 0 to 1", dtype="float32")
    state_input = Value(
        "batch heads key_dim value_dim", "the state before the first token: zeros, or the cache's", dtype="float32"
    )
    states = Value(
        "batch seq heads key_dim value_dim",
        "the state after every token; asking for it makes the block go token by token. `state_after(t)` can be edited",
        computed=True,
        writable=False,
        dtype="float32",
    )
    state_after = ValueAt(
        "batch heads key_dim value_dim",
        "the state after token t of this call; later tokens see an edit",
        dtype="float32",
    )
    attention_head_outputs = Value("batch seq heads value_dim", "what each head's queries read, before norm and gate")
    state_output = Value(
        "batch heads key_dim value_dim",
        "the state after the last token, as cached: an edit acts on the next call",
        dtype="float32",
    )
    attention_output = Value("batch seq hidden", "what the linear attention adds to the stream")

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        if config.linear is None:
            raise ValueError("a block of this config has linear attention; the config says no sizes of it")
        sizes, width = config.linear, config.hidden_size
        self.index, self.key_heads, self.num_heads = index, sizes.key_heads, sizes.value_heads
        self.key_dim, self.value_dim = sizes.key_head_dim, sizes.value_head_dim
        self.parts = (self.key_heads * self.key_dim,) * 2 + (self.num_heads * self.value_dim,)
        self.in_proj_qkv = Linear(width, sum(self.parts), bias=False)
        self.in_proj_z = Linear(width, self.parts[2], bias=False)
        self.in_proj_b = Linear(width, self.num_heads, bias=False)
        self.in_proj_a = Linear(width, self.num_heads, bias=False)
        self.conv1d = CausalConv(sum(self.parts), sizes.conv_kernel)
        self.A_log = nn.Parameter(torch.zeros(self.num_heads))
        self.dt_bias = nn.Parameter(torch.ones(self.num_heads))
        self.norm = GatedNorm(self.value_dim, config.norm_eps)
        self.out_proj = Linear(self.parts[2], width, bias=False)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """[batch seq hidden] to the same shape; `mask` [batch seq] bool is false at padding, which leaves no trace."""
        if mask is not None:
            x = x * mask[..., None]
        window, state = self._past(cache, x.shape[0])
        mixed, window = self._convolve(self.in_proj_qkv(x), window, mask)
        queries, keys, values = self._heads(mixed)
        decays, betas = self._gates(x, mask)
        if state is None:
            state = values.new_zeros(x.shape[0], self.num_heads, self.key_dim, self.value_dim)
        state = self.value("state_input", state)
        heads, state = self._rule((queries, keys, values, decays, betas), state, x.dtype)
        heads = self.value("attention_head_outputs", heads.transpose(1, 2).to(x.dtype))
        state = self.value("state_output", state)
        if cache is not None:
            cache.set_state(self.index, (window, state))
        gate = self.in_proj_z(x).unflatten(-1, (self.num_heads, self.value_dim))
        return self.value("attention_output", self.out_proj(self.norm(heads, gate).flatten(2)))

    def _past(self, cache: Cache | None, batch: int) -> tuple[Tensor | None, Tensor | None]:
        """The convolution's window and the state that the cache has; what one row left serves every row of a batch."""
        past = None if cache is None else cache.state(self.index)
        if past is None:
            return None, None
        window, state = past
        if window.shape[0] not in (1, batch):
            raise InputError(
                f"A cache goes on with the batch it began with: it holds states of {window.shape[0]} rows, the batch "
                f"has {batch}. Use a new cache, or `select` the rows that go on."
            )
        window, state = window.expand(batch, -1, -1), state.expand(batch, -1, -1, -1)
        # an edit in place must not reach back into the cache of a forward that is dropped
        return window, state if observer.get() is None else state.clone()

    def _convolve(self, mixed: Tensor, window: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The convolved channels [batch channels seq], and the last inputs that are no padding, for the next call.

        Under a mask the tokens are packed for the convolution, so that each follows the token before it, not padding.
        """
        kept, channels, seq = self.conv1d.weight.shape[-1] - 1, mixed.shape[-1], mixed.shape[1]
        if window is None:
            window = mixed.new_zeros(mixed.shape[0], channels, kept)
        if mask is None:
            series = torch.cat((window, mixed.transpose(1, 2)), -1)  # [batch channels kept+seq]
            return F.silu(self.conv1d(series)), series[..., seq:].clone()
        order = mask.int().argsort(dim=1, descending=True, stable=True)  # [batch seq], tokens first
        series = torch.cat((window, _take(mixed.transpose(1, 2), order)), -1)
        columns = mask.sum(1)[:, None] + torch.arange(kept, device=mask.device)  # [batch kept], the last tokens
        return F.silu(_take(self.conv1d(series), order.argsort(1))), _take(series, columns)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch heads seq dim] in float32, out of the convolved channels."""
        queries, keys, values = mixed.split(self.parts, 1)
        queries, keys = (
            unit_length(part.unflatten(1, (self.key_heads, self.key_dim)).transpose(2, 3)) for part in (queries, keys)
        )
        values = values.unflatten(1, (self.num_heads, self.value_dim)).transpose(2, 3)
        queries = self.value("attention_queries", queries * self.key_dim**-0.5)
        return queries, self.value("attention_keys", keys), self.value("attention_values", widened(values))

    def _gates(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decays and betas [batch heads seq] in float32, both 0 at padding: nothing decays, nothing is written."""
        decays = -widened(self.A_log).exp() * F.softplus(widened(self.in_proj_a(x)) + self.dt_bias)
        betas = widened(torch.sigmoid(self.in_proj_b(x)))
        if mask is not None:
            decays, betas = decays * mask[..., None], betas * mask[..., None]
        decays = self.value("decays", decays.transpose(1, 2))
        return decays, self.value("betas", betas.transpose(1, 2))

    def _rule(self, options: RuleInputs, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Outputs [batch heads seq value_dim] and the last state; stops wherever a state is asked for on the way."""
        seq, start, every = options[0].shape[2], 0, self.wants("states")
        outputs, states = [], []
        while start < seq:
            request = self._next_asked(start, seq)
            stop = start + 1 if every else seq if request is None else request + 1
            if start % CHUNK:  # back to the chunks as they lie without the stop, so that the numbers stay the same
                stop = min(stop, start + -start % CHUNK)
            out, state = self._span(_tokens(options, start, stop), state, dtype)
            if request is not None and request == stop - 1:
                for position in (request, request - seq):
                    state = self.value(f"state_after({position})", state)
            outputs.append(out)
            states.append(state)
            start = stop
        if every:
            self.value("states", torch.stack(states, 1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2), state

    @staticmethod
    def _span(options: RuleInputs, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rule over one span of tokens, by the way that suits its length, device and the model's dtype."""
        if options[0].shape[2] == 1:
            return one_token(*options, state)
        kernel = fused_kernel() if state.is_cuda and dtype in (torch.bfloat16, torch.float16) else None
        return in_chunks(*options, state) if kernel is None else fused(kernel, dtype, *options, state)

    def _next_asked(self, start: int, seq: int) -> int | None:
        """The first token from `start` on whose state is asked for."""
        if not self.wants(*_names(start, seq)):
            return None
        return next(t for t in range(start, seq) if self.wants(f"state_after({t})", f"state_after({t - seq})"))


def _take(series: Tensor, columns: Tensor) -> Tensor:
    """The `columns` [batch count] of a series [batch channels length], as [batch channels count]."""
    return series.gather(2, columns[:, None].expand(-1, series.shape[1], -1))


def _tokens(options: RuleInputs, start: int, stop: int) -> RuleInputs:
    if start == 0 and stop == options[0].shape[2]:
        return options
    queries, keys, values, decays, betas = (part[:, :, start:stop] for part in options)
    return queries, keys, values, decays, betas


@lru_cache(maxsize=64)
def _names(start: int, seq: int) -> tuple[str, ...]:
    return tuple(f"state_after({t})" for t in (*range(start, seq), *range(start - seq, 0)))
