"""Attention knock-outs: does the answer need this group of tokens to look at that one, and in which layers?

In a range of layers the scores from one group's queries to another group's keys are masked, and the answer is measured.
A token always keeps sight of itself. This shows by which steps what the image says travels: from the image to the
words of the question, from them to the last token, or straight.

Source: attention knock-out, Geva et al. 2023. Layers with linear attention (Qwen3.5) have no pattern to cut; they are
left whole, and the result says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.metrics import KL, Metric, answer_logits
from cutaway.analysis.common.progress import Cells, OnProgress
from cutaway.analysis.common.prompts import spots
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import digest, settings
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

CUTS = (("image", "question"), ("image", "last"), ("question", "last"))
"""Source and destination: what the destination's tokens no longer see."""


@dataclass(frozen=True, eq=False)
class Knockout(Result, technique="knockout"):
    """What is lost when one group of tokens no longer sees another.

    - `metric`, `unit`: what was measured; `whole`: without a cut.
    - `values`: [cut layers], the metric with the cut made in that range of layers; the last range is all layers.
    - `skipped`: layers without a pattern, in which nothing was cut.
    """

    metric: str
    unit: str
    whole: float
    values: Array
    skipped: tuple[int, ...]

    @property
    def drop(self) -> Array:
        """[cut layers]: whole less the value; of a KL divergence, of which less is better, the value less the whole."""
        lost = self.whole - self.values.values
        return Array.of(-lost if self.metric == KL else lost, " ".join(self.values.axes), self.values.labels, self.unit)

    def summary(self) -> str:
        """The loss by cut and range of layers."""
        drop = self.drop
        rows = [(cut, *(drop.at(cut=cut, layers=b) for b in drop.names("layers"))) for cut in drop.names("cut")]
        left = f"; layers {', '.join(map(str, self.skipped))} have no pattern and stay whole" if self.skipped else ""
        unit = "" if self.metric.startswith(self.unit) else f" {self.unit}"
        head = f"{self.metric}: {self.whole:.3f}{unit} without a cut; what each cut loses, by layers{left}"
        return f"{head}\n\n{table(('cut', *drop.names('layers')), rows)}"

    def figure(self) -> Any:
        """A heat table of the loss."""
        from cutaway.analysis.plots import figures

        word = "Rise" if self.metric == KL else "Drop"
        return figures.grid(
            self.drop, title=f"{word} in {self.metric} when a group no longer sees another", signed=True
        )


def knockout(
    model: Model,
    prompt: Inputs,
    metric: Metric,
    *,
    cuts: Sequence[Sequence[str]] = CUTS,
    width: int | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Knockout:
    """Cuts attention between groups of tokens, range of layers by range of layers, and in all layers.

    - `cuts`: pairs (source, destination) of groups or words as `pairs.spots` takes them, or frames of a video,
      ``"frame 0"``; the destination's queries no longer see the source's keys.
    - `width`: layers in a range; default a quarter of the model.
    - `store`: where finished runs are kept, so that a stopped run goes on.

    Raises `InputError` before any run for groups that the prompt does not have.
    """
    if prompt.input_ids.shape[0] != 1:
        raise InputError(f"The prompt is a batch of one; got {prompt.input_ids.shape[0]} rows.")
    depth = model.num_layers
    width = max(1, depth // 4) if width is None else width
    if not 1 <= width <= depth:
        raise InputError(f"A range has 1 to {depth} layers, as many as the model; got {width}.")
    ranges = [(a, min(a + width, depth)) for a in range(0, depth, width)] + [(0, depth)]
    wrong = [cut for cut in cuts if isinstance(cut, str) or len(cut) != 2]
    if wrong or not len(cuts):
        raise InputError(f'Cuts are pairs such as ("image", "last"), source and destination; got {wrong or "none"}.')
    full = metric.extend(prompt)
    places = {name: _places(model, prompt, full, name) for cut in cuts for name in cut}
    names = [f"{source} → {to}" for source, to in cuts]
    what = settings("knockout", model, metric, prompt=digest(prompt), cuts=[list(c) for c in cuts], width=width)
    with Cells(store, what, on_progress=on_progress) as cells:
        reference = answer_logits(model, full, metric.places)
        left = set(cells.missing(f"{n} {a}:{b}" for n in names for a, b in ranges))
        for (source, to), name in zip(cuts, names, strict=True):
            for a, b in ranges:
                if f"{name} {a}:{b}" in left:
                    edit = edits(model, places[source], places[to], range(a, b))
                    logits = answer_logits(model, full, metric.places, edit=edit)
                    cells[f"{name} {a}:{b}"] = float(metric(logits, reference)[0])
        labels = {"cut": names, "layers": [_range(a, b) for a, b in ranges[:-1]] + ["all"]}
        values = [[cells[f"{n} {a}:{b}"] for a, b in ranges] for n in names]
        whole = float(metric(reference, reference)[0])
        return Knockout(
            metric.name, metric.unit, whole, Array.of(values, "cut layers", labels, metric.unit), _linear(model)
        )


def edits(model: Model, source: Tensor, to: Tensor, layers: range) -> dict[str, Callable[[Tensor], Tensor]]:
    """Edits by address that hide the tokens `source` from the tokens `to` in some layers; each still sees itself."""

    def hide(scores: Tensor) -> Tensor:
        cut = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        cut[to[:, None], source[None, :]] = True
        cut.fill_diagonal_(False)
        return scores.masked_fill(cut, torch.finfo(scores.dtype).min)

    skipped = _linear(model)
    return {f"layers.{b}.self_attn.attention_scores": hide for b in layers if b not in skipped}


def _range(first: int, stop: int) -> str:
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"


def _linear(model: Model) -> tuple[int, ...]:
    kinds = model.config.text.layer_types
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")


def _places(model: Model, prompt: Inputs, full: Inputs, name: str) -> Tensor:
    """Positions of a group; with the last token come the answer's tokens that were appended to the prompt."""
    if name.startswith("frame "):
        found = spots(model, prompt, "frames").get(name)
        if found is None:
            raise InputError(f"The video has no {name!r}; it has {', '.join(spots(model, prompt, 'frames'))}.")
    else:
        found = spots(model, prompt, [name])[name]
    before, after = prompt.input_ids.shape[1], full.input_ids.shape[1]
    return torch.cat((found, torch.arange(before, after))) if before - 1 in found else found
