"""The effect of steering: a sweep over values and strengths, on what is measured and on what is answered.

Each cell is one run with the direction of one value added at one strength; the control has a random direction of equal
length in its place. It knows directions and metrics; how a direction is made is `steering`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cutaway.analysis.common.activations import plain_selection
from cutaway.analysis.common.metrics import Metric, answer_logits, measure
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import bootstrap
from cutaway.analysis.common.sweep import OnProgress, Sweep, digest
from cutaway.analysis.common.token_selection import TokenSelection
from cutaway.analysis.steering.directions import SteeringVectors, contrast, steps_of
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

STEERED = "steered"


@dataclass(frozen=True, eq=False)
class Steering(Result, technique="steer"):
    """What adding a direction does.

    - `where`, `at`, `when`, `normalise`: where the sets were contrasted, and where and at which steps it is added.
    - `plain`: [prompt], the metric without it. `measured`: [direction value strength prompt]; directions are
      ``"steered"`` and the controls, ``"random 0"`` …
    - `effect`: [direction value strength], the mean over prompts of measured less plain. `low`, `high`: 95 % bootstrap
      interval over prompts, NaN for one prompt.
    - `length`, `size`: [value], of the direction and, on average, of the value itself.
    - `said`: the answer to each prompt as it is; `answers`: by ``"direction, value, strength"``, one a prompt.
    """

    where: str
    at: str
    when: str
    normalise: str
    metric: str
    plain: Array
    measured: Array
    effect: Array
    low: Array
    high: Array
    length: Array
    size: Array
    said: tuple[str, ...]
    answers: dict[str, tuple[str, ...]]

    def summary(self) -> str:
        """The effect of every value at every strength, the controls' largest, and the answers to the first prompt."""
        strengths = self.effect.names("strength")
        head = (
            f"{self.metric} without steering: {self.plain.values.mean():.3f}; added at {self.at}, steps {self.when}; "
            f"columns are strengths"
        )
        rows = [
            (name, *map(float, self.effect.values[0, n]), float(np.abs(self.effect.values[1:, n]).max()))
            for n, name in enumerate(self.effect.names("value"))
        ]
        text = f"{head}\n\n{table(('value', *strengths, 'random, at most'), rows)}"
        if not self.said:
            return text
        rows = [
            (name, *(repr(self.answers[f"{STEERED}, {name}, {s}"][0]) for s in strengths))
            for name in self.effect.names("value")
        ]
        return f"{text}\n\nThe answer was {self.said[0]!r}; it becomes\n\n{table(('value', *strengths), rows)}"

    def figure(self) -> Any:
        """Effect by strength: of one value a line for each direction, of several a table beside that of a control."""
        from cutaway.analysis.plots import figures

        title = f"Steering at {self.at}: change of {self.metric}"
        values, strengths = self.effect.names("value"), self.effect.names("strength")
        if len(values) == 1:
            return figures.lines(
                self.effect.at(value=0), title=title, low=self.low.at(value=0), high=self.high.at(value=0)
            )
        shown = np.concatenate([self.effect.values[0], self.effect.values[1]], 1)
        labels = {
            "value": tuple(name.removesuffix(".layer_output") for name in values),
            "direction and strength": tuple(f"{kind} {s}" for kind in (STEERED, "random") for s in strengths),
        }
        return figures.grid(Array(shown, tuple(labels), labels, self.effect.unit), title=title, signed=True)


def steer(
    model: Model,
    prompts: Inputs | Sequence[Inputs],
    metric: Metric,
    *,
    positive: Sequence[Inputs],
    negative: Sequence[Inputs],
    value: str | Sequence[str] = "layers.*.layer_output",
    where: TokenSelection = "last",
    at: TokenSelection | None = None,
    when: Any = "prompt",
    normalise: str = "none",
    strengths: Sequence[float] = (-1.0, 0.5, 1.0, 2.0),
    controls: int = 1,
    max_new_tokens: int = 8,
    seed: int = 0,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Steering:
    """Adds the difference of two sets of prompts to each value in turn, at each strength, and random ones beside it.

    - `positive`, `negative`, `value`, `where`, `normalise`: as in `steering.contrast`.
    - `at`: tokens of the prompt that it is added to; default those of `where`. `when`: as in `SteeringVectors.edits`.
    - `controls`: how many random directions, at least one. `max_new_tokens`: of the answers; 0 gives none.
    - `store`: a file that keeps finished cells.

    The metric is that of the answer's tokens as if they had been chosen under steering, step by step; one that compares
    with a reference run compares with the run without steering. Raises `InputError` before any run for arguments that
    do not fit.
    """
    listed = [prompts] if isinstance(prompts, Inputs) else list(prompts)
    check_prompts(listed)
    strengths = tuple(map(float, strengths))
    if not strengths or controls < 1 or max_new_tokens < 0 or len(set(strengths)) < len(strengths):
        raise InputError(
            f"Steering takes different strengths, at least one control and no negative number of tokens; got "
            f"{strengths}, controls={controls}, max_new_tokens={max_new_tokens}."
        )
    steps_of(when)
    found = contrast(model, positive, negative, value=value, where=where, normalise=normalise)
    kinds = {STEERED: found, **{f"random {n}": found.random(seed + n) for n in range(controls)}}
    place = where if at is None else at
    settings = {
        "where": plain_selection(where), "at": plain_selection(place), "when": str(when), "normalise": normalise,
        "seed": seed, "tokens": max_new_tokens, "prompts": [digest(x) for x in listed],
        "sets": [[digest(x) for x in prompts] for prompts in (positive, negative)],
    }  # fmt: skip
    reference = cache(lambda n: _reference(model, listed[n], metric))
    axes = {"direction": list(kinds), "value": list(found.vectors), "strength": strengths, "prompt": range(len(listed))}
    plain = [(None, None, 0.0, n) for n in axes["prompt"]]

    def compute(cell: tuple[Any, ...]) -> list[Any]:
        kind, name, strength, n = cell
        vectors = None if kind is None else kinds[kind].only(name)
        given = {"at": place, "when": when, "strength": strength}
        return _cell(model, listed[n], metric, vectors, max_new_tokens, given, reference(n))

    with Sweep(
        "steering", model, metric, axes, cells=[*plain, *product(*axes.values())], settings=settings, store=store,
        on_progress=on_progress,
    ) as sweep:  # fmt: skip
        sweep.run_each(compute)
        described = (str(plain_selection(where)), str(plain_selection(place)), str(when))
        return _result(sweep, kinds, plain, metric, described)


def _reference(model: Model, inputs: Inputs, metric: Metric) -> Tensor | None:
    """Logits of the run without steering, for a metric that compares."""
    return answer_logits(model, metric.extend(inputs), metric.answer_length) if metric.needs_reference else None


def _cell(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    chosen: SteeringVectors | None,
    tokens: int,
    given: dict[str, Any],
    reference: Tensor | None,
) -> list[Any]:
    """The metric and the answer of one steered run."""
    forced = None if chosen is None else chosen.forced(model, inputs, **given)
    value = float(measure(model, inputs, metric, edit=forced, reference=reference)[0])
    if not tokens:
        return [value, None]
    edits = None if chosen is None else chosen.edits(model, inputs, **given)
    return [value, model.generate(inputs, edit=edits, max_new_tokens=tokens, temperature=0).text]


def _result(
    sweep: Sweep, kinds: dict[str, SteeringVectors], plain: list[Any], metric: Metric, described: tuple[str, str, str]
) -> Steering:
    found = kinds[STEERED]
    unsteered = [sweep[cell] for cell in plain]
    grid = list(product(*sweep.axes.values()))
    baseline = np.array([value for value, _ in unsteered])
    measured = sweep.fill({cell: sweep[cell][0] for cell in grid})
    effect, low, high = bootstrap(np.moveaxis(measured - baseline, -1, 0))
    strengths, prompts = sweep.axes["strength"], sweep.axes["prompt"]
    names = "direction value strength"
    labels = {"direction": list(kinds), "value": list(found.vectors), "strength": [f"{s:g}" for s in strengths]}
    values, has_text = {"value": list(found.vectors)}, unsteered[0][1] is not None
    where, at, when = described
    return Steering(
        where=where,
        at=at,
        when=when,
        normalise=found.notes["normalise"],
        metric=metric.name,
        plain=Array.of(baseline, "prompt", unit=metric.unit),
        measured=Array.of(measured, f"{names} prompt", labels, metric.unit),
        effect=Array.of(effect, names, labels, metric.unit),
        low=Array.of(low, names, labels, metric.unit),
        high=Array.of(high, names, labels, metric.unit),
        length=Array.of([float(v.norm()) for v in found.vectors.values()], "value", values),
        size=Array.of([found.sizes[name] for name in found.vectors], "value", values),
        said=tuple(text for _, text in unsteered) if has_text else (),
        answers={
            f"{kind}, {name}, {s:g}": tuple(sweep[kind, name, s, n][1] for n in prompts)
            for kind, name, s in product(kinds, found.vectors, strengths)
        }
        if has_text
        else {},
    )
