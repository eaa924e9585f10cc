"""Image pathways: by which routes does the image reach the answer, and what is each worth?

Every subset of the routes is closed in turn and the answer measured. A route's Shapley value is its mean contribution
over all orders in which routes could be opened; the values sum to what the image as a whole is worth.

Source: Shapley (1953); that `image_features` is not the only way in: DeepStack (Meng et al. 2024). What a route is and
how it is closed is `routes`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

from cutaway.analysis.common.metrics import KL, Metric, answer_logits
from cutaway.analysis.common.progress import Cells, OnProgress
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import digest, settings
from cutaway.analysis.intervention.routes import FEATURES, Closing, Route, routes
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

NONE = "none"
"""The name of the subset in which every route is closed."""


@dataclass(frozen=True, eq=False)
class Pathways(Result, technique="pathways"):
    """What the answer is worth with each subset of the routes open.

    - `routes`: their names. `how`: what a closed route carries. `metric`, `unit`: what was measured.
    - `values`: [open], by the routes that are open, joined by " + "; "none" where all are closed.
    - `answers`: the most likely first token for each subset.
    - `shapley`: [route], in the metric's unit; they sum to all open less none open.
    """

    routes: tuple[str, ...]
    how: str
    metric: str
    unit: str
    values: Array
    answers: dict[str, str]
    shapley: Array

    @property
    def whole(self) -> float:
        """The metric with every route open."""
        return self.values.at(open=_name(self.routes))

    @property
    def without_features(self) -> float:
        """The metric with the features alone closed."""
        return self.values.at(open=_name([name for name in self.routes if name != FEATURES]))

    @property
    def without_any(self) -> float:
        """The metric with every route closed."""
        return self.values.at(open=NONE)

    def summary(self) -> str:
        """The metric by open routes, then each route's share."""
        rows = [(name, value, self.answers[name]) for name, value in self._sorted()]
        shares = [(name, self.shapley.at(route=name)) for name in self.routes]
        return (
            f"{self.metric} by the routes that are open; a closed one carries {_CARRIES[self.how]}\n\n"
            f"{table(('open', self.unit, 'says'), rows)}\n\n{table(('route', 'Shapley value'), shares)}"
        )

    def _sorted(self) -> list[tuple[str, float]]:
        names = self.values.names("open")
        sign = 1 if self.metric == KL else -1  # the most intact answer first
        return sorted(((name, self.values.at(open=name)) for name in names), key=lambda pair: sign * pair[1])

    def figure(self) -> Any:
        """Bars of the metric by open routes."""
        from cutaway.analysis.plots import figures

        names, values = zip(*self._sorted(), strict=True)
        title = f"{self.metric} by open routes; closed: {_CARRIES[self.how]}"
        return figures.bars([f"{n} → {self.answers[n]!r}" for n in names], values, title=title, unit=self.unit)


_CARRIES = {"zero": "nothing", "swap": "another image's", "mean": "its mean over the image's tokens"}


def pathways(
    model: Model,
    prompt: Inputs,
    metric: Metric,
    *,
    how: str = "zero",
    other: Inputs | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Pathways:
    """Measures the answer with every subset of the image's routes closed: two to the number of routes runs.

    - `how`: what a closed route carries: ``"zero"`` nothing, ``"swap"`` what `other`, a prompt with another image,
      has there (images of different sizes are aligned), ``"mean"`` its mean over the tokens of all images of
      the prompt.
    - `store`: where finished runs are kept, so that a stopped run goes on.

    Raises `InputError` before any run for a prompt without image, or arguments that do not fit.
    """
    if prompt.input_ids.shape[0] != 1:
        raise InputError(f"The prompt is a batch of one; got {prompt.input_ids.shape[0]} rows.")
    known = routes(model, prompt)
    full = metric.extend(prompt)
    closing = Closing(model, full, how, other)
    subsets = [list(group) for size in range(len(known) + 1) for group in combinations(known, size)]
    what = settings(
        "pathways", model, metric, prompt=digest(prompt), how=how, other=None if other is None else digest(other)
    )
    with Cells(store, what, on_progress=on_progress) as cells:
        reference = answer_logits(model, full, metric.places)
        left = set(cells.missing(_name([r.name for r in group]) for group in subsets))
        for group in subsets:
            name = _name([route.name for route in group])
            if name in left:
                closed = [route for route in known if route not in group]
                logits = answer_logits(model, full, metric.places, edit=closing.edits(closed))
                cells[name] = [float(metric(logits, reference)[0]), int(logits[0, 0].argmax())]
        return _result(model, known, subsets, cells, (how, metric))


def _result(
    model: Model, known: list[Route], subsets: list[list[Route]], cells: Cells, said: tuple[str, Metric]
) -> Pathways:
    how, metric = said
    names = tuple(route.name for route in known)
    labels = [_name([route.name for route in group]) for group in subsets]
    values = {frozenset(r.name for r in group): cells[label][0] for group, label in zip(subsets, labels, strict=True)}
    shares = [shapley(values, names, name) for name in names]
    return Pathways(
        routes=names,
        how=how,
        metric=metric.name,
        unit=metric.unit,
        values=Array.of([cells[label][0] for label in labels], "open", {"open": labels}, metric.unit),
        answers={label: model.tokenizer.decode([cells[label][1]]) for label in labels},
        shapley=Array.of(shares, "route", {"route": names}, metric.unit),
    )


def shapley(values: dict[frozenset[str], float], players: Sequence[str], player: str) -> float:
    """The player's Shapley value in the game that gives each coalition its value."""
    others = [name for name in players if name != player]
    total = 0.0
    for size in range(len(others) + 1):
        weight = factorial(size) * factorial(len(players) - size - 1) / factorial(len(players))
        for group in combinations(others, size):
            total += weight * (values[frozenset((*group, player))] - values[frozenset(group)])
    return total


def _name(names: Sequence[str]) -> str:
    return " + ".join(names) or NONE
