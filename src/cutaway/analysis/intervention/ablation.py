"""Ablation: how much worse does the answer get when one part of the model, or of the prompt, is taken away?

Every cell is one run in which one part is replaced by zeros, by its mean over tokens, or by its value in another
prompt. The parts are those of `components` and, as ``token``, all that tokens bring into the text model: their
embeddings and their DeepStack terms.

Use it to rank parts by how much an answer needs them; use `patch` where a second prompt says what to replace them by.

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

from cutaway.analysis.common.arguments import check_choice, check_count, check_model
from cutaway.analysis.common.metrics import KL, Metric, check_metric
from cutaway.analysis.common.prompts import align, check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import mean_interval, no_interval
from cutaway.analysis.common.sweep import OnProgress, Sweep, digest
from cutaway.analysis.common.token_selection import PositionGroups, position_groups
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.partial_forward import BaselineRun, EditSet, PlannedRun, PositionEdit, run_planned
from cutaway.analysis.intervention.patching import same_names
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

REPLACEMENTS = ("zero", "mean", "resample")
"""What an ablated part is replaced by."""

TOKEN = "token"
"""The component that stands for all that tokens bring into the text model."""


@dataclass(frozen=True, eq=False)
class Ablation(Result, technique="ablation"):
    """What each part is worth.

    - `component`, `how`, `metric`, `unit`: what was ablated, by what it was replaced, what was measured.
    - `baseline`: [prompt], the metric without ablation.
    - `ablated`: [prompt layer tokens (head or expert)], the metric of each ablated run; resampling is averaged over the
      other prompts. For the component ``token`` [prompt tokens].
    - `drop`: [layer tokens …], the mean over prompts of baseline less ablated; of a KL divergence, of which less is
      better, of ablated less baseline. `low`, `high`: 95 % interval of that mean over prompts, NaN for fewer than 8.
    """

    component: str
    how: str
    metric: str
    unit: str
    baseline: Array
    ablated: Array
    drop: Array
    low: Array
    high: Array

    def ranked(self, count: int | None = None) -> list[tuple[str, float, float, float]]:
        """Return the parts by the size of their drop, whatever its sign: name, drop, low, high.

        Without a part of negative drop the answer is better.
        """
        order = np.argsort(-np.nan_to_num(np.abs(self.drop.values), nan=-1), axis=None, kind="stable")
        rows = []
        for flat in order[:count]:
            at = np.unravel_index(flat, self.drop.shape)
            if np.isnan(self.drop.values[at]):
                continue
            words = [f"{axis} {self.drop.names(axis)[i]}" for axis, i in zip(self.drop.axes, at, strict=True)]
            name = ", ".join(word for word in words if word != "tokens all")
            rows.append((name, *(float(a.values[at]) for a in (self.drop, self.low, self.high))))
        return rows

    def summary(self) -> str:
        """Return the twenty parts that matter most, for or against the answer, as text."""
        count, note = len(self.baseline.values), no_interval(len(self.baseline.values))
        head = (
            f"{self.metric}: {self.baseline.values.mean():.3f} without ablation; {self.component}, {self.how}; "
            f"{count} prompt{'' if count == 1 else 's'}{f', {note}' if note else ''}"
        )
        rows = [
            (name, drop, "" if np.isnan(low) else f"{low:.3f} to {high:.3f}")
            for name, drop, low, high in self.ranked(20)
        ]
        return f"{head}\n\n{table(('part', f'{self._loss} in {self.unit}', '95 %'), rows)}"

    @property
    def _loss(self) -> str:
        return "rise" if self.metric == KL else "drop"

    def figure(self, background: Any = None, *, count: int = 20) -> Any:
        """Draw bars of the parts with the largest effects, both signs; with `background` ablated tokens over it."""
        from cutaway.analysis.plots import figures, images

        if background is not None:
            cells = images.cells_of_places(self.drop) if self.drop.axes == ("tokens",) else None
            if cells is None:
                raise InputError(
                    "Only ablated regions and single tokens are drawn over an image; got the component "
                    f'{self.component}. Ablate `component="token", where="regions 4x4"`.'
                )
            shown = images.Panel(cells, f"tokens ablated ({self.how})", background)
            return images.maps(
                [images.image_panel(background, cells), shown], title=f"{self._loss} in {self.metric}", unit=self.unit
            )
        names, drops, low, high = zip(*self.ranked(count), strict=True)
        title = f"{self.component} ablated ({self.how}, n = {len(self.baseline.values)}): {self._loss} in {self.metric}"
        return figures.bars(names, drops, low=low, high=high, title=title, unit=self.unit)


def ablate(
    model: Model,
    prompts: Inputs | Sequence[Inputs],
    metric: Metric,
    *,
    component: str = "head",
    how: str = "mean",
    where: PositionGroups = ("all",),
    layers: Sequence[int] | None = None,
    others: Sequence[Inputs] = (),
    memory: int = 2**30,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Ablation:
    """Ablate every layer × group of tokens (× head or expert) of a component, on one prompt or several.

    - `component`: one of `components.COMPONENTS`, or ``"token"`` for all that the tokens of each group bring in.
    - `how`: ``"zero"``; ``"mean"`` over the tokens of `others`, or of the prompt itself where there are none, image
      tokens and words apart; ``"resample"``: the aligned tokens of each of `others` in turn.
    - `where`: groups of tokens as `position_groups` takes them. `layers`: default all that have the component.
    - `memory`, `store`: as in `patching.patch`.

    Raises `InputError` before any run for arguments that do not fit.
    """
    check_model(model, "Ablation")
    check_choice("component", component, (*components.COMPONENTS, TOKEN))
    check_choice("how", how, REPLACEMENTS)
    check_count("memory", memory)
    listed, others, metric = check_prompts(prompts), check_prompts(others, "others", least=0), check_metric(metric)
    _check_used(component, how, layers, others)
    layers = [0] if component == TOKEN else components.layers_with(model, component, layers)
    groups = []
    for inputs in listed:
        every = position_groups(model, inputs, where)
        groups.append(components.groups_with_effect(component, inputs, every, isinstance(where, str)))
    names = same_names(groups, "prompt")
    parts = {layer: components.parts_of(model, component, layer) for layer in layers}
    grid = [(b, name, part) for b in layers for name in names for part in parts[b]]
    sources = list(range(len(others))) if how == "resample" else [0]
    axes = {
        "prompt": range(len(listed)), "source": sources, "layer": layers, "tokens": names,
        "part": max(parts.values(), key=len),
    }  # fmt: skip
    settings = {
        "positions": [{name: positions.tolist() for name, positions in group.items()} for group in groups],
        "prompts": [digest(inputs) for inputs in listed],
        "others": [digest(inputs) for inputs in others],
        "component": component,
        "how": how,
        "layers": layers,
    }
    baselines = np.zeros(len(listed))
    cells = [(n, s, *cell) for n in range(len(listed)) for s in sources for cell in grid]
    with Sweep(
        "ablation", model, metric, axes, cells=cells, settings=settings, store=store, on_progress=on_progress
    ) as sweep:
        for n, inputs in enumerate(listed):
            baseline = BaselineRun(model, metric.extend(inputs), metric.answer_length)
            baselines[n] = float(metric(baseline.logits, baseline.logits)[0])
            for s in sources:
                maker = _Ablator(model, baseline, component, layers, how, [others[s]] if how == "resample" else others)
                planned = {(n, s, *cell): maker.plan(groups[n], *cell) for cell in grid}
                run_planned(sweep, baseline, planned, metric, baseline.logits, memory)
        return _result(baselines, sweep.array().mean(1), axes, (component, how, metric))


def _check_used(component: str, how: str, layers: Any, others: Sequence[Inputs]) -> None:
    """Raise `InputError` for arguments that would do nothing."""
    if how == "resample" and not others:
        raise InputError("Resampling takes values from other prompts; got none. Give some as `others`.")
    if how == "zero" and others:
        raise InputError(
            '`others` are what means and resampling come from; got how="zero", which takes none from them.'
        )
    if component == TOKEN and layers is not None:
        raise InputError(f"Tokens are ablated where they enter the text model; got layers={layers!r}. Leave it out.")


class _Ablator:
    """Makes the edits that ablate parts of one baseline run, from the values of `sources` (default its own)."""

    def __init__(
        self,
        model: Model,
        baseline: BaselineRun,
        component: str,
        layers: Sequence[int],
        how: str,
        sources: Sequence[Inputs],
    ) -> None:
        self.model, self.baseline, self.component, self.how = model, baseline, component, how
        self.visual = baseline.visual[0].cpu()
        self.old = self._read(baseline.inputs, layers)
        sources = sources or [baseline.inputs]
        self.new = [self._read(inputs, layers) for inputs in sources] if how != "zero" else []
        self.source_visual = [inputs.mm_token_type_ids[0] > 0 for inputs in sources]
        self.alignment = align(baseline.inputs, sources[0]) if how == "resample" else None
        self._means: dict[tuple, tuple[Tensor, Tensor]] = {}

    def plan(self, groups: dict[str, Tensor], layer: int, tokens: str, part: int | None) -> PlannedRun:
        """Return the run of one cell."""
        positions = groups[tokens]
        return PlannedRun(layer, positions, lambda: self.edits(layer, positions, part))

    def edits(self, layer: int, positions: Tensor, part: int | None) -> EditSet:
        """Return the edits that ablate one part at some positions."""
        if self.component != TOKEN:
            here = positions[self.visual[positions]] if self.component == "deepstack" else positions
            new = self._replacement(self.old[0], [values[0] for values in self.new], layer, here, part)
            return [components.edit_component(self.model, self.old[0], layer, part, here, new)]
        entering = self._replacement(self.old[0], [values[0] for values in self.new], 0, positions, None)
        edits = [PositionEdit(0, "input", positions, entering)]
        visual = positions[self.visual[positions]]
        for k in range(len(self.baseline.deepstack)) if len(visual) else ():
            new = self._replacement(self.old[1], [values[1] for values in self.new], k, visual, None)
            edits.append(components.edit_component(self.model, self.old[1], k, None, visual, new))
        return edits

    def _read(self, inputs: Inputs, layers: Sequence[int]) -> list[components.ComponentValues]:
        """Return the component's values; for ``token`` the embeddings and, where there are some, DeepStack terms."""
        if self.component != TOKEN:
            return [components.read_component(self.model, inputs, self.component, layers)]
        visual = (inputs.mm_token_type_ids > 0).cpu()
        entering = self.model.run(inputs, read=["layers.0.input"])["layers.0.input"]
        values = [components.ComponentValues(TOKEN, visual, {0: entering}, {})]
        if self.baseline.deepstack:
            terms = range(len(self.baseline.deepstack))
            values.append(components.read_component(self.model, inputs, "deepstack", terms))
        return values

    def _replacement(
        self,
        old: components.ComponentValues,
        new: list[components.ComponentValues],
        layer: int,
        positions: Tensor,
        part: int | None,
    ) -> Tensor:
        """Return [n width]: what is put at the positions."""
        if self.how == "zero":
            return torch.zeros_like(old.of(layer, part)[0, positions])
        if self.alignment is not None:
            return self.alignment.take(new[0].of(layer, part), positions)
        key = (old.component, layer, part)
        if key not in self._means:
            values = torch.cat([source.of(layer, part)[0] for source in new])  # [tokens of all sources, width]
            visual = torch.cat(self.source_visual)
            zeros = values.new_zeros(values.shape[-1])
            words = values[~visual].mean(0) if bool((~visual).any()) else zeros
            self._means[key] = words, values[visual].mean(0) if bool(visual.any()) else words
        words, images = self._means[key]
        return torch.where(self.visual[positions, None].to(words.device), images, words)


def _result(
    baselines: np.ndarray, ablated: np.ndarray, axes: dict[str, Any], described: tuple[str, str, Metric]
) -> Ablation:
    """Return the result of `baselines` [prompt] and `ablated` [prompt layer tokens part]."""
    component, how, metric = described
    part = {"head": "head", "expert": "expert"}.get(component)
    names = "layer tokens" if part is None else f"layer tokens {part}"
    labels = {"layer": axes["layer"], "tokens": axes["tokens"]}
    if component == TOKEN:
        names, labels, ablated = "tokens", {"tokens": axes["tokens"]}, ablated[:, 0]
    if part is None:
        ablated = ablated[..., 0]
    losses = baselines.reshape(-1, *[1] * (ablated.ndim - 1)) - ablated
    drop, low, high = mean_interval(-losses if metric.name == KL else losses)
    return Ablation(
        component=component,
        how=how,
        metric=metric.name,
        unit=metric.unit,
        baseline=Array.of(baselines, "prompt", unit=metric.unit),
        ablated=Array.of(ablated, f"prompt {names}", labels, metric.unit),
        drop=Array.of(drop, names, labels, metric.unit),
        low=Array.of(low, names, labels, metric.unit),
        high=Array.of(high, names, labels, metric.unit),
    )
