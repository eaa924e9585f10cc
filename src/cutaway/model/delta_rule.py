"""The gated delta rule: a recurrence over tokens, chunk by chunk for prompts and token by token for decoding.

A head keeps a state S [key value]. Each token lets it decay, reads what its key finds there, writes the difference to
the value it wants found, and reads with its query::

    S = exp(g) S;   S = S + k (beta (v - k S));   out = q S

All of it is float32, or float64 in a model of that. This module knows tensors alone: no projections, no cache, no
names.

Source: Gated DeltaNet (Yang et al. 2024); the chunked form is that of DeltaNet (Yang et al. 2024), where the writes of
a chunk are the solution of one triangular system.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def one_token(
    queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule for one token: `queries` and `keys` [batch key_heads 1 key], `values` [batch heads 1 value].

    `decays` (g above) and `betas` [batch heads 1], `state` [batch heads key value]. Returns the output [batch heads 1
    value] and the new state.
    """
    groups = values.shape[1] // keys.shape[1]
    if groups > 1:
        queries, keys = queries.repeat_interleave(groups, 1), keys.repeat_interleave(groups, 1)
    state = state * decays.exp()[..., None]
    change = (values - keys @ state) * betas[..., None]
    state = state + keys.transpose(2, 3) * change
    return queries @ state, state


def in_chunks(
    queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule for any number of tokens: `queries` and `keys` [batch key_heads seq key].

    `values` [batch heads seq value], `decays` and `betas` [batch heads seq], `state` [batch heads key value]. Returns
    outputs [batch heads seq value] and the state after the last token. Tokens are padded to whole chunks with neutral
    ones: no decay, nothing written.
    """
    seq, key_heads, heads = keys.shape[2], keys.shape[1], values.shape[1]
    size = min(CHUNK, seq)
    queries, keys, values = (
        _cut(x, size) for x in (queries[:, :, None], keys[:, :, None], _grouped(values, key_heads))
    )
    decays, betas = (_cut(_grouped(x, key_heads)[..., None], size)[..., 0] for x in (decays, betas))
    # from here on [batch key_heads group chunks size width], decays and betas without the width
    between = _decays_between(decays)  # [… size size]
    start = decays.cumsum(-1).exp()  # [… size]
    mixed = keys @ keys.transpose(-1, -2) * between * betas[..., None]  # [… size size]
    one = torch.eye(size, dtype=mixed.dtype, device=mixed.device).expand_as(mixed)
    solved = torch.linalg.solve_triangular(mixed, one, upper=False, unitriangular=True) * betas[..., None, :]
    states, news, state = _scan(
        solved @ values,
        solved * start[..., None, :] @ keys,
        (keys * between[..., -1, :, None]).transpose(-1, -2),
        start[..., -1, None, None],
        _grouped(state, key_heads),
    )
    outs = queries * start[..., None] @ states + queries @ keys.transpose(-1, -2) * between @ news
    return outs.flatten(3, 4).flatten(1, 2)[:, :, :seq], state.reshape(-1, heads, *state.shape[-2:])


def _scan(wanted: Tensor, read: Tensor, write: Tensor, keep: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The chunks in turn: each writes what it wants less what it finds in the state that the one before left.

    Returns the state that each chunk found, what each wrote, and the last state.
    """
    states, news = [], []
    for want, look, put, factor in zip(*(x.unbind(3) for x in (wanted, read, write, keep)), strict=True):
        states.append(state)
        news.append(want - look @ state)
        state = state * factor + put @ news[-1]
    return torch.stack(states, 3), torch.stack(news, 3), state


def _decays_between(decays: Tensor) -> Tensor:
    """[… chunk chunk]: how much of what token j wrote is left at token i, 0 for j after i.

    The decays of the tokens between are added up for each pair: the difference of two running sums would lose small
    decays beside large ones, and a decay of minus infinity, which clears the state.
    """
    size = decays.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=decays.device).tril(-1)
    sums = torch.where(later, decays[..., None], 0.0).cumsum(-2)
    return sums.exp().tril()


def _grouped(x: Tensor, key_heads: int) -> Tensor:
    """[batch heads …] as [batch key_heads group …]: neighbouring value heads share a key head."""
    return x.unflatten(1, (key_heads, -1))


def _cut(x: Tensor, size: int) -> Tensor:
    """[batch key_heads group seq width] as [batch key_heads group chunks size width], padded with zeros."""
    missing = -x.shape[3] % size
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(3, (-1, size))


def fused(
    kernel: Callable[..., tuple[Tensor, Tensor]],
    dtype: torch.dtype,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    decays: Tensor,
    betas: Tensor,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """`in_chunks` by a `kernel` that takes [batch seq heads width] in `dtype`, a key head for each value head."""
    groups = values.shape[1] // keys.shape[1]
    queries, keys = (x.repeat_interleave(groups, 1) for x in (queries, keys))
    queries, keys, values, betas = (x.transpose(1, 2).to(dtype) for x in (queries, keys, values, betas))
    decays = decays.transpose(1, 2)
    out, state = kernel(
        queries, keys, values, g=decays, beta=betas, scale=1.0, initial_state=state, output_final_state=True
    )
    return out.transpose(1, 2), state


@cache
def fused_kernel() -> Callable[..., Any] | None:
    """`flash-linear-attention`'s kernel for the chunked rule, None where it is not installed."""
    try:
        return importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    except (ImportError, AttributeError):
        return None
