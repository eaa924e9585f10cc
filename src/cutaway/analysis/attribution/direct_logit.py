"""Direct logit attribution: the logit of a token as a sum of what each component wrote into the residual stream.

Use it to see which heads, MLPs, experts and DeepStack layers write the answer. The stream before the final norm is a
sum; the head is linear, and with the norm's scale frozen at its value in this run so is the norm, so each term has its
share of the logit and the shares add up to it. The shares are direct effects alone: what a component contributes
through later ones is counted there, and freezing the norm hides that a term also changes the scale.

Sources: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the frozen norm, Wang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.patterns import layers_without_pattern
from cutaway.analysis.attribution.residual_decomposition import decompose_residual
from cutaway.analysis.common.arguments import check_choice, check_count, check_model, sample_index
from cutaway.analysis.common.caption import caption
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

FIGURES = ("terms", "heads", "image")


@dataclass(frozen=True, eq=False)
class LogitAttribution(Result, technique="direct_logit_attribution"):
    """The logit of an answer, or its difference from a foil's, at one position, as a sum of terms.

    - `target`: the answer (less the foil), `position`: the token, `about`: the model and the prompt, in words.
    - `terms`: "term", the shares of the logit; ``"layer 3 head 2"``. `kinds` and `layers`: of each term, the layer -1
      for what precedes layer 0.
    - `alone`: "term", how far the logit falls when that term is removed and the norm computed anew; not a sum.
    - `logit`: the model's own; `remainder`: `logit` less the sum of `terms`, which is rounding.
    - `sources`: "layer token", the heads' terms split by the token that they read from; NaN where attention is linear.
    - `media`: grid and positions of each image and video. `norm`: how the final norm was treated, in words.
    - `skipped`: a sentence about layers without sources, or empty.
    """

    target: str
    position: str
    about: str
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
        """Return the terms summed by kind, "layer kind"; what precedes layer 0 is layer ``"before"``."""
        numbers, kinds = sorted(set(self.layers)), tuple(dict.fromkeys(self.kinds))
        total = np.zeros((len(numbers), len(kinds)))
        for value, kind, layer in zip(self.terms.values, self.kinds, self.layers, strict=True):
            total[numbers.index(layer), kinds.index(kind)] += value
        names = ["before" if layer < 0 else layer for layer in numbers]
        return Array.of(total, "layer kind", {"layer": names, "kind": kinds}, "logits")

    def heads(self) -> Array:
        """Return the heads' terms, "layer head", linear heads included; NaN where a layer has fewer."""
        by_layer: dict[int, list[float]] = {}
        for layer, kind, value in zip(self.layers, self.kinds, self.terms.values, strict=True):
            if kind.endswith("head"):
                by_layer.setdefault(layer, []).append(float(value))
        most = max(map(len, by_layer.values()), default=0)
        padded = [by_layer[layer] + [np.nan] * (most - len(by_layer[layer])) for layer in sorted(by_layer)]
        return Array.of(
            np.array(padded).reshape(len(by_layer), most), "layer head", {"layer": sorted(by_layer)}, "logits"
        )

    def map(self, item: str | None = None, layer: int | str | None = None) -> Array:
        """Return what heads read from each token of an image or video, "frame row column", of one layer or of all."""
        values = np.nansum(self.sources.values, 0) if layer is None else self.sources.at(layer=str(layer)).values
        return image_map(values, self.media[one_medium(self.media, item)], "logits")

    def top(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the `count` terms of the largest absolute value, with their values."""
        check_count("count", count)
        order = np.argsort(-np.abs(self.terms.values), kind="stable")[:count]
        return [(self.terms.names("term")[i], float(self.terms.values[i])) for i in order]

    def summary(self) -> str:
        """Return a table of the largest terms, their sum beside the logit, and what was read from each image."""
        rows = [(name, value, float(self.alone.at(term=name))) for name, value in self.top(15)]
        lines = [
            f"Direct logit attribution of {self.target} at {self.position}: {self.logit:.3f} logits",
            table(("term", "share", "alone"), rows),
            f"All {len(self.kinds)} terms add up to {self.terms.values.sum():.4f}, {self.remainder:+.1e} from the "
            f"logit; norm {self.norm}.",
        ]
        read = {item: float(np.nansum(self.map(item).values)) for item in self.media}
        lines += [f"Read by heads from {item}: {total:.3f} logits." for item, total in read.items()]
        return "\n".join([*lines, self.skipped] if self.skipped else lines)

    def figure(self, background: Any = None, *, kind: str = "terms", item: str | None = None, count: int = 20) -> Any:
        """Draw the largest `count` terms as bars; with `kind` ``"heads"`` a table of heads, ``"image"`` the map."""
        check_choice("kind", kind, FIGURES)
        return self._draw("draw_direct_logit_attribution", background, kind, item, count)


def direct_logit_attribution(
    model: Model,
    inputs: Inputs,
    *,
    answer: str | int,
    foil: str | int | None = None,
    position: TokenSelection = "last",
    sample: int | None = None,
    edit: Mapping[str, Any] | None = None,
) -> LogitAttribution:
    """Return the logit of the token `answer`, less that of `foil` if there is one, as a sum of terms.

    - `position`: a token selection of one token, whose prediction is attributed. - `sample`: which sample of a batch.
    - `edit`: changes by address that are made in the run.

    Sums are taken in float64 from the values in the model's dtype: in float32 the terms add up to the logit within
    1e-4 of its scale, in bfloat16 the remainder is what the stream's own sums round off. Raises `InputError` for a word
    of several tokens, a selection of several tokens, and other wrong arguments.
    """
    check_model(model, "Direct logit attribution")
    sample = sample_index(inputs, sample)
    selected = select_tokens(model, inputs, position, sample)
    if len(selected.positions) != 1:
        raise InputError(
            f"A logit belongs to one position; the selection {selected.name} has {len(selected.positions)}. Select one "
            f'token, such as `position="last"` or a number.'
        )
    at = int(selected.positions[0])
    ids = [one_id(model.tokenizer, word) for word in ([answer] if foil is None else [answer, foil])]
    direction = _direction(model, ids)
    result = decompose_residual(model, inputs, at, direction=direction, sample=sample, edit=edit)
    assert result.sources is not None  # a direction was given
    vectors = torch.stack([term.vector for term in result.terms])  # [terms hidden]
    scale = _norm_scale(model, result.residual)
    shares = (vectors @ direction * scale).cpu()
    logits = unembed(model, result.residual)[ids].detach().double()
    logit = float(logits[0] - (logits[1] if len(ids) > 1 else 0))
    words = model.tokenizer.strings(ids)
    names = {"term": [term.name for term in result.terms]}
    tokens, layers = token_labels(model, inputs, sample), range(model.num_layers)
    return LogitAttribution(
        target=repr(words[0]) if foil is None else f"{words[0]!r} less {words[1]!r}",
        position=tokens[at],
        about=caption(model, inputs, sample),
        terms=Array.of(shares, "term", names, "logits"),
        alone=Array.of(_alone(model, result.residual, vectors, direction), "term", names, "logits"),
        kinds=tuple(term.kind for term in result.terms),
        layers=tuple(term.layer for term in result.terms),
        logit=logit,
        remainder=logit - float(shares.sum()),
        sources=Array.of(result.sources * scale.cpu(), "layer token", {"layer": layers, "token": tokens}, "logits"),
        media=media_tokens(inputs, sample),
        skipped=layers_without_pattern(model, "are not split by source"),
    )


def _direction(model: Model, ids: list[int]) -> Tensor:
    """[hidden] float64: the logit is this times the normalised stream; the norm's weights are included."""
    head, norm = model.lm_head.weight.detach().double(), model.language_model.norm
    weight = norm.weight.detach().double() + (1.0 if norm.centred else 0.0)
    return (head[ids[0]] - (head[ids[1]] if len(ids) > 1 else 0)) * weight


def _norm_scale(model: Model, residual: Tensor) -> Tensor:
    """[…] float64: what the final norm multiplies streams [… hidden] by, before its weights."""
    return (residual.double().pow(2).mean(-1) + model.language_model.norm.eps).rsqrt()


def _alone(model: Model, residual: Tensor, vectors: Tensor, direction: Tensor) -> Tensor:
    """[terms]: how far the logit falls when one term is removed from the stream and the norm is computed anew."""
    whole, without = residual.double(), residual.double() - vectors
    return whole @ direction * _norm_scale(model, whole) - without @ direction * _norm_scale(model, without)
