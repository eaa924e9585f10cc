"""Ablation: how much worse does the answer get when one part of the model, or of the prompt, is taken away?

Every cell is one run with one part replaced by zeros, by its mean over tokens, or by what it was in another prompt. The
parts are those of `components` and, as ``token``, all that tokens bring into the text model: their embeddings and their
DeepStack terms.

Source: Morcos et al. 2018; mean and resample ablation as in Wang et al. 2023 and Chan et al. 2022: zeros take the model
where it never is, so a mean or a resample says more about what a part is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.metrics import KL, Metric
from cutaway.analysis.common.progress import Cells, OnProgress
from cutaway.analysis.common.prompts import Spots, align, spots
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import bootstrap
from cutaway.analysis.common.sweep import Job, digest, run_jobs, settings
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.partial_forward import Base, Change, Row
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

WAYS = ("zero", "mean", "resample")

TOKEN = "token"
"""The component that stands for what tokens bring in."""


@dataclass(frozen=True, eq=False)
class Ablation(Result, technique="ablation"):
    """What each part is worth.

    - `component`, `how`, `metric`: what was ablated, by what it was replaced, what was measured.
    - `whole`: [prompt], the metric without ablation.
    - `ablated`: [prompt layer place (head or expert)], the metric of each ablated run; resampling is averaged over the
      other prompts.
    - `drop`: [layer place …], the mean over prompts of whole less ablated; of a KL divergence, of which less is better,
      of ablated less whole. `low`, `high`: 95 % bootstrap interval over prompts, NaN for one prompt.
    """

    component: str
    how: str
    metric: str
    unit: str
    whole: Array
    ablated: Array
    drop: Array
    low: Array
    high: Array

    def ranked(self, count: int | None = None) -> list[tuple[str, float, float, float]]:
        """Parts from what the answer needs most to what it does better without: name, drop, low, high."""
        order = np.argsort(-np.nan_to_num(self.drop.values, nan=-np.inf), axis=None, kind="stable")
        rows = []
        for flat in order[:count]:
            at = np.unravel_index(flat, self.drop.shape)
            if np.isnan(self.drop.values[at]):
                continue
            words = [f"{axis} {self.drop.names(axis)[i]}" for axis, i in zip(self.drop.axes, at, strict=True)]
            name = ", ".join(word for word in words if word != "place all")
            rows.append((name, *(float(a.values[at]) for a in (self.drop, self.low, self.high))))
        return rows

    def summary(self) -> str:
        """The twenty parts that the answer needs most."""
        head = f"{self.metric}: {self.whole.values.mean():.3f} without ablation; {self.component}, {self.how}"
        rows = [
            (name, drop, "" if np.isnan(low) else f"{low:.3f} to {high:.3f}")
            for name, drop, low, high in self.ranked(20)
        ]
        return f"{head}\n\n{table(('part', f'{self._loss} in {self.unit}', '95 %'), rows)}"

    @property
    def _loss(self) -> str:
        return "rise" if self.metric == KL else "drop"

    def figure(self, background: Any = None, *, count: int = 20) -> Any:
        """Bars of the parts that the answer needs most; with `image` the drops of its ablated tokens over it."""
        from cutaway.analysis.plots import figures

        if background is not None:
            cells = figures.placed(self.drop) if self.drop.axes == ("place",) else None
            if cells is None:
                raise InputError(
                    'Tokens of regions lie over an image: ablate `component="token", where="regions 4x4"`.'
                )
            panel = figures.Panel(background, cells, f"tokens ablated ({self.how})")
            return figures.panels_figure([panel], title=f"{self._loss} in {self.metric}", unit=self.unit)
        names, drops, low, high = zip(*self.ranked(count), strict=True)
        title = f"{self.component} ablated ({self.how}): {self._loss} in {self.metric}"
        return figures.bars(names, drops, low=low, high=high, title=title, unit=self.unit)


def ablate(
    model: Model,
    prompts: Inputs | Sequence[Inputs],
    metric: Metric,
    *,
    component: str = "head",
    how: str = "mean",
    where: Spots = ("all",),
    layers: Sequence[int] | None = None,
    others: Sequence[Inputs] = (),
    memory: int = 2**30,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Ablation:
    """Ablates every layer × place of a component, on one prompt or several.

    - `component`: one of `components.COMPONENTS`, or ``"token"`` for what the tokens of each place bring in.
    - `how`: ``"zero"``; ``"mean"`` over the tokens of `others`, or of the prompt itself where none are given, images'
      tokens and words apart; ``"resample"``: the aligned tokens of each of `others` in turn.
    - `where`: places as `pairs.spots` takes them. `memory`, `store`: as in `patching.patch`.

    Raises `InputError` before any run for arguments that do not fit.
    """
    listed = [prompts] if isinstance(prompts, Inputs) else list(prompts)
    _check(listed, how, others)
    chosen = [0] if component == TOKEN else components.layers_of(model, component, layers)
    named = [spots(model, inputs, where) for inputs in listed]
    names = list(named[0])
    if any(list(places) != names for places in named):
        raise InputError("Every prompt must have the same places. Use groups or regions, which prompts have in common.")
    parts = {b: components.parts_of(model, component, b) for b in chosen}
    grid = [(b, p, q) for b in chosen for p in names for q in parts[b]]
    sources = list(others) if how == "resample" else [None]
    ablated = np.full((len(listed), len(chosen), len(names), max(map(len, parts.values()))), np.nan)
    whole = np.zeros(len(listed))
    what = _settings(model, listed, metric, named, others, component=component, how=how, layers=chosen)
    with Cells(store, what, on_progress=on_progress) as cells:
        cells.missing(_key(n, s, c) for n in range(len(listed)) for s in range(len(sources)) for c in grid)
        for n, inputs in enumerate(listed):
            full = metric.extend(inputs)
            base = Base(model, full, metric.places)
            whole[n] = float(metric(base.logits, base.logits)[0])
            for s, source in enumerate(sources):
                maker = _Maker(model, base, component, chosen, how, [*others] if source is None else [source])
                jobs = [_job(maker, named[n], cell, _key(n, s, cell)) for cell in grid]
                run_jobs(base, jobs, metric, base.logits, cells, memory)
            for b, p, q in grid:
                found = [cells[_key(n, s, (b, p, q))] for s in range(len(sources))]
                ablated[n, chosen.index(b), names.index(p), parts[b].index(q)] = np.mean(found)
    return _result(whole, ablated, (chosen, names), (component, how, metric))


def _check(listed: list[Inputs], how: str, others: Sequence[Inputs]) -> None:
    if not listed or how not in WAYS:
        raise InputError(f"Ablation takes at least one prompt and a way of {', '.join(WAYS)}; got {how!r}.")
    if how == "resample" and not others:
        raise InputError("Resampling takes values from other prompts: give some as `others`.")
    if any(inputs.input_ids.shape[0] != 1 for inputs in [*listed, *others]):
        raise InputError("Each prompt is a batch of one.")


def _key(prompt: int, source: int, cell: tuple[int, str, int | None]) -> str:
    return f"{prompt}/{source}/" + "/".join(str(word) for word in cell if word is not None)


def _settings(
    model: Model,
    listed: list[Inputs],
    metric: Metric,
    named: list[dict[str, Tensor]],
    others: Sequence[Inputs],
    **chosen: Any,
) -> dict[str, Any]:
    places = [{name: positions.tolist() for name, positions in found.items()} for found in named]
    prompts = {"prompts": [digest(x) for x in listed], "others": [digest(x) for x in others]}
    return settings("ablation", model, metric, places=places, **prompts, **chosen)


def _job(maker: _Maker, places: dict[str, Tensor], cell: tuple[int, str, int | None], key: str) -> Job:
    layer, place, part = cell
    positions = places[place]
    return Job(key, layer, positions, lambda: maker.row(layer, positions, part))


class _Maker:
    """Makes the edits that ablate parts of one base run."""

    def __init__(
        self, model: Model, base: Base, component: str, layers: list[int], how: str, others: list[Inputs]
    ) -> None:
        self.model, self.base, self.component, self.how = model, base, component, how
        self.visual = base.visual[0].cpu()
        self.old = self._read(base.inputs, layers)
        sources = others or [base.inputs]
        self.new = [self._read(inputs, layers) for inputs in sources] if how != "zero" else []
        self.seen = [inputs.mm_token_type_ids[0] > 0 for inputs in sources]
        self.alignment = align(base.inputs, sources[0]) if how == "resample" else None
        self._means: dict[tuple, tuple[Tensor, Tensor]] = {}

    def row(self, layer: int, positions: Tensor, part: int | None) -> Row:
        """The edits that ablate one part at some positions."""
        if self.component != TOKEN:
            here = positions[self.visual[positions]] if self.component == "deepstack" else positions
            new = self._replacement(self.old[0], [found[0] for found in self.new], layer, here, part)
            return [components.change(self.model, self.old[0], layer, part, here, new)]
        entering = self._replacement(self.old[0], [found[0] for found in self.new], 0, positions, None)
        row = [Change(0, "input", positions, entering)]
        seen = positions[self.visual[positions]]
        for k in range(len(self.base.terms)) if len(seen) else ():
            new = self._replacement(self.old[1], [found[1] for found in self.new], k, seen, None)
            row.append(components.change(self.model, self.old[1], k, None, seen, new))
        return row

    def _read(self, inputs: Inputs, layers: list[int]) -> list[components.Values]:
        """The component's values; for tokens those that enter, and the DeepStack terms where there are some."""
        if self.component != TOKEN:
            return [components.read(self.model, inputs, self.component, layers)]
        visual = (inputs.mm_token_type_ids > 0).cpu()
        entering = self.model.run(inputs, read=["layers.0.input"])["layers.0.input"]
        found = [components.Values(TOKEN, visual, {0: entering}, {})]
        if self.base.terms:
            found.append(components.read(self.model, inputs, "deepstack", range(len(self.base.terms))))
        return found

    def _replacement(
        self, old: components.Values, new: list[components.Values], layer: int, positions: Tensor, part: int | None
    ) -> Tensor:
        """[n width]: what is put at the positions."""
        if self.how == "zero":
            return torch.zeros_like(old.of(layer, part)[0, positions])
        if self.alignment is not None:
            return self.alignment.take(new[0].of(layer, part), positions)
        key = (old.component, layer, part)
        if key not in self._means:
            values = torch.cat([found.of(layer, part)[0] for found in new])
            seen = torch.cat(self.seen)
            blank = values.new_zeros(values.shape[-1])
            words = values[~seen].mean(0) if bool((~seen).any()) else blank
            self._means[key] = words, values[seen].mean(0) if bool(seen.any()) else words
        text, images = self._means[key]
        return torch.where(self.visual[positions, None].to(text.device), images, text)


def _result(
    whole: np.ndarray, ablated: np.ndarray, axes: tuple[list[int], list[str]], said: tuple[str, str, Metric]
) -> Ablation:
    component, how, metric = said
    part = {"head": "head", "expert": "expert"}.get(component)
    names = "layer place" if part is None else f"layer place {part}"
    labels = {"layer": axes[0], "place": axes[1]}
    if component == TOKEN:
        names, labels, ablated = "place", {"place": axes[1]}, ablated[:, 0]
    if part is None:
        ablated = ablated[..., 0]
    lost = whole.reshape(-1, *[1] * (ablated.ndim - 1)) - ablated
    drop, low, high = bootstrap(-lost if metric.name == KL else lost)
    return Ablation(
        component=component,
        how=how,
        metric=metric.name,
        unit=metric.unit,
        whole=Array.of(whole, "prompt", unit=metric.unit),
        ablated=Array.of(ablated, f"prompt {names}", labels, metric.unit),
        drop=Array.of(drop, names, labels, metric.unit),
        low=Array.of(low, names, labels, metric.unit),
        high=Array.of(high, names, labels, metric.unit),
    )
