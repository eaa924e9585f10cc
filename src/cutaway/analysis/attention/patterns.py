"""Attention patterns of a few query positions, computed in pieces from a layer's queries and keys.

Use it where a whole pattern [heads seq seq] would be too large: only the rows of the wanted queries are computed, one
head and one chunk at a time. It works on the tensors of one layer and does not choose which positions are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.trace.run import run_values

CHUNK = 1 << 25
"""Bytes of attention scores that exist at one time."""


def head_patterns(
    queries: Tensor, keys: Tensor, scale: float, visible: Tensor | None = None
) -> Iterator[tuple[int, slice, Tensor]]:
    """Each head's pattern of `queries` [heads queries head_dim] over `keys` [kv_heads keys head_dim], in pieces.

    Yields (head, slice of the queries, probabilities [queries keys] float32). `visible` [queries keys] is true where a
    query may look. Scores are in the tensors' dtype, the softmax in float32, as in the model's own explicit attention.
    """
    group = queries.shape[0] // keys.shape[0]  # query heads that share a key head
    step = max(1, CHUNK // (4 * keys.shape[1]))
    for head in range(queries.shape[0]):
        for start in range(0, queries.shape[1], step):
            span = slice(start, start + step)
            scores = (queries[head, span] @ keys[head // group].T) * scale  # [queries keys]
            if visible is not None:
                scores = scores.masked_fill(~visible[span], torch.finfo(scores.dtype).min)
            yield head, span, torch.softmax(scores, -1, dtype=torch.float32)


def mean_over_queries(queries: Tensor, keys: Tensor, scale: float, visible: Tensor | None = None) -> Tensor:
    """[heads keys] float32: `head_patterns` averaged over the queries."""
    total = torch.zeros(queries.shape[0], keys.shape[1], device=keys.device)
    for head, _, pattern in head_patterns(queries, keys, scale, visible):
        total[head] += pattern.sum(0)
    return total / queries.shape[1]


def mean_over_heads(queries: Tensor, keys: Tensor, scale: float, visible: Tensor | None = None) -> Tensor:
    """[queries keys] float32: `head_patterns` averaged over the heads."""
    total = torch.zeros(queries.shape[1], keys.shape[1], device=keys.device)
    for _, span, pattern in head_patterns(queries, keys, scale, visible):
        total[span] += pattern
    return total / queries.shape[0]


def visible_keys(inputs: Inputs, positions: Tensor, sample: int) -> Tensor:
    """[positions seq] bool: where each of the positions of a sample may look; causal, without padding."""
    mask = inputs.attention_mask[sample].bool()
    causal = torch.arange(len(mask), device=mask.device) <= positions.to(mask.device)[:, None]
    return causal & mask


def full_attention_layers(model: Model) -> tuple[int, ...]:
    """The numbers of the text layers that have softmax attention, and so a pattern."""
    return tuple(i for i, kind in enumerate(model.config.text.layer_types) if kind == "full_attention")


def layers_without_pattern(model: Model, consequence: str = "are left out") -> str:
    """A sentence that names the layers without a pattern and what follows from it; empty where all have one."""
    full = full_attention_layers(model)
    linear = [str(i) for i in range(model.num_layers) if i not in full]
    if not linear:
        return ""
    return f"Layers {', '.join(linear)} {consequence}: their attention is linear (Gated DeltaNet) and has no pattern."


class LayerReducer(Protocol):
    """What is computed from a layer's attention while the forward passes: `queries` is called first, then `keys`."""

    def queries(self, value: Tensor) -> None:
        """Receive the queries [batch heads seq head_dim]."""

    def keys(self, value: Tensor) -> Any:
        """Receive the keys [batch kv_heads seq head_dim] and return the layer's result."""


def reduce_layers(
    model: Model,
    inputs: Inputs,
    layers: Sequence[int],
    reducer_of: Callable[[int], LayerReducer],
    edit: Mapping[str, Any] | None,
) -> list[Any]:
    """The result of a `LayerReducer` for each of the layers, in one forward."""
    reduce: dict[str, Callable[[Tensor], Any]] = {}
    for layer in layers:
        reducer, host = reducer_of(layer), f"layers.{layer}.self_attn"
        reduce |= {f"{host}.attention_queries": reducer.queries, f"{host}.attention_keys": reducer.keys}
    values = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    return [values[f"layers.{layer}.self_attn.attention_keys"] for layer in layers]
