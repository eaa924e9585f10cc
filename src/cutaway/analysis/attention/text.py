"""Attention maps: where selected tokens of a prompt look, in every layer and head, with attention sinks flagged.

Use it to see which image tokens the last token, a word or a region reads from. Only the rows of the selected tokens
are computed, so no layer ever holds a whole pattern. Attention says where a token reads, not that what it read there
mattered: ablation and patching test that. A sink takes attention from any token that looks, so a peak on a sink says
nothing about the selected tokens.

Sources: attention maps, Bahdanau et al. 2015; sinks, Xiao et al. 2023, on images Kang et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.patterns import (
    full_attention_layers,
    layers_without_pattern,
    mean_over_heads,
    mean_over_queries,
    reduce_layers,
    visible_keys,
)
from cutaway.analysis.common.arguments import check_model, check_number, layer_numbers, sample_index
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

GROUPS = ("image", "text", "image sinks", "text sinks")
"""The parts of the prompt whose attention masses add up to one; sinks are counted apart from the rest."""

OTHERS, FEWEST_FOLLOWERS = 64, 4
"""How many other tokens sinks are judged by, and how many of them must come after a token for it to be judged."""


@dataclass(frozen=True, eq=False)
class AttentionMap(Result, technique="attention_map"):
    """Attention from the selected tokens, averaged over them, to every token of the prompt.

    - `source`: the selected tokens, in words. `about`: the model and the prompt, in words.
    - `weights`: "layer head token"; each head's weights sum to one.
    - `mass`: "layer head group", the attention that goes to each of `GROUPS`.
    - `even`: by group, its mass if the selected tokens looked at every token alike.
    - `received`: "layer token", what other tokens spend on each token, as a multiple of an even share; NaN where too
      few tokens follow.
    - `sinks`: positions where the mean of `received` over the layers is at least `sink_factor`.
    - `media`: by name of an image or video (``"image 0"``), its grid and the positions of its tokens.
    - `skipped`: a sentence about the layers without a pattern, or empty.
    """

    source: str
    about: str
    weights: Array
    mass: Array
    even: dict[str, float]
    received: Array
    sinks: tuple[int, ...]
    sink_factor: float
    media: dict[str, dict[str, tuple[int, ...]]]
    skipped: str = ""

    def averaged(self, layer: int | str | None = None, head: int | str | None = None) -> np.ndarray:
        """Return the weights [seq] of one layer and head; None averages over all."""
        where = {"layer": None if layer is None else str(layer), "head": None if head is None else str(head)}
        picked = self.weights.at(**{axis: name for axis, name in where.items() if name is not None})
        return picked.values.reshape(-1, picked.shape[-1]).mean(0)

    def map(
        self,
        item: str | None = None,
        *,
        layer: int | str | None = None,
        head: int | str | None = None,
        sinks: bool = True,
    ) -> Array:
        """Return the weights on one image or video, "frame row column"; ``sinks=False`` makes sinks NaN."""
        values = self.averaged(layer, head)
        if not sinks:
            values = values.copy()
            values[list(self.sinks)] = np.nan
        return image_map(values, self.media[one_medium(self.media, item)], "attention")

    def peak(self, item: str | None = None, **options: Any) -> tuple[int, ...]:
        """Return frame, row and column of the largest weight; `options` are those of `map`."""
        return self.map(item, **options).peak()

    def border(self, item: str | None = None, **options: Any) -> tuple[float, float]:
        """Return the share of an image's attention on its outermost cells, and the share of cells that lie there."""
        values = np.nan_to_num(self.map(item, **options).values)
        inner = np.zeros(values.shape, bool)
        inner[:, 1:-1, 1:-1] = True
        total = float(values.sum())
        return (float(values[~inner].sum()) / total if total else 0.0), float((~inner).mean())

    def summary(self) -> str:
        """Return a table of the masses by layer, each image's peak and border, and the sinks."""
        rows = [(layer, *self.mass.at(layer=layer).values.mean(0)) for layer in self.mass.names("layer")]
        mean = self.mass.values.reshape(-1, len(GROUPS)).mean(0)
        rows += [("mean", *mean), ("even", *(self.even[g] for g in GROUPS))]
        lines = [f"Attention from {self.source}, mean over the heads", table(("layer", *GROUPS), rows)]
        for item in self.media:
            frame, row, column = self.peak(item)
            share, even = self.border(item)
            lines.append(
                f"{item}: highest at frame {frame}, row {row}, column {column}; its border cells have {share:.0%} of "
                f"its attention and are {even:.0%} of its cells."
            )
        names = self.weights.names("token")
        sinks = ", ".join(names[p] for p in self.sinks) or "none"
        lines.append(f"Sinks (other tokens spend at least {self.sink_factor:g} even shares on them): {sinks}.")
        return "\n".join([*lines, self.skipped] if self.skipped else lines)

    def figure(
        self,
        background: Any = None,
        *,
        item: str | None = None,
        frame: int | None = None,
        layer: int | str | None = None,
        head: int | str | None = None,
        sinks: bool = True,
    ) -> Any:
        """Draw maps beside the image: the mean and every layer; with `layer` its heads; with `head` too that head.

        - `background`: the image that was prepared; for a video a list with one image for each frame of its grid.
        - `frame`: of a video; None draws every frame of the mean. - ``sinks=False`` leaves sinks white.
        """
        return self._draw("draw_attention_map", background, item, frame, {"layer": layer, "head": head, "sinks": sinks})


def attention_map(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "last",
    layers: int | Sequence[int] | None = None,
    sample: int | None = None,
    sink_factor: float = 5.0,
    edit: Mapping[str, Any] | None = None,
) -> AttentionMap:
    """Return the attention from selected tokens to every token of the prompt, in every head.

    - `tokens`: a token selection, by default the last token; the map is the mean over the selected tokens.
    - `layers`: text layers by number, by default every layer that has a pattern.
    - `sample`: which sample of a batch. - `edit`: changes by address that are made in the run.
    - `sink_factor`: how many even shares a token must receive from other tokens to count as a sink.

    Memory beyond the forward: the result, [layers heads seq] float32, and some 100 MB. Raises `InputError` for wrong
    arguments, `Unavailable` for a layer without a pattern that was asked for by number.
    """
    check_model(model, "An attention map")
    sample = sample_index(inputs, sample)
    check_number("sink_factor", sink_factor, 0.0, float("inf"), rule="a number from 0 up")
    selected = select_tokens(model, inputs, tokens, sample)
    numbers = layer_numbers(layers, full_attention_layers(model), model.num_layers)
    others = _spread_over_others(inputs, selected.positions, sample)
    reduced = reduce_layers(
        model, inputs, numbers, lambda _: _MeanPatterns(model, inputs, (selected.positions, others), sample), edit
    )
    weights = torch.stack([mean for mean, _ in reduced])  # [layers heads seq]
    received = _received(torch.stack([pattern for _, pattern in reduced]), inputs, others, sample)
    sinks = tuple((received.mean(0) >= sink_factor).nonzero()[:, 0].tolist())
    members = _group_members(inputs, sinks, sample)
    names = {"layer": numbers, "token": token_labels(model, inputs, sample)}
    count = len(selected.positions)
    return AttentionMap(
        source=f"{selected.name} ({count} tokens)" if count > 1 else selected.name,
        about=caption(model, inputs, sample),
        weights=Array.of(weights, "layer head token", names, "attention"),
        mass=Array.of(weights @ members.T, "layer head group", {"layer": numbers, "group": GROUPS}, "attention"),
        even=dict(zip(GROUPS, (members @ _even_weights(inputs, selected.positions, sample)).tolist(), strict=True)),
        received=Array.of(received, "layer token", names, "even shares"),
        sinks=sinks,
        sink_factor=float(sink_factor),
        media=media_tokens(inputs, sample),
        skipped=layers_without_pattern(model) if layers is None else "",
    )


class _MeanPatterns:
    """Of one layer: the mean pattern of the selected queries [heads seq], and other queries' patterns [seq queries]."""

    def __init__(self, model: Model, inputs: Inputs, positions: tuple[Tensor, Tensor], sample: int) -> None:
        self.sample, self.positions, self.scale = sample, positions, model.head_dim**-0.5
        self.visible = tuple(visible_keys(inputs, at, sample) for at in positions)
        self.selected: tuple[Tensor, ...] = ()

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.selected = tuple(value[self.sample][:, at.to(value.device)] for at in self.positions)

    def keys(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """[batch kv_heads seq head_dim]"""
        (queries, other), self.selected = self.selected, ()
        keys = value[self.sample]
        mean = mean_over_queries(queries, keys, self.scale, self.visible[0]).cpu()
        return mean, mean_over_heads(other, keys, self.scale, self.visible[1]).T.cpu()


def _even_weights(inputs: Inputs, positions: Tensor, sample: int) -> Tensor:
    """[seq] float32: the weights if each of the positions looked at all its keys alike, averaged over the positions."""
    total = torch.zeros(inputs.input_ids.shape[1])
    for some in positions.split(OTHERS):
        visible = visible_keys(inputs, some, sample).cpu()  # [positions seq]
        total += (visible / visible.sum(1, keepdim=True)).sum(0)
    return total / len(positions)


def _spread_over_others(inputs: Inputs, selected: Tensor, sample: int) -> Tensor:
    """Up to `OTHERS` positions, evenly spread over the tokens that were not selected."""
    free = inputs.attention_mask[sample].bool().cpu().clone()
    free[selected] = False
    left = free.nonzero()[:, 0]
    return left[torch.linspace(0, max(len(left) - 1, 0), min(OTHERS, len(left))).round().long()]


def _received(patterns: Tensor, inputs: Inputs, others: Tensor, sample: int) -> Tensor:
    """[layers seq]: what the `others` spend on each token over an even share; `patterns` [layers seq others].

    A token's attention to itself does not count. NaN where fewer than `FEWEST_FOLLOWERS` of the others follow.
    """
    visible = visible_keys(inputs, others, sample).cpu()  # [others seq]
    counted = visible & (torch.arange(visible.shape[1]) != others[:, None])
    shares = patterns * (visible.sum(1) * counted.T)  # [layers seq others]
    followers = counted.sum(0)
    return torch.where(followers >= FEWEST_FOLLOWERS, shares.sum(-1) / followers.clamp(min=1), torch.nan)


def _group_members(inputs: Inputs, sinks: Sequence[int], sample: int) -> Tensor:
    """[groups seq] float32: 1 where a token is in the group; padding is in none."""
    image = inputs.mm_token_type_ids[sample].cpu() > 0
    sink = torch.zeros_like(image)
    sink[list(sinks)] = True
    text = ~image & inputs.attention_mask[sample].bool().cpu()
    return torch.stack([image & ~sink, text & ~sink, image & sink, text & sink]).float()
