"""Activation patching: which values, put from one run into another, carry the answer over?

A clean prompt has the answer, a corrupt one has another. Each cell of a grid of layer × place (× head or expert) is one
run on the corrupt prompt with one value replaced by the clean run's; the metric says how much of the answer came along.
Attribution patching estimates every cell at once from one gradient.

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

from cutaway.analysis.common.metrics import Metric
from cutaway.analysis.common.progress import Cells, OnProgress
from cutaway.analysis.common.prompts import Alignment, Pair, Spots, align, spots
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import bootstrap, correlation
from cutaway.analysis.common.sweep import Job, digest, run_jobs, settings
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.partial_forward import Base, Change
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.values import run_values

DIRECTIONS = ("denoise", "noise")
"""Clean values into the corrupt run: what suffices for the answer; corrupt ones into the clean run: what it needs."""


@dataclass(frozen=True, eq=False)
class Patching(Result, technique="patching"):
    """A grid of patched runs.

    - `component`, `metric`, `direction`: what was patched, measured, and whose values went where.
    - `clean`, `corrupt`: [pair], the metric of the whole runs.
    - `patched`: [pair layer place (head or expert)], the metric of each patched run.
    - `effect`: [layer place …], the mean over pairs of the share of the way from the run that is patched to the run
      that the values come from: 0 where the patch does nothing, 1 where it does all. `low`, `high`: 95 % bootstrap
      interval over pairs, NaN for one pair.
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

    def summary(self) -> str:
        """The runs' metrics and the ten strongest cells."""
        order = np.argsort(-np.abs(np.nan_to_num(self.effect.values)), axis=None, kind="stable")[:10]
        names = [self.effect.names(axis) for axis in self.effect.axes]
        rows = []
        for flat in order:
            at = np.unravel_index(flat, self.effect.shape)
            span = f"{self.low.values[at]:.3f} to {self.high.values[at]:.3f}" if len(self.clean.values) > 1 else ""
            rows.append((*(n[i] for n, i in zip(names, at, strict=True)), float(self.effect.values[at]), span))
        count = len(self.clean.values)
        pairs = "1 pair" if count == 1 else f"{count} pairs"
        head = (
            f"{self.metric}: clean {self.clean.values.mean():.3f}, corrupt {self.corrupt.values.mean():.3f} "
            f"({pairs}); {self.component}, {self.direction}"
        )
        agreement = "" if self.agreement is None else f"\nAttribution patching agrees at r = {self.agreement:.3f}."
        return f"{head}\n\n{table((*self.effect.axes, 'effect', '95 %'), rows)}{agreement}"

    def figure(self, background: Any = None, *, place: str | None = None, estimate: bool = False) -> Any:
        """The grid of effects: layer × place, or layer × head at one `place` (by default the first).

        With `image`, the one that was patched, each layer's effects over it, where places are regions or tokens.
        """
        from cutaway.analysis.plots import figures

        shown = self.estimate if estimate and self.estimate is not None else self.effect
        title = f"{self.component} patched ({self.direction}): {self.metric}"
        if background is not None:
            return self._over(background, shown, title)
        if len(shown.axes) == 3:
            place = place or shown.names("place")[0]
            shown, title = shown.at(place=place), f"{title}, at {place}"
        return figures.grid(shown, title=title)

    def _over(self, background: Any, shown: Array, title: str) -> Any:
        from cutaway.analysis.plots import figures

        if len(shown.axes) == 3:
            raise InputError(f"One {shown.axes[2]} at a time lies over an image; draw the grid without it.")
        panels = []
        for layer in shown.names("layer"):
            cells = figures.placed(shown.at(layer=layer))
            if cells is None:
                raise InputError('Only regions and tokens lie over an image: patch with `where="regions 4x4"`.')
            panels.append(figures.Panel(background, cells, f"layer {layer}"))
        return figures.panels_figure(panels, title=title, unit=shown.unit)


@dataclass(frozen=True, eq=False)
class _Side:
    """One pair made ready: the run that is patched, where values come from, and the places."""

    base: Base
    old: components.Values
    new: components.Values
    alignment: Alignment
    places: dict[str, Tensor]
    ends: tuple[float, float]
    reference: Tensor

    def change(self, model: Model, layer: int, place: str, part: int | None) -> Change:
        """The edit of one cell."""
        positions = self.places[place]
        if self.old.component == "deepstack":
            positions = positions[self.old.visual[0, positions]]
        taken = self.alignment.take(self.new.of(layer, part), positions)
        return components.change(model, self.old, layer, part, positions, taken)


def patch(
    model: Model,
    pairs: Pair | Sequence[Pair],
    metric: Metric,
    *,
    component: str = "residual",
    where: Spots = "tokens",
    layers: Sequence[int] | None = None,
    direction: str = "denoise",
    attribution: bool = True,
    memory: int = 2**30,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Patching:
    """Patches every layer × place of a component, for one pair of prompts or several.

    - `component`: one of `components.COMPONENTS`; `where`: places as `pairs.spots` takes them, in the prompt that is
      patched; values come from the aligned tokens of the other one, also where its image has another size.
    - `direction`: ``"denoise"`` puts clean values into the corrupt run, ``"noise"`` corrupt ones into the clean run.
    - `memory`: bytes that a batch of cells may take. `store`: a file of finished cells, for resuming.

    Raises `InputError` before any run for prompts, places, layers or components that do not fit.
    """
    listed = [pairs] if isinstance(pairs, Pair) else list(pairs)
    if not listed or direction not in DIRECTIONS:
        raise InputError(f"Patching takes at least one pair and a direction of {DIRECTIONS}; got {direction!r}.")
    chosen = components.layers_of(model, component, layers)
    named = [spots(model, _sides(pair, direction)[0], where) for pair in listed]
    names = list(named[0])
    if any(list(places) != names for places in named):
        raise InputError("Every pair must have the same places. Use groups or regions, which prompts have in common.")
    parts = {layer: components.parts_of(model, component, layer) for layer in chosen}
    what = _settings(model, listed, metric, named, component=component, layers=chosen, direction=direction)
    measured = np.full((len(listed), len(chosen), len(names), max(map(len, parts.values()))), np.nan)
    guesses, ends = np.full_like(measured, np.nan), np.zeros((len(listed), 2))
    with Cells(store, what, on_progress=on_progress) as cells:
        cells.missing(_key(n, b, p, q) for n in range(len(listed)) for b in chosen for p in names for q in parts[b])
        for n, pair in enumerate(listed):
            side = _ready(model, pair, metric, component, named[n], chosen, direction)
            ends[n] = side.ends
            grid = [(b, p, q) for b in chosen for p in names for q in parts[b]]
            run_jobs(side.base, _jobs(model, side, grid, n), metric, side.reference, cells, memory)
            guess = _estimate(model, side, metric, grid) if attribution else {}
            for b, p, q in grid:
                at = (n, chosen.index(b), names.index(p), parts[b].index(q))
                measured[at] = cells[_key(n, b, p, q)]
                guesses[at] = guess.get((b, p, q), np.nan)
    return _result(measured, guesses, ends, (chosen, names), (component, metric, direction), attribution)


def _sides(pair: Pair, direction: str) -> tuple[Inputs, Inputs]:
    """The prompt that is patched and the one that the values come from."""
    return (pair.corrupt, pair.clean) if direction == "denoise" else (pair.clean, pair.corrupt)


def _key(pair: int, layer: int, place: str, part: int | None) -> str:
    return f"{pair}/{layer}/{place}" if part is None else f"{pair}/{layer}/{place}/{part}"


def _ready(
    model: Model,
    pair: Pair,
    metric: Metric,
    component: str,
    places: dict[str, Tensor],
    layers: list[int],
    direction: str,
) -> _Side:
    patched, giving = (metric.extend(inputs) for inputs in _sides(pair, direction))
    base, other = Base(model, patched, metric.places), Base(model, giving, metric.places)
    reference = other.logits if direction == "denoise" else base.logits
    ends = float(metric(base.logits, reference)[0]), float(metric(other.logits, reference)[0])
    del other
    old, new = (components.read(model, inputs, component, layers) for inputs in (patched, giving))
    return _Side(base, old, new, align(patched, giving), places, ends, reference)


def _jobs(model: Model, side: _Side, grid: list[tuple[int, str, int | None]], pair: int) -> list[Job]:
    return [
        Job(_key(pair, *cell), cell[0], side.places[cell[1]], lambda cell=cell: [side.change(model, *cell)])
        for cell in grid
    ]


def _estimate(
    model: Model, side: _Side, metric: Metric, grid: list[tuple[int, str, int | None]]
) -> dict[tuple[int, str, int | None], float]:
    """Attribution patching: the metric of each cell to first order, ``base + gradient · (new - old)``."""
    layers = list(side.old.found)
    names = {b: f"layers.{b}.{components.value_of(model, side.old.component, b)}" for b in layers}
    root, base = model.root, side.base
    found = run_values(
        root,
        lambda: root.lm_head(root.model(base.inputs)[:, -base.places :]),
        read=list(names.values()),
        grad=True,
        to_end=True,
    )
    with torch.enable_grad():
        measured = metric(found.result, side.reference).sum()
    values = [found[name] for name in names.values()]
    slopes = torch.autograd.grad(measured, values, allow_unused=True)
    spread = base.spread if side.old.component == "deepstack" else lambda slope: slope
    gradients = {
        b: spread(torch.zeros_like(value) if slope is None else slope)
        for b, value, slope in zip(layers, values, slopes, strict=True)
    }
    guesses = {}
    for layer, place, part in grid:
        made = side.change(model, layer, place, part)
        step = components.difference(side.old, made, part) * components.gradient_at(gradients, made)
        guesses[layer, place, part] = float(measured.detach()) + float(step.double().sum())
    return guesses


def _settings(
    model: Model, pairs: list[Pair], metric: Metric, named: list[dict[str, Tensor]], **chosen: Any
) -> dict[str, Any]:
    """What the cells depend on, as plain data."""
    prompts = [[digest(pair.clean), digest(pair.corrupt)] for pair in pairs]
    places = [{name: positions.tolist() for name, positions in found.items()} for found in named]
    return settings("patching", model, metric, pairs=prompts, places=places, **chosen)


def _result(
    measured: np.ndarray,
    guesses: np.ndarray,
    ends: np.ndarray,
    axes: tuple[list[int], list[str]],
    said: tuple[str, Metric, str],
    attribution: bool,
) -> Patching:
    component, metric, direction = said
    part = {"head": "head", "expert": "expert"}.get(component)
    names = "layer place" if part is None else f"layer place {part}"
    labels = {"layer": axes[0], "place": axes[1]}
    if part is None:
        measured, guesses = measured[..., 0], guesses[..., 0]
    lead = (ends[:, 1] - ends[:, 0]).reshape(-1, *[1] * (measured.ndim - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares, guessed = (
            np.where(lead == 0, np.nan, (x - ends[:, 0].reshape(lead.shape)) / lead) for x in (measured, guesses)
        )
    mean, low, high = (Array.of(x, names, labels, "share of the way") for x in bootstrap(shares))
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
        estimate=Array.of(guessed.mean(0), names, labels, "share of the way") if attribution else None,
        agreement=correlation(shares, guessed) if attribution else None,
    )
