"""Direct logit attribution: the logit of a token as a sum of what each part wrote into the stream.

The stream before the final norm is a sum: the embedding or image feature, DeepStack terms, every head's output, every
MLP's or expert's. The head is linear, and with the norm's scale frozen at its value in this run so is the norm; each
term then has its share of the logit, and the shares add up to it. They are direct effects alone: what a part
contributes through later parts is counted there, and a frozen norm hides that terms also change the scale.

Sources: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the frozen norm, Wang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.pattern_rows import skipped
from cutaway.analysis.attribution.residual_decomposition import decompose_residual
from cutaway.analysis.common.metrics import one_id
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import (
    TokenSelection,
    image_map,
    media_tokens,
    one_medium,
    select_tokens,
    token_labels,
)
from cutaway.analysis.lens.residual_stream import unembed
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class LogitAttribution(Result, technique="direct_logit_attribution"):
    """The logit of a token, or of one less that of another, at one position, as a sum of terms.

    - `terms`: "term", named ``"layer 3 head 2"``; `kinds` and `layers` say of each what it is and in which layer (-1:
      before the first). - `alone`: "term", how far the logit falls when that term is taken out and the norm computed
      anew; these do not add up.
    - `logit`: the model's own; `remainder`: `logit` less the sum of `terms`, which is rounding.
    - `sources`: "layer token", the heads' terms split by the token that each head read them from; layers with linear
      attention have none (NaN).
    - `images`: grid and positions of each image and video. - `norm`: how the norm was treated, in words.
    """

    target: str
    position: str
    terms: Array
    alone: Array
    kinds: tuple[str, ...]
    layers: tuple[int, ...]
    logit: float
    remainder: float
    sources: Array
    media: dict[str, dict[str, tuple[int, ...]]]
    norm: str = "frozen at this run's scale"
    skipped: str = ""

    def by_kind(self) -> Array:
        """The terms summed over kinds: "layer kind", what precedes the first layer as layer ``"before"``."""
        names, kinds = sorted(set(self.layers)), tuple(dict.fromkeys(self.kinds))
        total = np.zeros((len(names), len(kinds)))
        for value, kind, layer in zip(self.terms.values, self.kinds, self.layers, strict=True):
            total[names.index(layer), kinds.index(kind)] += value
        shown = ["before" if layer < 0 else layer for layer in names]
        return Array.of(total, "layer kind", {"layer": shown, "kind": kinds}, "logits")

    def heads(self) -> Array:
        """The heads' terms, "layer head", linear heads included; NaN where a layer has fewer."""
        found = [
            (b, t) for b, k, t in zip(self.layers, self.kinds, self.terms.values, strict=True) if k.endswith("head")
        ]
        layers = sorted({b for b, _ in found})
        rows = [[t for other, t in found if other == b] for b in layers]
        wide = max(map(len, rows), default=0)
        padded = [row + [np.nan] * (wide - len(row)) for row in rows]
        return Array.of(np.array(padded).reshape(len(layers), wide), "layer head", {"layer": layers}, "logits")

    def map(self, item: str | None = None, layer: int | str | None = None) -> Array:
        """What the heads read from each token of an image or video, "frame row column": of one layer, or of all."""
        values = np.nansum(self.sources.values, 0) if layer is None else self.sources.at(layer=str(layer)).values
        return image_map(values, self.media[one_medium(self.media, item)], "logits")

    def top(self, count: int = 10) -> list[tuple[str, float]]:
        """The terms of the largest size, with their values."""
        order = np.argsort(-np.abs(self.terms.values))[:count]
        return [(self.terms.names("term")[i], float(self.terms.values[i])) for i in order]

    def summary(self) -> str:
        """The largest terms, and that they add up."""
        rows = [(name, value, float(self.alone.at(term=name))) for name, value in self.top(15)]
        lines = [
            f"Direct attribution of {self.target} at {self.position}: {self.logit:.3f} logits",
            table(("term", "share", "alone"), rows),
            f"All {len(self.kinds)} terms add up to {self.terms.values.sum():.4f}, {self.remainder:+.1e} from the "
            f"logit; norm {self.norm}.",
        ]
        read = {item: np.nansum(self.map(item).values) for item in self.media}
        lines += [f"Read by heads from {item}: {total:.3f} logits." for item, total in read.items()]
        return "\n".join([*lines, self.skipped] if self.skipped else lines)

    def figure(self, background: Any = None, *, kind: str = "terms", item: str | None = None, count: int = 20) -> Any:
        """`kind` ``"terms"``: the largest as bars; ``"heads"``: a table; ``"image"``: what heads read from where."""
        from cutaway.analysis.plots import figures, maps

        title = f"{self.target} at {self.position}"
        if kind == "terms":
            names, values = zip(*self.top(count), strict=True)
            return figures.bars(names, values, title=f"Direct attribution of {title}", unit="logits")
        if kind == "heads":
            return figures.grid(self.heads(), title=f"Heads' shares of {title}", signed=True)
        if kind == "image":
            return maps.frames_figure(self.map(item), background, f"Read by heads: {title}", signed=True)
        raise InputError(f'`kind` is "terms", "heads" or "image"; got {kind!r}.')


def direct_logit_attribution(
    model: Model,
    inputs: Inputs,
    *,
    answer: str | int,
    foil: str | int | None = None,
    position: TokenSelection = "last",
    row: int = 0,
    edit: Mapping[str, Any] | None = None,
) -> LogitAttribution:
    """The logit of the token `answer`, less that of `foil` if given, at one `position` of a row, taken apart.

    Sums are taken in float64 from the values as the model has them: on float32 the terms add up to the logit within
    1e-4 of its scale, in bfloat16 the remainder is what the stream's own sums round off.

    Raises `InputError` for a word of several tokens, or more than one position.
    """
    model.require_weights("Attribution")
    chosen = select_tokens(model, inputs, position, row)
    if len(chosen.positions) != 1:
        raise InputError(
            f"A logit stands at one position; {chosen.name} has {len(chosen.positions)}. Give one of them."
        )
    place = int(chosen.positions[0])
    ids = [one_id(model.tokenizer, word) for word in ([answer] if foil is None else [answer, foil])]
    direction = _direction(model, ids)
    found = decompose_residual(model, inputs, row, place, direction, edit)
    vectors = torch.stack([term.vector for term in found.terms])
    scale = _scale(model, found.stream)
    shares = (vectors @ direction * scale).cpu()
    logits = unembed(model, found.stream)[ids].detach().double()
    logit = float(logits[0] - (logits[1] if len(ids) > 1 else 0))
    names = model.tokenizer.strings(ids)
    named = {"term": [term.name for term in found.terms]}
    tokens, layers = token_labels(model, inputs, row), range(model.num_layers)
    return LogitAttribution(
        target=repr(names[0]) if foil is None else f"{names[0]!r} less {names[1]!r}",
        position=tokens[place],
        terms=Array.of(shares, "term", named, "logits"),
        alone=Array.of(_alone(model, found.stream, vectors, direction), "term", named, "logits"),
        kinds=tuple(term.kind for term in found.terms),
        layers=tuple(term.layer for term in found.terms),
        logit=logit,
        remainder=logit - float(shares.sum()),
        sources=Array.of(found.sources * scale.cpu(), "layer token", {"layer": layers, "token": tokens}, "logits"),
        media=media_tokens(inputs, row),
        skipped=skipped(model).replace("are left out", "are not split by source") if skipped(model) else "",
    )


def _direction(model: Model, ids: list[int]) -> Tensor:
    """[hidden] float64: what the logit is made of a normed stream, the norm's weights included."""
    head, norm = model.lm_head.weight.detach().double(), model.language_model.norm
    weight = norm.weight.detach().double() + (1.0 if norm.centred else 0.0)
    return (head[ids[0]] - (head[ids[1]] if len(ids) > 1 else 0)) * weight


def _scale(model: Model, stream: Tensor) -> Tensor:
    """[…] float64: what the final norm multiplies streams [… hidden] by, its weights apart."""
    return (stream.double().pow(2).mean(-1) + model.language_model.norm.eps).rsqrt()


def _alone(model: Model, stream: Tensor, vectors: Tensor, direction: Tensor) -> Tensor:
    """[terms]: how far the logit falls when one term is taken out of the stream and the norm is computed anew."""
    whole, left = stream.double(), stream.double() - vectors
    return whole @ direction * _scale(model, whole) - left @ direction * _scale(model, left)
