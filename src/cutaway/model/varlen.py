"""Fused attention over segments of unequal length in one call: torch's varlen kernel, for half precision on CUDA.

A padded batch or images of many sizes become one packed row, in which nothing is computed for padding. It is chosen
with ``attn_implementation="varlen"``; decoding steps, and blocks whose pattern is asked for, go the ways that they go
otherwise. This module knows tensors and where segments end; not what they are.

Source: FlashAttention-2's variable-length form, Dao 2023, as `torch.nn.attention.varlen` offers it from torch 2.10 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from cutaway.errors import InputError

HALF = (torch.float16, torch.bfloat16)


def check(x: Tensor) -> None:
    """Raises `InputError` unless the kernel can take `x`."""
    if not x.is_cuda or x.dtype not in HALF:
        raise InputError(
            f'attn_implementation="varlen" is a kernel for CUDA devices in float16 or bfloat16; the model runs in '
            f'{str(x.dtype).removeprefix("torch.")} on {x.device.type}. Load it with attn_implementation="sdpa", or '
            f'with device="cuda", dtype="bfloat16".'
        )


def kernel(queries: Tensor, keys: Tensor, values: Tensor, ends: Tensor, longest: int, causal: bool) -> Tensor:
    """torch's kernel on [tokens heads head_dim]; `ends` [segments+1] int32 on the same device.

    How causality is said differs between torch 2.10 and later ones; the scale is the default, ``head_dim ** -0.5``.
    """
    from torch.nn.attention.varlen import varlen_attn

    message: dict[str, Any] = {}
    if causal:
        windowed = "window_size" in signature(varlen_attn).parameters
        message = {"window_size": (-1, 0)} if windowed else {"is_causal": True}
    return varlen_attn(queries, keys, values, ends, ends, longest, longest, **message)  # type: ignore[return-value]


def segments(queries: Tensor, keys: Tensor, values: Tensor, ends: Sequence[int], *, causal: bool) -> Tensor:
    """Attention inside each segment ``ends[i]:ends[i+1]`` of [tokens heads head_dim]; fewer key heads are repeated."""
    times = queries.shape[1] // keys.shape[1]
    if times > 1:
        keys, values = keys.repeat_interleave(times, 1), values.repeat_interleave(times, 1)
    positions = torch.tensor(list(ends), dtype=torch.int32, device=queries.device)
    longest = max(b - a for a, b in pairwise(ends))
    return kernel(queries.contiguous(), keys.contiguous(), values.contiguous(), positions, longest, causal)


def unpadded(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Causal attention [batch heads seq head_dim] of whole prompts, computed for their tokens alone; zero at padding.

    `mask` is [batch 1 seq seq] as `attention_mask` makes it: the last query of a row may look at each of its tokens.
    """
    tokens = mask[:, 0, -1]
    ends = [0, *accumulate(tokens.sum(1).tolist())]
    queries, keys, values = (x.transpose(1, 2)[tokens] for x in (queries, keys, values))
    out = queries.new_zeros(*tokens.shape, *queries.shape[1:])
    out[tokens] = segments(queries, keys, values, ends, causal=True)
    return out.transpose(1, 2)
