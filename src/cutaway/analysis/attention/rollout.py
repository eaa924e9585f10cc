"""Attention rollout: attention followed through all layers at once, as if each layer mixed its tokens half and half.

It takes the mean over the heads and knows nothing of values, MLPs or norms, so it says where information could have
come from. On Qwen3.5 the linear layers between have no pattern and count as if they mixed nothing.

Source: Abnar and Zuidema 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.pattern_rows import CHUNK, full_attention_layers, mean_heads, skipped, visible
from cutaway.analysis.attention.text import collect
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
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class AttentionRollout(Result, technique="attention_rollout"):
    """How much of the chosen tokens, after the last layer, flows from each token of the prompt.

    - `weights`: "token", sums to one. - `residual`: the part that each layer leaves as it is.
    - `images`, `skipped`: as in an attention map.
    """

    source: str
    weights: Array
    residual: float
    media: dict[str, dict[str, tuple[int, ...]]]
    skipped: str = ""

    def map(self, item: str | None = None) -> Array:
        """The weights on one image or video, "frame row column"."""
        return image_map(self.weights.values, self.media[one_medium(self.media, item)], "rollout")

    def peak(self, item: str | None = None) -> tuple[int, int, int]:
        """Frame, row and column where the map is highest."""
        found = self.map(item)
        frame, row, column = np.unravel_index(int(found.values.argmax()), found.shape)
        return int(frame), int(row), int(column)

    def summary(self) -> str:
        """The tokens that most flows from, and the sum over each image."""
        names, order = self.weights.names("token"), np.argsort(-self.weights.values)[:10]
        rows = [(names[i], float(self.weights.values[i])) for i in order]
        rows += [(item, float(self.map(item).values.sum())) for item in self.media]
        text = f"Attention rollout from {self.source}\n{table(('token', 'part'), rows)}"
        return f"{text}\n{self.skipped}" if self.skipped else text

    def figure(self, background: Any = None, *, item: str | None = None) -> Any:
        """The map over an image; for a video give an image for each temporal grid, or None for the cells alone."""
        from cutaway.analysis.plots import maps

        return maps.frames_figure(
            self.map(item), background, f"Rollout from {self.source}{maps.onto(self.media, item)}"
        )


def attention_rollout(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "last",
    row: int = 0,
    residual: float = 0.5,
    edit: Mapping[str, Any] | None = None,
) -> AttentionRollout:
    """The product over the layers of ``(1 - residual) * mean pattern + residual * identity``, rows of `tokens`.

    Above the forward it takes two matrices [seq seq] of float32, 130 MB at 4,096 tokens.
    """
    model.require_weights("Attention rollout")
    if not 0 <= residual < 1:
        raise InputError(f"`residual` is the part that a layer leaves as it is, from 0 to below 1; got {residual}.")
    chosen = select_tokens(model, inputs, tokens, row)
    state = _Product(model, inputs, residual, row)
    collect(model, inputs, full_attention_layers(model), lambda _: state, edit)
    weights = state.product[chosen.positions].mean(0)
    return AttentionRollout(
        source=chosen.name,
        weights=Array.of(weights, "token", {"token": token_labels(model, inputs, row)}, "part"),
        residual=residual,
        media=media_tokens(inputs, row),
        skipped=skipped(model).replace("are left out", "count as if they mixed nothing") if skipped(model) else "",
    )


class _Product:
    """The product of the mixing matrices so far, [seq seq] float32; each layer's is multiplied in, rows at a time."""

    def __init__(self, model: Model, inputs: Inputs, residual: float, row: int) -> None:
        self.inputs, self.residual, self.row, self.scale = inputs, residual, row, model.head_dim**-0.5
        self.product = torch.eye(inputs.input_ids.shape[1])
        self.held = torch.empty(0)

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.held = value[self.row]

    def keys(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]: multiplies the layer in."""
        keys, length = value[self.row], value.shape[2]
        mixed = torch.empty_like(self.product)
        step = max(1, CHUNK // (32 * length))  # an eighth: several tensors of this size live at one time
        for start in range(0, length, step):
            rows = torch.arange(start, min(start + step, length), device=keys.device)
            seen = visible(self.inputs, rows, self.row)
            pattern = mean_heads(self.held[:, rows], keys, self.scale, seen).cpu()
            here, stop = slice(start, start + len(rows)), start + len(rows)
            mixed[here] = self.residual * self.product[here]
            mixed[here, :stop] += (1 - self.residual) * (pattern[:, :stop] @ self.product[:stop, :stop])  # both causal
        self.product, self.held = mixed, torch.empty(0)
