"""Attention rollout: the mean patterns of all layers multiplied, as if each layer mixed its tokens half and half.

Use it for a rough map of where information could have come from through all layers at once. It averages over the
heads and knows nothing of attention values, MLPs or norms. On Qwen3.5 the layers with linear attention have no pattern
and count as if they mixed nothing.

Source: Abnar and Zuidema 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.patterns import (
    CHUNK,
    full_attention_layers,
    layers_without_pattern,
    mean_over_heads,
    reduce_layers,
    visible_keys,
)
from cutaway.analysis.common.arguments import check_model, check_number, sample_index
from cutaway.analysis.common.caption import caption
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import (
    TokenSelection,
    image_map,
    media_tokens,
    one_medium,
    select_tokens,
    token_labels,
)
from cutaway.api import Model
from cutaway.batch import Inputs


@dataclass(frozen=True, eq=False)
class AttentionRollout(Result, technique="attention_rollout"):
    """How much of the selected tokens, after the last layer, flows from each token of the prompt.

    - `source`: the selected tokens, in words. `about`: the model and the prompt, in words.
    - `weights`: "token", sums to one. - `residual`: the part that each layer leaves as it is.
    - `media`: grid and positions of each image and video. - `skipped`: a sentence about layers without a pattern.
    """

    source: str
    about: str
    weights: Array
    residual: float
    media: dict[str, dict[str, tuple[int, ...]]]
    skipped: str = ""

    def map(self, item: str | None = None) -> Array:
        """Return the weights on one image or video, "frame row column"."""
        return image_map(self.weights.values, self.media[one_medium(self.media, item)], "rollout")

    def peak(self, item: str | None = None) -> tuple[int, ...]:
        """Return frame, row and column of the largest weight."""
        return self.map(item).peak()

    def summary(self) -> str:
        """Return a table of the tokens with the largest weights, and the sum over each image."""
        names, order = self.weights.names("token"), np.argsort(-self.weights.values)[:10]
        rows = [(names[i], float(self.weights.values[i])) for i in order]
        rows += [(item, float(self.map(item).values.sum())) for item in self.media]
        text = f"Attention rollout from {self.source}\n{table(('token', 'weight'), rows)}"
        return f"{text}\n{self.skipped}" if self.skipped else text

    def figure(self, background: Any = None, *, item: str | None = None) -> Any:
        """Draw the map beside the image; for a video give a list with one image for each frame of its grid."""
        return self._draw("draw_attention_rollout", background, item)


def attention_rollout(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "last",
    sample: int | None = None,
    residual: float = 0.5,
    edit: Mapping[str, Any] | None = None,
) -> AttentionRollout:
    """Return the product over the layers of ``(1 - residual) * mean pattern + residual * identity``.

    - `tokens`: a token selection; the result is the mean of their rows. - `sample`: which sample of a batch.
    - `edit`: changes by address that are made in the run.

    Memory beyond the forward: two matrices [seq seq] float32, 130 MB at 4,096 tokens. Raises `InputError` for wrong
    arguments.
    """
    check_model(model, "Attention rollout")
    sample = sample_index(inputs, sample)
    check_number("residual", residual, 0, 1, rule="the part that a layer leaves as it is, from 0 to below 1")
    selected = select_tokens(model, inputs, tokens, sample)
    product = _Product(model, inputs, residual, sample)
    reduce_layers(model, inputs, full_attention_layers(model), lambda _: product, edit)
    weights = product.matrix[selected.positions].mean(0)
    return AttentionRollout(
        source=selected.name,
        about=caption(model, inputs, sample),
        weights=Array.of(weights, "token", {"token": token_labels(model, inputs, sample)}, "weight"),
        residual=float(residual),
        media=media_tokens(inputs, sample),
        skipped=layers_without_pattern(model, "count as if they mixed nothing"),
    )


class _Product:
    """The product `matrix` [seq seq] float32 of the mixing matrices so far; each layer is multiplied in, in pieces."""

    def __init__(self, model: Model, inputs: Inputs, residual: float, sample: int) -> None:
        self.inputs, self.residual, self.sample, self.scale = inputs, residual, sample, model.head_dim**-0.5
        self.matrix = torch.eye(inputs.input_ids.shape[1])
        self.layer_queries = torch.empty(0)

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.layer_queries = value[self.sample]

    def keys(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]"""
        keys, length = value[self.sample], value.shape[2]
        mixed = torch.empty_like(self.matrix)
        step = max(1, CHUNK // (32 * length))  # an eighth: several tensors of this size live at one time
        for start in range(0, length, step):
            stop = min(start + step, length)
            at = torch.arange(start, stop, device=keys.device)
            visible = visible_keys(self.inputs, at, self.sample)
            pattern = mean_over_heads(self.layer_queries[:, at], keys, self.scale, visible).cpu()  # [queries seq]
            mixed[start:stop] = self.residual * self.matrix[start:stop]
            mixing = pattern[:, :stop] @ self.matrix[:stop, :stop]  # both are causal: nothing beyond `stop`
            mixed[start:stop, :stop] += (1 - self.residual) * mixing
        self.matrix, self.layer_queries = mixed, torch.empty(0)
