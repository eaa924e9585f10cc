"""Where chosen tokens look: attention from the last token, a word or a region onto the image, with its sinks flagged.

The pattern of the chosen rows is computed from the layer's queries and keys while the forward passes, so that no layer
ever holds a whole pattern. Attention says where a token reads, not that what it read there mattered: ablation and
patching say that. A sink takes attention from whatever token looks, so a peak there is no finding.

Sources: attention maps, Bahdanau et al. 2015; sinks, Xiao et al. 2023, on images Kang et al. 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.pattern_rows import (
    full_attention_layers,
    mean_heads,
    mean_rows,
    numbered,
    skipped,
    visible,
)
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
from cutaway.trace.run import run_values

GROUPS = ("image", "text", "image sinks", "text sinks")
"""The parts of the prompt whose masses add up to one; sinks are counted apart from the rest."""

REFERENCE, FEWEST = 64, 4
"""How many other tokens are asked where they look, and how many of them must follow a token for it to be judged."""


@dataclass(frozen=True, eq=False)
class AttentionMap(Result, technique="attention_map"):
    """Attention from chosen tokens (averaged over them) to every token of the prompt.

    - `weights`: "layer head token", each head's weights sum to one. - `mass`: "layer head group", see `GROUPS`.
    - `even`: the part of the mass that each group would have if the tokens looked everywhere alike.
    - `received`: "layer token", what other tokens spend on each token, in even shares: 1 is as much as anywhere else;
      NaN where too few tokens follow. - `sinks`: positions where its mean over the layers reaches `sink_factor`.
    - `images`: grid and positions of each image and video. - `skipped`: layers without a pattern, in words.
    """

    source: str
    weights: Array
    mass: Array
    even: dict[str, float]
    received: Array
    sinks: tuple[int, ...]
    sink_factor: float
    media: dict[str, dict[str, tuple[int, ...]]]
    skipped: str = ""

    def averaged(self, layer: int | str | None = None, head: int | str | None = None) -> np.ndarray:
        """[seq]: the weights of one layer and head; None averages over them. A layer is named by its number."""
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
        """The weights on one image or video, "frame row column"; ``sinks=False`` leaves the sinks out (NaN)."""
        values = self.averaged(layer, head)
        if not sinks:
            values = values.copy()
            values[list(self.sinks)] = np.nan
        return image_map(values, self.media[one_medium(self.media, item)], "attention")

    def peak(self, item: str | None = None, **which: Any) -> tuple[int, int, int]:
        """Frame, row and column where the map of `map` is highest."""
        found = self.map(item, **which)
        if not np.isfinite(found.values).any():
            raise InputError("Every token of the image is a sink, so its map has no peak; take them in.")
        frame, row, column = np.unravel_index(int(np.nanargmax(found.values)), found.shape)
        return int(frame), int(row), int(column)

    def border(self, item: str | None = None, **which: Any) -> tuple[float, float]:
        """The part of the image's attention on its outermost cells, and the part of cells that lie there."""
        values = np.nan_to_num(self.map(item, **which).values)
        inner = np.zeros(values.shape, bool)
        inner[:, 1:-1, 1:-1] = True
        total = float(values.sum())
        return (float(values[~inner].sum()) / total if total else 0.0), float((~inner).mean())

    def summary(self) -> str:
        """The masses of each layer, the strongest cells, and what to beware of."""
        rows = [(layer, *self.mass.at(layer=layer).values.mean(0)) for layer in self.mass.names("layer")]
        mean = self.mass.values.reshape(-1, len(GROUPS)).mean(0)
        rows += [("mean", *mean), ("even", *(self.even[g] for g in GROUPS))]
        lines = [f"Attention from {self.source}, mean over the heads", table(("layer", *GROUPS), rows)]
        for item in self.media:
            frame, row, column = self.peak(item)
            share, even = self.border(item)
            lines.append(
                f"{item}: highest at frame {frame}, row {row}, column {column}; its border has {share:.0%} of its "
                f"attention (even: {even:.0%})."
            )
        names = self.weights.names("token")
        found = ", ".join(names[p] for p in self.sinks) or "none"
        lines.append(f"Sinks (at least {self.sink_factor:g} even shares from tokens of any kind): {found}.")
        return "\n".join([*lines, self.skipped] if self.skipped else lines)

    def figure(self, background: Any = None, *, item: str | None = None, frame: int | None = None, **which: Any) -> Any:
        """Maps over an image: the mean and each layer; with `layer` its heads; with `layer` and `head` that one.

        - `image`: what was prepared; for a video a list with an image for each temporal grid. None: cells alone.
        - `frame`: a temporal grid; None draws every one, of the mean alone. - ``sinks=False`` leaves the sinks clear.
        """
        from cutaway.analysis.plots import maps

        return maps.attention_figure(self, background, item, frame, which)


def attention_map(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "last",
    layers: int | Sequence[int] | None = None,
    row: int = 0,
    sink_factor: float = 5.0,
    edit: Mapping[str, Any] | None = None,
) -> AttentionMap:
    """Attention from `tokens` of a row, averaged over them, in every head of the text layers asked.

    `tokens` as in `select_tokens`; `layers` default every layer that has a pattern. `edit` has changes by address that
    are made in the run. Above the forward it takes the result, [layers heads seq] float32, and some 100 MB.

    Raises `InputError` for tokens or layers that there are not, `Unavailable` for a layer without a pattern that was
    asked for by number.
    """
    model.require_weights("Attention")
    chosen = select_tokens(model, inputs, tokens, row)
    wanted = numbered(layers, full_attention_layers(model), model.num_layers)
    others = _others(inputs, chosen.positions, row)
    taken = collect(
        model, inputs, wanted, lambda layer: _Rows(model, inputs, layer, (chosen.positions, others), row), edit
    )
    weights = torch.stack([found[0] for found in taken])
    received = _received(torch.stack([found[1] for found in taken]), inputs, others, row)
    mean = received.mean(0)
    sinks = tuple((mean >= sink_factor).nonzero()[:, 0].tolist())
    parts = _parts(inputs, sinks, row)
    names = {"layer": wanted, "token": token_labels(model, inputs, row)}
    pieces = [visible(inputs, some, row).cpu() for some in chosen.positions.split(REFERENCE)]
    shares = torch.stack([(seen / seen.sum(1, keepdim=True)).sum(0) for seen in pieces])
    even = shares.sum(0) / len(chosen.positions)
    return AttentionMap(
        source=f"{chosen.name} ({len(chosen.positions)} tokens)" if len(chosen.positions) > 1 else chosen.name,
        weights=Array.of(weights, "layer head token", names, "attention"),
        mass=Array.of(weights @ parts.T, "layer head group", {"layer": wanted, "group": GROUPS}, "attention"),
        even=dict(zip(GROUPS, (parts @ even).tolist(), strict=True)),
        received=Array.of(received, "layer token", names, "even shares"),
        sinks=sinks,
        sink_factor=sink_factor,
        media=media_tokens(inputs, row),
        skipped=skipped(model) if layers is None else "",
    )


def collect(
    model: Model,
    inputs: Inputs,
    layers: Sequence[int],
    taker: Callable[[int], Any],
    edit: Mapping[str, Any] | None,
) -> list[Any]:
    """What a taker of each layer makes of its queries (method `queries`) and then of its keys (method `keys`)."""
    reduce: dict[str, Callable[[Tensor], Any]] = {}
    for layer in layers:
        made, place = taker(layer), f"layers.{layer}.self_attn"
        reduce |= {f"{place}.attention_queries": made.queries, f"{place}.attention_keys": made.keys}
    found = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    return [found[f"layers.{layer}.self_attn.attention_keys"] for layer in layers]


class _Rows:
    """Takes a layer's queries, then its keys; keeps the mean pattern of two sets of rows."""

    def __init__(self, model: Model, inputs: Inputs, layer: int, rows: tuple[Tensor, Tensor], row: int) -> None:
        self.row, self.rows, self.scale = row, rows, model.head_dim**-0.5
        self.seen = tuple(visible(inputs, positions, row) for positions in rows)
        self.held: tuple[Tensor, ...] = ()

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.held = tuple(value[self.row][:, rows.to(value.device)] for rows in self.rows)

    def keys(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """[batch kv_heads seq head_dim] to the chosen rows' mean [heads seq] and the other rows' patterns [seq rows]"""
        (chosen, other), self.held = self.held, ()
        keys = value[self.row]
        weights = mean_rows(chosen, keys, self.scale, self.seen[0]).cpu()
        return weights, mean_heads(other, keys, self.scale, self.seen[1]).T.cpu()


def _others(inputs: Inputs, chosen: Tensor, row: int) -> Tensor:
    """Up to `REFERENCE` positions, evenly spread over the tokens that were not chosen."""
    free = inputs.attention_mask[row].bool().cpu().clone()
    free[chosen] = False
    left = free.nonzero()[:, 0]
    spread = torch.linspace(0, max(len(left) - 1, 0), min(REFERENCE, len(left))).round().long()
    return left[spread]


def _received(patterns: Tensor, inputs: Inputs, others: Tensor, row: int) -> Tensor:
    """[layers seq]: what the `others` spend on each token, over the even share of each; `patterns` [layers seq rows].

    A token's look at itself does not count. NaN where fewer than `FEWEST` of them follow.
    """
    seen = visible(inputs, others, row).cpu()
    counted = seen & (torch.arange(seen.shape[1]) != others[:, None])
    shares = patterns * (seen.sum(1) * counted.T)
    number = counted.sum(0)
    return torch.where(number >= FEWEST, shares.sum(-1) / number.clamp(min=1), torch.nan)


def _parts(inputs: Inputs, sinks: Sequence[int], row: int) -> Tensor:
    """[groups seq] float32: which group each token is in; padding in none."""
    image = inputs.mm_token_type_ids[row].cpu() > 0
    sink = torch.zeros_like(image)
    sink[list(sinks)] = True
    text = ~image & inputs.attention_mask[row].bool().cpu()
    return torch.stack([image & ~sink, text & ~sink, image & sink, text & sink]).float()
