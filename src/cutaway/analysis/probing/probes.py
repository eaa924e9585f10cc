"""Linear probes: what can be read off a value by a linear map, layer by layer.

Each value of each prompt, pooled over a group of tokens, is one example; a probe is trained on some and scored on
others. Beside each score stands the same with the labels shuffled, which says how much of it the probe owes to its own
size. A high score says that the value holds the information, not that the model uses it.

Sources: Alain and Bengio 2016; shuffled labels after Hewitt and Liang 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.activations import harvest, plain_selection
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import OnProgress
from cutaway.analysis.common.token_selection import TokenSelection
from cutaway.analysis.probing.linear import LinearProbe, fit, predictions, scores
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

METHODS = ("logistic", "ridge")


@dataclass(frozen=True, eq=False)
class Probing(Result, technique="probe"):
    """Held-out scores by value.

    - `where`, `pool`, `method`, `penalty`, `folds`: what was read and how the probes were trained.
    - `classes`: of the labels, empty for numbers. `examples`: how many there are.
    - `score`, `low`, `high`: [value], accuracy (or R² for numbers) of all held-out predictions, with its 95 % interval.
    - `train_score`: [value], on the examples that each probe was trained on.
    - `shuffled`: [control value], the held-out score when labels are shuffled. `chance`: the share of the largest
      class, 0 for numbers.
    - `confusion`: [true predicted] counts of the best value's held-out predictions; none for numbers.
    """

    where: str
    pool: str
    method: str
    penalty: float
    folds: int
    examples: int
    classes: tuple[str, ...]
    chance: float
    score: Array
    low: Array
    high: Array
    train_score: Array
    shuffled: Array
    confusion: Array | None

    @property
    def best(self) -> str:
        """The value with the best held-out score, the first of equals."""
        return self.score.names("value")[int(np.argmax(self.score.values))]

    def summary(self) -> str:
        """Held-out score, its interval and the control of every value."""
        what = f"{len(self.classes)} classes" if self.classes else "numbers"
        head = (
            f"{self.method} probes of {what} at {self.where} ({self.pool}), {self.examples} examples, "
            f"{self.folds} folds; chance {self.chance:.3f}"
        )
        numbers = (self.score.values, self.low.values, self.high.values, self.train_score.values)
        rows = [
            (name, float(s), f"{lo:.3f} to {hi:.3f}", float(t), float(c))
            for name, s, lo, hi, t, c in zip(
                self.score.names("value"), *numbers, self.shuffled.values.mean(0), strict=True
            )
        ]
        return f"{head}\n\n{table(('value', 'held out', '95 %', 'trained on', 'labels shuffled'), rows)}"

    def figure(self, *, confusion: bool = False) -> Any:
        """The curve of held-out scores over values with control and chance, or the best value's confusions."""
        from cutaway.analysis.plots import figures

        if confusion:
            if self.confusion is None:
                raise InputError("Numbers have no confusions; the curve is `figure()`.")
            return figures.grid(self.confusion, title=f"Held-out predictions from {self.best}", signed=False)
        names = self.score.names("value")
        chance = np.full(len(names), self.chance)
        series = ("held out", "labels shuffled", "chance")
        means = np.stack([self.score.values, self.shuffled.values.mean(0), chance])
        lows = np.stack([self.low.values, self.shuffled.values.min(0), chance])
        highs = np.stack([self.high.values, self.shuffled.values.max(0), chance])
        labels = {"probe": series, "value": [name.removesuffix(".layer_output") for name in names]}
        curve, low, high = (Array.of(found, "probe value", labels, self.score.unit) for found in (means, lows, highs))
        return figures.lines(curve, title=f"Linear probes at {self.where}", low=low, high=high)


def probe(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    labels: Sequence[str | int | float],
    value: str | Sequence[str] = "layers.*.layer_output",
    where: TokenSelection = "last",
    pool: str = "mean",
    method: str = "logistic",
    penalty: float = 1.0,
    folds: int = 5,
    controls: int = 3,
    seed: int = 0,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Probing:
    """Trains a probe for each value and scores it by cross-validation: every example is held out once.

    - `labels`: one a prompt: classes for ``"logistic"``, numbers for ``"ridge"``.
    - `value`, `where`, `pool`, `store`: as in `harvest.harvest`; `store` is a folder.
    - `penalty`: of the squared weights, on features scaled to unit variance. - `controls`: how many shuffles.

    Raises `InputError` before any run for labels that do not fit.
    """
    classes, targets = _targets(prompts, labels, method, folds)
    if penalty <= 0 or controls < 1:
        raise InputError(f"The penalty is above zero and there is at least one control; got {penalty}, {controls}.")
    features = harvest(model, prompts, value=value, where=where, pool=pool, store=store, on_progress=on_progress)
    parts = _folds(targets, bool(classes), folds, seed)
    shuffles = [_shuffled(targets, seed + n + 1) for n in range(controls)]
    found = {name: _scored(x, targets, parts, classes, penalty) for name, x in features.items()}
    control = [[_scored(x, y, parts, classes, penalty)[0][0] for x in features.values()] for y in shuffles]
    names = {"value": list(features)}
    held = np.array([score for score, *_ in found.values()])
    unit = "accuracy" if classes else "R²"
    best = list(features)[int(np.argmax(held[:, 0]))]
    return Probing(
        where=str(plain_selection(where)),
        pool=pool,
        method=method,
        penalty=penalty,
        folds=folds,
        examples=len(prompts),
        classes=classes,
        chance=float(torch.bincount(targets.long()).max()) / len(targets) if classes else 0.0,
        score=Array.of(held[:, 0], "value", names, unit),
        low=Array.of(held[:, 1], "value", names, unit),
        high=Array.of(held[:, 2], "value", names, unit),
        train_score=Array.of([train for _, train, _ in found.values()], "value", names, unit),
        shuffled=Array.of(control, "control value", names, unit),
        confusion=_confusion(targets, found[best][2], classes) if classes else None,
    )


def train_probe(
    features: Tensor, labels: Sequence[str | int | float], *, method: str = "logistic", penalty: float = 1.0
) -> LinearProbe:
    """One probe on all examples, features [examples width] as `harvest` gives them: to predict and to steer with."""
    classes, targets = _targets(features, labels, method, 2)
    return fit(features, targets, classes, penalty)


def _targets(
    examples: Sequence[Any] | Tensor, labels: Sequence[str | int | float], method: str, folds: int
) -> tuple[tuple[str, ...], Tensor]:
    """The classes, empty for numbers, and [examples] class numbers or float64 numbers."""
    if method not in METHODS:
        raise InputError(f"`method` is one of {', '.join(METHODS)}; got {method!r}.")
    if not isinstance(examples, Tensor):
        check_prompts(examples, least=2 * folds)
    if len(labels) != len(examples):
        raise InputError(f"Each prompt has a label; got {len(examples)} prompts and {len(labels)} labels.")
    if folds < 2:
        raise InputError(f"At least two folds are needed, or nothing is held out; got {folds}.")
    if method == "ridge":
        if not all(isinstance(label, int | float) for label in labels):
            raise InputError('A ridge probe predicts numbers; these labels are words. Use method="logistic".')
        return (), torch.tensor([float(label) for label in labels], dtype=torch.float64)
    written = [str(label) for label in labels]
    classes = tuple(sorted(set(written)))
    least = min(map(written.count, classes))
    if len(classes) < 2 or least < folds:
        raise InputError(
            f"There must be at least two classes, each with an example for each of the {folds} folds; got "
            f"{ {name: written.count(name) for name in classes} }."
        )
    return classes, torch.tensor([classes.index(label) for label in written])


def _folds(targets: Tensor, classed: bool, folds: int, seed: int) -> Tensor:
    """[examples]: the fold in which each is held out; classes are spread evenly over them."""
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    if classed:
        order = order[torch.argsort(targets[order], stable=True)]
    parts = torch.empty_like(order)
    parts[order] = torch.arange(len(order)) % folds
    return parts


def _shuffled(targets: Tensor, seed: int) -> Tensor:
    return targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))]


def _scored(
    x: Tensor, y: Tensor, parts: Tensor, classes: tuple[str, ...], penalty: float
) -> tuple[tuple[float, float, float], float, Tensor]:
    """The held-out score with its interval, the mean score on the training examples, the held-out predictions."""
    held, trained = torch.zeros(len(y), dtype=torch.float64), []
    for part in range(int(parts.max()) + 1):
        out = parts == part
        model = fit(x[~out], y[~out], classes, penalty)
        held[out] = predictions(model, x[out]).double()
        trained.append(scores(y[~out], predictions(model, x[~out]), bool(classes))[0])
    return scores(y, held, bool(classes)), float(np.mean(trained)), held


def _confusion(targets: Tensor, held: Tensor, classes: tuple[str, ...]) -> Array:
    counts = torch.zeros(len(classes), len(classes))
    counts.index_put_((targets, held.long()), torch.ones(len(targets)), accumulate=True)
    return Array.of(counts, "true predicted", {"true": classes, "predicted": classes}, "examples")
