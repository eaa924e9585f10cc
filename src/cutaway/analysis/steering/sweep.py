"""The effect of steering: a sweep over values and strengths, on what is measured and on what is answered.

Each cell is one run with the direction of one value added at one strength; the control has a random direction of equal
length in its place. It knows directions and metrics; how a direction is made is `steering`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cutaway.analysis.common.activations import check_prompts, spoken
from cutaway.analysis.common.metrics import Metric, answer_logits, measure
from cutaway.analysis.common.progress import Cells, OnProgress
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import bootstrap
from cutaway.analysis.common.sweep import digest, settings
from cutaway.analysis.common.token_selection import Where
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
    where: Where = "last",
    at: Where | None = None,
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
    what = settings(
        "steering", model, metric, where=spoken(where), at=spoken(place), when=str(when), normalise=normalise,
        seed=seed, tokens=max_new_tokens, prompts=[digest(x) for x in listed],
        sets=[[digest(x) for x in prompts] for prompts in (positive, negative)],
    )  # fmt: skip
    reference = cache(lambda n: _reference(model, listed[n], metric))
    grid = [(kind, name, s) for kind in kinds for name in found.vectors for s in strengths]
    with Cells(store, what, on_progress=on_progress) as cells:
        keys: dict[Any, str] = {(n, None): f"{n}/plain" for n in range(len(listed))}
        keys |= {(n, cell): "/".join(map(str, (n, *cell))) for n in range(len(listed)) for cell in grid}
        left = set(cells.missing(keys.values()))
        for (n, cell), key in keys.items():
            if key in left:
                chosen = None if cell is None else kinds[cell[0]].only(cell[1])
                given = {"at": place, "when": when, "strength": 0.0 if cell is None else cell[2]}
                cells[key] = _cell(model, listed[n], metric, chosen, max_new_tokens, given, reference(n))
        results = {key: cells[name] for key, name in keys.items()}
    return _result(
        results, (kinds, strengths), len(listed), metric, (str(spoken(where)), str(spoken(place)), str(when))
    )


def _reference(model: Model, inputs: Inputs, metric: Metric) -> Tensor | None:
    """Logits of the run without steering, for a metric that compares."""
    return answer_logits(model, metric.extend(inputs), metric.places) if metric.needs_reference else None


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
    cells: dict[Any, list[Any]],
    axes: tuple[dict[str, SteeringVectors], tuple[float, ...]],
    count: int,
    metric: Metric,
    said: tuple[str, str, str],
) -> Steering:
    kinds, strengths = axes
    found = kinds[STEERED]
    plain = np.array([cells[n, None][0] for n in range(count)])
    grid = [(kind, name, s) for kind in kinds for name in found.vectors for s in strengths]
    shape = (len(kinds), len(found.vectors), len(strengths), count)
    measured = np.array([[cells[n, cell][0] for n in range(count)] for cell in grid]).reshape(shape)
    effect, low, high = bootstrap(np.moveaxis(measured - plain, -1, 0))
    names = "direction value strength"
    labels = {"direction": list(kinds), "value": list(found.vectors), "strength": [f"{s:g}" for s in strengths]}
    values, has_text = {"value": list(found.vectors)}, cells[0, None][1] is not None
    where, at, when = said
    return Steering(
        where=where,
        at=at,
        when=when,
        normalise=found.notes["normalise"],
        metric=metric.name,
        plain=Array.of(plain, "prompt", unit=metric.unit),
        measured=Array.of(measured, f"{names} prompt", labels, metric.unit),
        effect=Array.of(effect, names, labels, metric.unit),
        low=Array.of(low, names, labels, metric.unit),
        high=Array.of(high, names, labels, metric.unit),
        length=Array.of([float(v.norm()) for v in found.vectors.values()], "value", values),
        size=Array.of([found.sizes[name] for name in found.vectors], "value", values),
        said=tuple(cells[n, None][1] for n in range(count)) if has_text else (),
        answers={
            f"{kind}, {name}, {s:g}": tuple(cells[n, (kind, name, s)][1] for n in range(count))
            for kind, name, s in grid
        }
        if has_text
        else {},
    )
