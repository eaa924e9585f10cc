"""Attention patterns of chosen rows, head by head and in chunks, from queries and keys as the model names them.

The full pattern of a layer is never made. It knows one layer's tensors; it does not know whose rows are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

CHUNK = 1 << 25
"""Bytes of scores that exist at one time."""


def row_patterns(
    queries: Tensor, keys: Tensor, scale: float, seen: Tensor | None = None
) -> Iterator[tuple[int, slice, Tensor]]:
    """Each head's attention from the rows of `queries` [heads rows dim] to `keys` [kv_heads keys dim], in pieces.

    Yields (head, slice of the rows, probabilities [rows keys] float32). `seen` [rows keys] is true where a row may
    look. The scores are in the tensors' dtype, the softmax in float32, as in the model's own step-by-step path.
    """
    groups = queries.shape[0] // keys.shape[0]
    step = max(1, CHUNK // (4 * keys.shape[1]))
    for head in range(queries.shape[0]):
        for start in range(0, queries.shape[1], step):
            span = slice(start, start + step)
            scores = (queries[head, span] @ keys[head // groups].T) * scale
            if seen is not None:
                scores = scores.masked_fill(~seen[span], torch.finfo(scores.dtype).min)
            yield head, span, torch.softmax(scores, -1, dtype=torch.float32)


def mean_rows(queries: Tensor, keys: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    """[heads keys] float32: `row_patterns` averaged over the rows."""
    total = torch.zeros(queries.shape[0], keys.shape[1], device=keys.device)
    for head, _, pattern in row_patterns(queries, keys, scale, seen):
        total[head] += pattern.sum(0)
    return total / queries.shape[1]


def mean_heads(queries: Tensor, keys: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    """[rows keys] float32: `row_patterns` averaged over the heads."""
    total = torch.zeros(queries.shape[1], keys.shape[1], device=keys.device)
    for _, span, pattern in row_patterns(queries, keys, scale, seen):
        total[span] += pattern
    return total / queries.shape[0]


def visible(inputs: Inputs, rows: Tensor, row: int) -> Tensor:
    """[rows seq] bool: where each of the positions `rows` of a batch's row may look; causal, padding left out."""
    mask = inputs.attention_mask[row].bool()
    causal = torch.arange(len(mask), device=mask.device) <= rows.to(mask.device)[:, None]
    return causal & mask


def full_attention_layers(model: Model) -> tuple[int, ...]:
    """The text layers that have full attention, and so a pattern."""
    return tuple(i for i, kind in enumerate(model.config.text.layer_types) if kind == "full_attention")


def skipped(model: Model) -> str:
    """Which layers have no pattern and why, in a sentence; empty where all have one."""
    linear = [i for i in range(model.num_layers) if i not in full_attention_layers(model)]
    if not linear:
        return ""
    names = ", ".join(map(str, linear))
    return f"Layers {names} are left out: their attention is linear (Gated DeltaNet) and has no pattern."


def numbered(layers: int | Sequence[int] | None, every: Sequence[int], count: int) -> tuple[int, ...]:
    """Layer numbers, ascending; None means all of `every`. Raises `InputError` for a number out of range."""
    if layers is None:
        return tuple(every)
    given = (layers,) if isinstance(layers, int) else tuple(layers)
    if not given or any(not isinstance(b, int) or not -count <= b < count for b in given):
        raise InputError(f"Layers are numbers from 0 to {count - 1}, at least one; got {list(given)}.")
    return tuple(sorted({b % count for b in given}))
