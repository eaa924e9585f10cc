"""Linear probes: what can be read off a value by a linear map, address by address.

Use it to see from which layer on, or up to which, a property of the image can be read. Each value of each prompt,
pooled over a token selection, is one example; a probe is trained on some and scored on the others, and prompts about
the same images are never on both sides. Beside each score is that of probes trained on shuffled labels, which says how
much a probe of this size fits by itself. A high score says that the value holds the information, not that the model
uses it.

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
from cutaway.analysis.common.arguments import check_choice, check_count, check_model, check_number, describe
from cutaway.analysis.common.caption import caption_of_many
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.splits import group_folds, groups_of
from cutaway.analysis.common.sweep import OnProgress
from cutaway.analysis.common.token_selection import TokenSelection
from cutaway.analysis.probing.linear import LinearProbe, fit, predictions, scores
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

METHODS = ("logistic", "ridge")


@dataclass(frozen=True, eq=False)
class Probing(Result, technique="probe"):
    """Held-out scores of the probes of each value.

    - `where`, `pool`, `method`, `penalty`, `folds`: what was read and how the probes were trained. `about`: the model
      and the prompts, in words.
    - `examples`, `groups`: how many prompts, and how many groups of them that were never split.
    - `classes`: of the labels, empty for numbers. `chance`: the share of the largest class, 0 for numbers.
    - `score`, `low`, `high`: "value", accuracy (R² for numbers) of all held-out predictions and its 95 % interval.
    - `train_score`: "value", the mean score on the examples that each probe was trained on.
    - `shuffled`: "control value", the held-out score of probes that are trained and scored on shuffled labels.
    - `confusion`: "true predicted", counts of the best value's held-out predictions; None for numbers.
    """

    where: str
    pool: str
    method: str
    penalty: float
    folds: int
    about: str
    examples: int
    groups: int
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
        """Return a table of each value's held-out score, its interval, its score in training and its control."""
        what = f"{len(self.classes)} classes" if self.classes else "numbers"
        head = (
            f"{self.method} probes of {what} at {self.where} ({self.pool}), {self.examples} examples in {self.groups} "
            f"groups, {self.folds} folds; chance {self.chance:.3f}"
        )
        numbers = (self.score.values, self.low.values, self.high.values, self.train_score.values)
        rows = [
            (name, float(score), f"{low:.3f} to {high:.3f}", float(trained), float(control))
            for name, score, low, high, trained, control in zip(
                self.score.names("value"), *numbers, self.shuffled.values.mean(0), strict=True
            )
        ]
        return f"{head}\n\n{table(('value', 'held out', '95 %', 'trained on', 'labels shuffled'), rows)}"

    def figure(self, *, confusion: bool = False) -> Any:
        """Draw held-out scores by value beside control and chance, or the confusions of the best value."""
        if confusion and self.confusion is None:
            raise InputError("A probe of numbers has no confusions: leave out `confusion`.")
        return self._draw("draw_probe", confusion)


def probe(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    labels: Sequence[str | int | float],
    groups: Sequence[Any] | None = None,
    value: str | Sequence[str] = "layers.*.layer_output",
    where: TokenSelection = "last",
    pool: str = "mean",
    method: str = "logistic",
    penalty: float = 1.0,
    folds: int = 5,
    controls: int = 5,
    seed: int = 0,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Probing:
    """Train a probe for each value and score it by cross-validation: every example is held out once.

    - `prompts`: batches of one sample. `labels`: one for each: classes for ``"logistic"``, numbers for ``"ridge"``.
    - `groups`: an entry for each prompt; a group is never split between training and held-out examples. By default
      prompts about the same images are one group.
    - `value`, `where`, `pool`, `store`: as in `harvest`; `store` is a folder that keeps the activations.
    - `penalty`: on the squared weights, of features scaled to unit variance. `controls`: how many shuffles of labels.

    Raises `InputError` for wrong arguments before any run.
    """
    check_model(model, "A probe")
    check_number("penalty", penalty, 1e-300, float("inf"), rule="a number above 0")
    check_count("controls", controls)
    check_prompts(prompts)
    classes, targets = _targets(labels, len(prompts), method, folds)
    belongs = groups_of(prompts, groups)
    parts = _parts(belongs, targets, classes, folds, seed)
    shuffles = [_shuffled(targets, seed + n + 1) for n in range(controls)]
    shuffled_parts = [group_folds(belongs, y if classes else None, folds, seed + n + 1) for n, y in enumerate(shuffles)]
    features = harvest(model, prompts, value=value, where=where, pool=pool, store=store, on_progress=on_progress)
    scored = {name: _scored(x, targets, parts, classes, penalty) for name, x in features.items()}
    control = [
        [_scored(x, y, part, classes, penalty)[0][0] for x in features.values()]
        for y, part in zip(shuffles, shuffled_parts, strict=True)
    ]
    axis, unit = {"value": list(features)}, "accuracy" if classes else "R²"
    held_out = np.array([score for score, *_ in scored.values()])  # [values 3]: score, low, high
    best = list(features)[int(np.argmax(held_out[:, 0]))]
    return Probing(
        where=str(plain_selection(where)),
        pool=pool,
        method=method,
        penalty=float(penalty),
        folds=folds,
        about=caption_of_many(model, prompts),
        examples=len(prompts),
        groups=len(set(belongs)),
        classes=classes,
        chance=float(torch.bincount(targets.long()).max()) / len(targets) if classes else 0.0,
        score=Array.of(held_out[:, 0], "value", axis, unit),
        low=Array.of(held_out[:, 1], "value", axis, unit),
        high=Array.of(held_out[:, 2], "value", axis, unit),
        train_score=Array.of([train for _, train, _ in scored.values()], "value", axis, unit),
        shuffled=Array.of(control, "control value", axis, unit),
        confusion=_confusion(targets, scored[best][2], classes) if classes else None,
    )


def train_probe(
    features: Tensor, labels: Sequence[str | int | float], *, method: str = "logistic", penalty: float = 1.0
) -> LinearProbe:
    """Return one probe trained on all examples, to predict and to steer with.

    `features` [examples width] are those of one address of `harvest`; `labels` as in `probe`.
    """
    if not isinstance(features, Tensor) or features.dim() != 2:
        got = list(features.shape) if isinstance(features, Tensor) else describe(features)
        raise InputError(f"`features` must be a tensor [examples width], one value of `harvest`; got {got}.")
    check_number("penalty", penalty, 1e-300, float("inf"), rule="a number above 0")
    classes, targets = _targets(labels, len(features), method, 1)
    return fit(features, targets, classes, penalty)


def _targets(labels: Any, examples: int, method: str, folds: int) -> tuple[tuple[str, ...], Tensor]:
    """The classes, empty for numbers, and [examples] class numbers or float64 numbers."""
    check_choice("method", method, METHODS)
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != examples:
        raise InputError(
            f"`labels` must be a list with one entry for each of the {examples} examples; got {describe(labels)}."
        )
    check_count("folds", folds, 1 if folds == 1 else 2)
    if method == "ridge":
        if not all(isinstance(label, int | float) for label in labels):
            raise InputError('A ridge probe predicts numbers; these labels are words. Use method="logistic".')
        if len(set(labels)) < 2:
            raise InputError(f"The labels must differ from each other; all are {labels[0]!r}.")
        return (), torch.tensor([float(label) for label in labels], dtype=torch.float64)
    written = [str(label) for label in labels]
    classes = tuple(sorted(set(written)))
    least = min(map(written.count, classes))
    if len(classes) < 2 or least < folds:
        raise InputError(
            f"There must be at least two classes, each with an example for each of the {folds} folds; got "
            f"{ {name: written.count(name) for name in classes} }. Give more examples or fewer `folds`."
        )
    return classes, torch.tensor([classes.index(label) for label in written])


def _parts(groups: list[str], targets: Tensor, classes: tuple[str, ...], folds: int, seed: int) -> Tensor:
    """[examples]: the fold in which each is held out. Raises `InputError` where a fold would train without a class."""
    parts = group_folds(groups, targets if classes else None, folds, seed)
    for part in range(folds) if classes else ():
        lacking = set(range(len(classes))) - set(targets[parts != part].tolist())
        if lacking:
            raise InputError(
                f"The class {classes[min(lacking)]!r} has too few groups of prompts: holding some out leaves none to "
                f"train on. Give more images of it, or fewer `folds`."
            )
    return parts


def _shuffled(targets: Tensor, seed: int) -> Tensor:
    return targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))]


def _scored(
    x: Tensor, y: Tensor, parts: Tensor, classes: tuple[str, ...], penalty: float
) -> tuple[tuple[float, float, float], float, Tensor]:
    """The held-out score with its interval, the mean score on the training examples, the held-out predictions."""
    held_out, trained = torch.zeros(len(y), dtype=torch.float64), []
    for part in parts.unique().tolist():
        out = parts == part
        fitted = fit(x[~out], y[~out], classes, penalty)
        held_out[out] = predictions(fitted, x[out]).double()
        trained.append(scores(y[~out], predictions(fitted, x[~out]), bool(classes))[0])
    return scores(y, held_out, bool(classes)), float(np.mean(trained)), held_out


def _confusion(targets: Tensor, held_out: Tensor, classes: tuple[str, ...]) -> Array:
    counts = torch.zeros(len(classes), len(classes))
    counts.index_put_((targets, held_out.long()), torch.ones(len(targets)), accumulate=True)
    return Array.of(counts, "true predicted", {"true": classes, "predicted": classes}, "examples")
