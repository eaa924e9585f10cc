"""The effect of steering over values and strengths, on a metric and on the answer, beside random directions.

Use it to find at which layers and strengths a steering vector changes the answer. Each cell of the sweep is one run
with the vector of one value added at one strength; the control has a random direction of equal length in its place.
How vectors are made and added is `vectors`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cutaway.analysis.common.activations import plain_selection
from cutaway.analysis.common.arguments import check_count, check_model, describe
from cutaway.analysis.common.caption import caption_of_many
from cutaway.analysis.common.metrics import Metric, answer_logits, measure
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.statistics import mean_interval, no_interval
from cutaway.analysis.common.sweep import OnProgress, Sweep, digest
from cutaway.analysis.common.token_selection import TokenSelection
from cutaway.analysis.steering.vectors import SteeringVectors, check_strength, contrast, steps_of
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

STEERED = "steered"


@dataclass(frozen=True, eq=False)
class Steering(Result, technique="steer"):
    """What adding steering vectors does to a metric and to the answers.

    - `where`, `at`, `when`, `normalise`: the tokens contrasted, the tokens and steps edited, the vectors' scale.
      `about`: the model and the prompts, in words.
    - `baseline`: "prompt", the metric without steering. `measured`: "direction value strength prompt"; directions are
      ``"steered"`` and the controls, ``"random 0"`` …
    - `effect`: "direction value strength", the mean over prompts of measured less baseline. `low`, `high`: its 95 %
      interval over prompts, NaN for fewer than 8.
    - `length`, `size`: "value", the length of the vector and, on average, of the value itself.
    - `baseline_answers`: the answer to each prompt without steering; `answers`: by ``"direction, value, strength"``.
    """

    where: str
    at: str
    when: str
    normalise: str
    metric: str
    about: str
    baseline: Array
    measured: Array
    effect: Array
    low: Array
    high: Array
    length: Array
    size: Array
    baseline_answers: tuple[str, ...]
    answers: dict[str, tuple[str, ...]]

    def summary(self) -> str:
        """Return tables of the effect of every value and strength, the controls' largest, and the first answers."""
        strengths = self.effect.names("strength")
        head = (
            f"{self.metric} without steering: {self.baseline.values.mean():.3f} (n = {self.baseline.shape[0]}); added "
            f"at {self.at}, steps {self.when}; columns are strengths"
        )
        missing = no_interval(self.baseline.shape[0])
        head = f"{head}; {missing}" if missing else head
        rows = [
            (name, *map(float, self.effect.values[0, n]), float(np.abs(self.effect.values[1:, n]).max()))
            for n, name in enumerate(self.effect.names("value"))
        ]
        text = f"{head}\n\n{table(('value', *strengths, 'random, at most'), rows)}"
        if not self.baseline_answers:
            return text
        rows = [
            (name, *(repr(self.answers[f"{STEERED}, {name}, {s}"][0]) for s in strengths))
            for name in self.effect.names("value")
        ]
        answer = f"The answer to the first prompt was {self.baseline_answers[0]!r}; it becomes"
        return f"{text}\n\n{answer}\n\n{table(('value', *strengths), rows)}"

    def figure(self) -> Any:
        """Draw the effect by strength: of one value a line for each direction, of several a table beside a control."""
        return self._draw("draw_steer")


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
    """Return what adding the difference of two sets of prompts to each value in turn does, at each strength.

    - `prompts`: batches of one sample, which are steered and measured by `metric`.
    - `positive`, `negative`, `value`, `where`, `normalise`: as in `contrast`.
    - `at`: the token selection that is edited, default that of `where`. `when`: steps, as in `SteeringVectors.edits`.
    - `controls`: how many random directions, at least one. `max_new_tokens`: of the answers; 0 gives none.
    - `store`: a file that keeps finished cells. `on_progress`: called with cells done and in all.

    The metric is that of the answer's tokens as if they had been generated under steering; one that compares with a
    reference run compares with the run without steering. Raises `InputError` for wrong arguments before any run.
    """
    check_model(model, "Steering")
    listed = check_prompts(prompts)
    numbers = _checked_strengths(strengths)
    check_count("controls", controls)
    check_count("max_new_tokens", max_new_tokens, 0)
    if not isinstance(metric, Metric):
        raise InputError(
            f"`metric` must be a metric such as `probability(model.tokenizer, answer)`; got {describe(metric)}."
        )
    steps_of(when)
    vectors = contrast(model, positive, negative, value=value, where=where, normalise=normalise)
    kinds = {STEERED: vectors, **{f"random {n}": vectors.random(seed + n) for n in range(controls)}}
    edited = where if at is None else at
    settings = {
        "where": plain_selection(where), "at": plain_selection(edited), "when": str(when), "normalise": normalise,
        "seed": seed, "tokens": max_new_tokens, "prompts": [digest(x) for x in listed],
        "sets": [[digest(x) for x in prompts] for prompts in (positive, negative)],
    }  # fmt: skip
    axes = {"direction": list(kinds), "value": list(vectors.vectors), "strength": numbers, "prompt": range(len(listed))}
    baseline = [(None, None, 0.0, n) for n in axes["prompt"]]
    run = _Runs(model, listed, metric, kinds, max_new_tokens, {"at": edited, "when": when})
    with Sweep(
        "steering", model, metric, axes, cells=[*baseline, *product(*axes.values())], settings=settings, store=store,
        on_progress=on_progress,
    ) as sweep:  # fmt: skip
        sweep.run_each(run.compute)
        words = {"where": str(plain_selection(where)), "at": str(plain_selection(edited)), "when": str(when)}
        return _result(sweep, kinds, baseline, metric, {**words, "about": caption_of_many(model, listed)})


def _checked_strengths(strengths: Any) -> tuple[float, ...]:
    """The strengths as floats. Raises `InputError` unless they are different numbers, at least one."""
    if isinstance(strengths, str) or not isinstance(strengths, Sequence) or not strengths:
        raise InputError(f"`strengths` must be a list of at least one number; got {describe(strengths)}.")
    for strength in strengths:
        check_strength(strength)
    if len(set(strengths)) < len(strengths):
        raise InputError(f"`strengths` must differ from each other; got {describe(list(strengths))}.")
    return tuple(map(float, strengths))


class _Runs:
    """Computes the sweep's cells: the metric and the answer of one run each."""

    def __init__(
        self, model: Model, prompts: list[Inputs], metric: Metric, kinds: dict[str, SteeringVectors], tokens: int,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.model, self.prompts, self.metric, self.kinds, self.tokens = model, prompts, metric, kinds, tokens
        self.options = options
        self.references: dict[int, Tensor | None] = {}

    def compute(self, cell: tuple[Any, ...]) -> list[Any]:
        """[metric, answer or None] of a cell (direction, value, strength, prompt); direction None is not steered."""
        kind, address, strength, n = cell
        inputs, forced, edits = self.prompts[n], None, None
        if kind is not None:
            vectors, options = self.kinds[kind].select(address), {**self.options, "strength": strength}
            forced = vectors.teacher_forced_edits(self.model, inputs, **options)
            edits = vectors.edits(self.model, inputs, **options)
        value = float(measure(self.model, inputs, self.metric, edit=forced, reference=self._reference(n))[0])
        if not self.tokens:
            return [value, None]
        answer = self.model.generate(inputs, edit=edits, max_new_tokens=self.tokens, temperature=0)
        return [value, answer.text]

    def _reference(self, n: int) -> Tensor | None:
        """Logits of the run without steering, for a metric that compares."""
        if n not in self.references:
            length, inputs = self.metric.answer_length, self.prompts[n]
            needed = self.metric.needs_reference
            self.references[n] = answer_logits(self.model, self.metric.extend(inputs), length) if needed else None
        return self.references[n]


def _result(
    sweep: Sweep, kinds: dict[str, SteeringVectors], baseline: list[Any], metric: Metric, words: dict[str, str]
) -> Steering:
    vectors = kinds[STEERED]
    addresses, strengths, prompts = (sweep.axes[name] for name in ("value", "strength", "prompt"))
    unsteered = [sweep[cell] for cell in baseline]
    plain = np.array([value for value, _ in unsteered])
    measured = sweep.fill({cell: sweep[cell][0] for cell in product(*sweep.axes.values())})
    effect, low, high = mean_interval(np.moveaxis(measured - plain, -1, 0))
    axes = "direction value strength"
    labels = {"direction": list(kinds), "value": addresses, "strength": [f"{s:g}" for s in strengths]}
    by_value, has_text = {"value": addresses}, unsteered[0][1] is not None
    answers = {
        f"{kind}, {address}, {s:g}": tuple(sweep[kind, address, s, n][1] for n in prompts)
        for kind, address, s in product(kinds, addresses, strengths)
    }
    return Steering(
        **words,
        normalise=vectors.notes["normalise"],
        metric=metric.name,
        baseline=Array.of(plain, "prompt", unit=metric.unit),
        measured=Array.of(measured, f"{axes} prompt", labels, metric.unit),
        effect=Array.of(effect, axes, labels, metric.unit),
        low=Array.of(low, axes, labels, metric.unit),
        high=Array.of(high, axes, labels, metric.unit),
        length=Array.of([float(v.norm()) for v in vectors.vectors.values()], "value", by_value),
        size=Array.of([vectors.sizes[name] for name in addresses], "value", by_value),
        baseline_answers=tuple(text for _, text in unsteered) if has_text else (),
        answers=answers if has_text else {},
    )
