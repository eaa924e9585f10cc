"""Attention knockout: does the answer need this group of tokens to look at that one, and in which layers?

In a range of layers the attention scores from one group's queries to another group's keys are masked, and the answer is
measured. A token always sees itself. This shows by which steps the image's content reaches the answer: from the image
to the words of the question and from them to the last token, or directly.

Use it to follow information between tokens; use `pathways` for how it enters the text model. Layers with linear
attention (Qwen3.5) have no pattern to cut; they are left as they are, and the result says which.

Source: attention knockout, Geva et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_model
from cutaway.analysis.common.metrics import KL, Metric, answer_logits, check_metric
from cutaway.analysis.common.prompts import check_prompt
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import OnProgress, Sweep, digest
from cutaway.analysis.common.token_selection import select_tokens, video_frames
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

CUTS = (("image", "question"), ("image", "last"), ("question", "last"))
"""Source and destination: whose keys the destination's queries no longer see."""


@dataclass(frozen=True, eq=False)
class Knockout(Result, technique="knockout"):
    """What is lost when one group of tokens no longer sees another.

    - `metric`, `unit`: what was measured. `baseline`: the metric without a cut.
    - `values`: [cut layers], the metric with the cut made in that range of layers; the last range is all layers.
    - `skipped`: layers without an attention pattern, in which nothing was cut.
    """

    metric: str
    unit: str
    baseline: float
    values: Array
    skipped: tuple[int, ...]

    @property
    def drop(self) -> Array:
        """[cut layers]: baseline less the value; of a KL divergence, of which less is better, value less baseline."""
        loss = self.baseline - self.values.values
        return Array.of(-loss if self.metric == KL else loss, " ".join(self.values.axes), self.values.labels, self.unit)

    def summary(self) -> str:
        """Return the loss by cut and range of layers as text."""
        drop = self.drop
        rows = [(cut, *(drop.at(cut=cut, layers=b) for b in drop.names("layers"))) for cut in drop.names("cut")]
        skipped = ", ".join(map(str, self.skipped))
        left = f"; layers {skipped} have no pattern and are left as they are" if skipped else ""
        unit = "" if self.metric.startswith(self.unit) else f" {self.unit}"
        head = f"{self.metric}: {self.baseline:.3f}{unit} without a cut; what each cut loses, by layers{left}"
        return f"{head}\n\n{table(('cut', *drop.names('layers')), rows)}"

    def figure(self) -> Any:
        """Draw a heat table of the loss."""
        from cutaway.analysis.plots import figures

        word = "Rise" if self.metric == KL else "Drop"
        return figures.heat_table(
            self.drop, title=f"{word} in {self.metric} when a group no longer sees another", signed=True
        )


def attention_knockout(
    model: Model,
    prompt: Inputs,
    metric: Metric,
    *,
    cuts: Sequence[Sequence[Any]] = CUTS,
    width: int | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Knockout:
    """Cut attention between groups of tokens, in each range of layers and in all layers.

    - `cuts`: pairs (source, destination), each a token selection as `select_tokens` takes it (a group, a word, a
      region) or a frame of the first video, ``"frame 0"``; the destination's queries no longer see the source's keys.
    - `width`: layers per range; default a quarter of the model.
    - `store`: a file of finished cells; the same call resumes from it.

    Raises `InputError` before any run for groups that the prompt does not have.
    """
    check_model(model, "Knockout")
    check_prompt(prompt)
    check_metric(metric)
    ranges = _ranges(model.num_layers, width)
    listed = isinstance(cuts, list | tuple) and len(cuts) > 0
    if not listed or any(not isinstance(cut, list | tuple) or len(cut) != 2 for cut in cuts):
        raise InputError(f'`cuts` are pairs such as [("image", "last")], source and destination; got {cuts!r}.')
    full = metric.extend(prompt)
    ends = [tuple(_group(model, prompt, full, selection) for selection in cut) for cut in cuts]
    positions = {f"{source[0]} → {to[0]}": (source[1], to[1]) for source, to in ends}
    for name, (source, to) in positions.items():
        if int(source.min()) >= int(to.max()):
            raise InputError(
                f"A cut hides tokens from ones that come later; got {name}, where no destination comes after a "
                f"source, so "
                f"that nothing would change. Turn the pair round."
            )
    settings = {
        "prompt": digest(prompt),
        "cuts": [[at.tolist() for at in pair] for pair in positions.values()],
        "ranges": ranges,
    }
    axes = {"cut": list(positions), "layers": [_label(first, stop) for first, stop in ranges[:-1]] + ["all"]}
    layers = dict(zip(axes["layers"], ranges, strict=True))
    with Sweep("knockout", model, metric, axes, settings=settings, store=store, on_progress=on_progress) as sweep:
        reference = answer_logits(model, full, metric.answer_length)

        def compute(cell: tuple[str, str]) -> float:
            edit = cut_edits(model, *positions[cell[0]], range(*layers[cell[1]]))
            return float(metric(answer_logits(model, full, metric.answer_length, edit=edit), reference)[0])

        sweep.run_each(compute)
        baseline = float(metric(reference, reference)[0])
        values = Array.of(sweep.array(), "cut layers", axes, metric.unit)
        return Knockout(metric.name, metric.unit, baseline, values, _without_pattern(model))


def cut_edits(model: Model, source: Tensor, to: Tensor, layers: range) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return edits by address that hide the tokens `source` from the tokens `to` in some layers; each sees itself."""

    def hide(scores: Tensor) -> Tensor:  # [batch heads query key]
        cut = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        cut[to[:, None], source[None, :]] = True
        cut.fill_diagonal_(False)
        return scores.masked_fill(cut, torch.finfo(scores.dtype).min)

    skipped = _without_pattern(model)
    return {f"layers.{b}.self_attn.attention_scores": hide for b in layers if b not in skipped}


def _ranges(depth: int, width: int | None) -> list[tuple[int, int]]:
    """Return the ranges of layers (first, stop), all layers last."""
    width = max(1, depth // 4) if width is None else width
    if type(width) is not int or not 1 <= width <= depth:
        raise InputError(f"A range has 1 to {depth} layers, as many as the model; got {width!r}.")
    return [(a, min(a + width, depth)) for a in range(0, depth, width)] + [(0, depth)]


def _label(first: int, stop: int) -> str:
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"


def _without_pattern(model: Model) -> tuple[int, ...]:
    kinds = model.config.text.layer_types
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")


def _group(model: Model, prompt: Inputs, full: Inputs, selection: Any) -> tuple[str, Tensor]:
    """Return a group's name and positions; the answer's tokens, appended to the prompt, go with the last token."""
    if isinstance(selection, str) and selection.startswith("frame "):
        every = video_frames(prompt)
        if selection not in every:
            raise InputError(f"Frames of this video are {', '.join(every)}; got {selection!r}.")
        name, positions = selection, every[selection]
    else:
        selected = select_tokens(model, prompt, selection)
        name, positions = selected.name, selected.positions
    before, after = prompt.input_ids.shape[1], full.input_ids.shape[1]
    return name, torch.cat((positions, torch.arange(before, after))) if before - 1 in positions else positions
