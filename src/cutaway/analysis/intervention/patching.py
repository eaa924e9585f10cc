"""Activation patching: which values, put from one run into another, carry the answer over?

The answer is right for a clean prompt and wrong for a corrupt one. Each cell of a grid layer × tokens (× head or
expert) is one run in which one value is replaced by the other run's (*denoising* puts clean values into the corrupt
run, *noising* the reverse); its effect is the part of the distance between the two runs' metrics that the patch covers.
Attribution patching estimates all effects from one gradient.

Use it to locate where an answer is decided; use `ablation` where there is no second prompt.

Source: activation patching, Vig et al. 2020 and Meng et al. 2022; practice, Heimersheim and Nanda 2024; attribution
patching, Nanda 2023 and Syed et al. 2023.
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
from cutaway.analysis.common.metrics import Metric, check_metric
from cutaway.analysis.common.prompts import Alignment, Pair, align, check_pairs
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import correlation, mean_interval, no_interval
from cutaway.analysis.common.sweep import Cell, OnProgress, Sweep, digest
from cutaway.analysis.common.token_selection import PositionGroups, position_groups
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.partial_forward import (
    BaselineRun,
    PlannedRun,
    PositionEdit,
    run_planned,
    scatter_to_sequence,
)
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.run import run_values

DIRECTIONS = ("denoise", "noise")
"""Clean values into the corrupt run: what suffices for the answer; corrupt ones into the clean run: what it needs."""

SAME = 1e-6
"""Two runs measure the same where their metrics differ by no more than this part of the larger: rounding alone."""


@dataclass(frozen=True, eq=False)
class Patching(Result, technique="patching"):
    """A grid of patched runs.

    - `component`, `metric`, `unit`, `direction`: what was patched, what was measured, whose values went where.
    - `clean`, `corrupt`: [pair], the metric of the whole runs.
    - `patched`: [pair layer tokens (head or expert)], the metric of each patched run.
    - `effect`: [layer tokens …], the mean over pairs of (patched - base) / (source - base), where base is the metric
      of the run that is patched and source that of the run that values come from: 0 where the patch changes nothing,
      1 where it gives the source's metric. `low`, `high`: 95 % interval of that mean over pairs, NaN for fewer than 8.
    - `skipped`: pairs, by number, that `effect` leaves out since both their runs measure the same.
    - `estimate`: attribution patching's estimate of `effect`; `agreement`: their correlation over all cells.
    """

    component: str
    metric: str
    unit: str
    direction: str
    clean: Array
    corrupt: Array
    patched: Array
    effect: Array
    low: Array
    high: Array
    estimate: Array | None
    agreement: float | None
    skipped: tuple[int, ...]

    def summary(self) -> str:
        """Return the runs' metrics and the ten strongest cells, of either sign, as text."""
        order = np.argsort(-np.abs(np.nan_to_num(self.effect.values)), axis=None, kind="stable")[:10]
        names = [self.effect.names(axis) for axis in self.effect.axes]
        rows = []
        for flat in order:
            at = np.unravel_index(flat, self.effect.shape)
            span = (
                f"{self.low.values[at]:.3f} to {self.high.values[at]:.3f}" if np.isfinite(self.low.values[at]) else ""
            )
            rows.append((*(n[i] for n, i in zip(names, at, strict=True)), float(self.effect.values[at]), span))
        head = (
            f"{self.metric}: clean {self.clean.values.mean():.3f}, corrupt {self.corrupt.values.mean():.3f} "
            f"({self._pairs}); {self.component}, {self.direction}"
        )
        agreement = "" if self.agreement is None else f"\nAttribution patching agrees at r = {self.agreement:.3f}."
        return f"{head}\n\n{table((*self.effect.axes, 'effect', '95 %'), rows)}{agreement}"

    @property
    def _pairs(self) -> str:
        """The number of pairs, those left out, and why there is no interval."""
        every, left = len(self.clean.values), len(self.skipped)
        words = [f"{every} pair{'' if every == 1 else 's'}"]
        if left:
            words.append(f"{left} left out: both runs measure the same")
        words.append(no_interval(every - left))
        return ", ".join(word for word in words if word)

    def figure(self, background: Any = None, *, tokens: str | None = None, estimate: bool = False) -> Any:
        """Draw the effects: layer × tokens, or layer × head at one group of `tokens` (default the first).

        With `background`, the image that was patched, each layer's effects over it; the grid's tokens must be regions
        or single tokens. `estimate` draws attribution patching's estimate.
        """
        from cutaway.analysis.plots import figures

        shown = self.estimate if estimate and self.estimate is not None else self.effect
        count = len(self.clean.values) - len(self.skipped)
        title = f"{self.component} patched ({self.direction}, n = {count}): {self.metric}"
        if background is not None:
            return self._over_image(background, shown, title)
        if len(shown.axes) == 3:
            tokens = tokens or shown.names("tokens")[0]
            shown, title = shown.at(tokens=tokens), f"{title}, at {tokens}"
        return figures.heat_table(shown, title=title)

    def _over_image(self, background: Any, shown: Array, title: str) -> Any:
        from cutaway.analysis.plots import images

        if len(shown.axes) == 3:
            raise InputError(f"Only effects without parts are drawn over an image; got one per {shown.axes[2]}.")
        panels = [images.Panel(None, "image", background)]
        for layer in shown.names("layer"):
            cells = images.cells_of_places(shown.at(layer=layer))
            if cells is None:
                raise InputError(
                    "Only regions and single tokens are drawn over an image; got "
                    f'{", ".join(shown.names("tokens")[:3])}. Patch with `where="regions 4x4"`.'
                )
            panels.append(images.Panel(cells, f"layer {layer}", background))
        return images.maps(panels, title=title, unit=shown.unit)


@dataclass(frozen=True, eq=False)
class _PreparedPair:
    """One pair, ready to be patched: the baseline run, both runs' values, and the metric at both ends.

    `old` are the baseline's own values, `new` the source's; `ends` the metric of the baseline and of the source.
    """

    baseline: BaselineRun
    old: components.ComponentValues
    new: components.ComponentValues
    alignment: Alignment
    groups: dict[str, Tensor]
    ends: tuple[float, float]
    reference: Tensor

    def edit(self, model: Model, layer: int, tokens: str, part: int | None) -> PositionEdit:
        """Return the edit of one cell."""
        positions = self.groups[tokens]
        if self.old.component == "deepstack":
            positions = positions[self.old.visual[0, positions]]
        new = self.alignment.take(self.new.of(layer, part), positions)
        return components.edit_component(model, self.old, layer, part, positions, new)


def patch(
    model: Model,
    pairs: Pair | Sequence[Pair],
    metric: Metric,
    *,
    component: str = "residual",
    where: PositionGroups = "tokens",
    layers: Sequence[int] | None = None,
    direction: str = "denoise",
    attribution: bool = True,
    memory: int = 2**30,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Patching:
    """Patch every layer × group of tokens (× head or expert) of a component, for one pair of prompts or several.

    - `component`: one of `components.COMPONENTS`.
    - `where`: groups of tokens of the prompt that is patched, as `position_groups` takes them. Values come from the
      aligned tokens of the other prompt, also where its image has another size.
    - `layers`: default all that have the component.
    - `direction`: ``"denoise"`` puts clean values into the corrupt run, ``"noise"`` corrupt ones into the clean run.
    - `attribution`: also estimate every cell from one gradient.
    - `memory`: bytes that a batch of cells may take. `store`: a file of finished cells; the same call resumes from it.

    Raises `InputError` before any run for prompts, tokens, layers or components that do not fit.
    """
    check_model(model, "Patching")
    check_choice("direction", direction, DIRECTIONS)
    check_count("memory", memory)
    listed, metric = check_pairs(pairs), check_metric(metric)
    layers = components.layers_with(model, component, layers)
    groups = []
    for inputs in (_base_and_source(pair, direction)[0] for pair in listed):
        every = position_groups(model, inputs, where)
        groups.append(components.groups_with_effect(component, inputs, every, isinstance(where, str)))
    names = same_names(groups, "pair")
    parts = {layer: components.parts_of(model, component, layer) for layer in layers}
    grid = [(b, name, part) for b in layers for name in names for part in parts[b]]
    axes = {"pair": range(len(listed)), "layer": layers, "tokens": names, "part": max(parts.values(), key=len)}
    settings = {
        "pairs": [[digest(pair.clean), digest(pair.corrupt)] for pair in listed],
        "positions": [{name: positions.tolist() for name, positions in group.items()} for group in groups],
        "component": component,
        "layers": layers,
        "direction": direction,
    }
    estimates: dict[Cell, float] = {}
    ends = np.zeros((len(listed), 2))
    cells = [(n, *cell) for n in range(len(listed)) for cell in grid]
    with Sweep(
        "patching", model, metric, axes, cells=cells, settings=settings, store=store, on_progress=on_progress
    ) as sweep:
        for n, pair in enumerate(listed):
            prepared = _prepare(model, pair, metric, component, groups[n], layers, direction)
            ends[n] = prepared.ends
            planned = {(n, *cell): _plan(model, prepared, cell) for cell in grid}
            run_planned(sweep, prepared.baseline, planned, metric, prepared.reference, memory)
            if attribution:
                estimates |= {(n, *cell): x for cell, x in _estimate(model, prepared, metric, grid).items()}
        estimated = sweep.fill(estimates) if attribution else None
        return _result(sweep.array(), estimated, ends, axes, (component, metric, direction))


def same_names(groups: Sequence[dict[str, Tensor]], what: str) -> list[str]:
    """Return the names of the groups, which all prompts must have in common."""
    names = list(groups[0])
    for n, group in enumerate(groups):
        if list(group) != names:
            raise InputError(
                f"Every {what} must have the same groups of tokens; got {', '.join(list(group)[:4])} … in {what} {n}, "
                f"{', '.join(names[:4])} … in {what} 0. Use groups or regions, which prompts have in common."
            )
    return names


def _base_and_source(pair: Pair, direction: str) -> tuple[Inputs, Inputs]:
    """Return the prompt that is patched, and the one that values come from."""
    return (pair.corrupt, pair.clean) if direction == "denoise" else (pair.clean, pair.corrupt)


def _prepare(
    model: Model,
    pair: Pair,
    metric: Metric,
    component: str,
    groups: dict[str, Tensor],
    layers: list[int],
    direction: str,
) -> _PreparedPair:
    base, source = (metric.extend(inputs) for inputs in _base_and_source(pair, direction))
    baseline, other = (BaselineRun(model, inputs, metric.answer_length) for inputs in (base, source))
    reference = other.logits if direction == "denoise" else baseline.logits
    ends = float(metric(baseline.logits, reference)[0]), float(metric(other.logits, reference)[0])
    del other
    old, new = (components.read_component(model, inputs, component, layers) for inputs in (base, source))
    return _PreparedPair(baseline, old, new, align(base, source), groups, ends, reference)


def _plan(model: Model, prepared: _PreparedPair, cell: tuple[int, str, int | None]) -> PlannedRun:
    return PlannedRun(cell[0], prepared.groups[cell[1]], lambda: [prepared.edit(model, *cell)])


def _estimate(
    model: Model, prepared: _PreparedPair, metric: Metric, grid: list[tuple[int, str, int | None]]
) -> dict[tuple[int, str, int | None], float]:
    """Return attribution patching's metric of each cell: to first order, ``base + gradient · (new - old)``."""
    old, baseline, root = prepared.old, prepared.baseline, model.root
    names = {b: f"layers.{b}.{components.value_name(model, old.component, b)}" for b in old.by_layer}
    run = run_values(
        root,
        lambda: root.lm_head(root.model(baseline.inputs)[:, -baseline.answer_length :]),
        read=list(names.values()),
        grad=True,
        to_end=True,
    )
    with torch.enable_grad():
        measured = metric(run.result, prepared.reference).sum()
    values = [run[name] for name in names.values()]
    slopes = torch.autograd.grad(measured, values, allow_unused=True)
    gradients = {
        b: torch.zeros_like(value) if slope is None else slope
        for b, value, slope in zip(names, values, slopes, strict=True)
    }
    if old.component == "deepstack":
        gradients = {b: scatter_to_sequence(slope, baseline.visual) for b, slope in gradients.items()}
    estimates = {}
    for layer, tokens, part in grid:
        edit = prepared.edit(model, layer, tokens, part)
        step = components.change_of(old, edit, part) * components.gradient_at(gradients, edit)
        estimates[layer, tokens, part] = float(measured.detach()) + float(step.double().sum())
    return estimates


def _result(
    measured: np.ndarray,
    estimated: np.ndarray | None,
    ends: np.ndarray,
    axes: dict[str, Any],
    described: tuple[str, Metric, str],
) -> Patching:
    """Return the result of `measured` and `estimated` [pair layer tokens part] and `ends` [pair 2], base and source."""
    component, metric, direction = described
    part = {"head": "head", "expert": "expert"}.get(component)
    names = "layer tokens" if part is None else f"layer tokens {part}"
    labels = {"layer": axes["layer"], "tokens": axes["tokens"]}
    if part is None:
        measured, estimated = measured[..., 0], None if estimated is None else estimated[..., 0]
    skipped = np.abs(ends[:, 1] - ends[:, 0]) <= SAME * np.abs(ends).max(1)
    effects = _effects(measured, ends, skipped)
    mean, low, high = (Array.of(x, names, labels, "effect") for x in mean_interval(effects))
    guessed = None if estimated is None else _effects(estimated, ends, skipped)
    clean, corrupt = (ends[:, 1], ends[:, 0]) if direction == "denoise" else (ends[:, 0], ends[:, 1])
    return Patching(
        component=component,
        metric=metric.name,
        unit=metric.unit,
        direction=direction,
        clean=Array.of(clean, "pair", unit=metric.unit),
        corrupt=Array.of(corrupt, "pair", unit=metric.unit),
        patched=Array.of(measured, f"pair {names}", labels, metric.unit),
        effect=mean,
        low=low,
        high=high,
        estimate=None if guessed is None else Array.of(guessed.mean(0), names, labels, "effect"),
        agreement=None if guessed is None else correlation(effects, guessed),
        skipped=tuple(np.flatnonzero(skipped).tolist()),
    )


def _effects(measured: np.ndarray, ends: np.ndarray, skipped: np.ndarray) -> np.ndarray:
    """Return (measured - base) / (source - base), [pairs that are not skipped …]; one pair of NaN if all are."""
    if skipped.all():
        return np.full_like(measured[:1], np.nan)
    measured, ends = measured[~skipped], ends[~skipped]
    base, source = (ends[:, n].reshape(-1, *[1] * (measured.ndim - 1)) for n in (0, 1))
    return (measured - base) / (source - base)
