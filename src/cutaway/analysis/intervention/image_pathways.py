"""Image pathways: by which routes does the image reach the answer, and what is each worth?

An image enters the text model as vectors among the embeddings (`image_features`, `video_features`) and on Qwen3-VL once
more after each of the first layers (`deepstack_output`). On Qwen3.5 its tokens also write into the delta nets' states.
Every subset of these routes is closed in turn and the answer measured. A route's Shapley value is its mean contribution
over all orders in which routes could be opened; the values sum to what the image as a whole is worth.

Use it to ask what goes through DeepStack; use `knockout` to follow the image's content between tokens.

Source: Shapley (1953); DeepStack, Meng et al. 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_choice, check_model
from cutaway.analysis.common.metrics import KL, Metric, answer_logits, check_metric
from cutaway.analysis.common.prompts import Alignment, align, check_prompt
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import OnProgress, Sweep, digest
from cutaway.api import Model
from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.errors import InputError

CARRIES = {"zero": "nothing", "swap": "another image's", "mean": "its mean over the image's tokens"}
"""By `how`, what a closed route carries instead."""

FEATURES, WRITES = "features", "state writes"
"""Names of routes; the others are ``"deepstack 0"`` and so on."""

NONE = "none"
"""The name of the subset in which every route is closed."""

EditFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Route:
    """One way from the image into the text model: its name, and the addresses of the values that carry it."""

    name: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pathways(Result, technique="pathways"):
    """What the answer is worth with each subset of the routes open.

    - `routes`: their names. `how`: what a closed route carries. `metric`, `unit`: what was measured.
    - `values`: [open], named by the routes that are open, joined by " + "; "none" where all are closed.
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
    def all_open(self) -> float:
        """The metric with every route open: that of the unedited run."""
        return self.values.at(open=_subset_name(self.routes))

    @property
    def without_features(self) -> float:
        """The metric with only the features closed."""
        return self.values.at(open=_subset_name(name for name in self.routes if name != FEATURES))

    @property
    def all_closed(self) -> float:
        """The metric with every route closed."""
        return self.values.at(open=NONE)

    def summary(self) -> str:
        """Return the metric by open routes, then each route's Shapley value, as text."""
        rows = [(name, value, self.answers[name]) for name, value in self._sorted()]
        shares = [(name, self.shapley.at(route=name)) for name in self.routes]
        return (
            f"{self.metric} by the routes that are open; a closed one carries {CARRIES[self.how]}\n\n"
            f"{table(('open', self.unit, 'says'), rows)}\n\n{table(('route', 'Shapley value'), shares)}"
        )

    def _sorted(self) -> list[tuple[str, float]]:
        names = self.values.names("open")
        sign = 1 if self.metric == KL else -1  # the most intact answer first
        return sorted(((name, self.values.at(open=name)) for name in names), key=lambda pair: sign * pair[1])

    def figure(self) -> Any:
        """Draw bars of the metric by open routes."""
        from cutaway.analysis.plots import figures

        names, values = zip(*self._sorted(), strict=True)
        title = f"{self.metric} by open routes; closed: {CARRIES[self.how]}"
        return figures.bars([f"{n} → {self.answers[n]!r}" for n in names], values, title=title, unit=self.unit)


def image_pathways(
    model: Model,
    prompt: Inputs,
    metric: Metric,
    *,
    how: str = "zero",
    other: Inputs | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Pathways:
    """Measure the answer with every subset of the image's routes closed: two to the number of routes runs.

    - `how`: what a closed route carries: ``"zero"`` nothing, ``"swap"`` what `other`, a prompt with another image,
      has there (images of different sizes are aligned), ``"mean"`` its mean over the tokens of all images of the
      prompt.
    - `store`: a file of finished cells; the same call resumes from it.

    Raises `InputError` before any run for a prompt without an image, or arguments that do not fit.
    """
    check_model(model, "Pathways")
    check_prompt(prompt)
    check_metric(metric)
    check_choice("how", how, tuple(CARRIES))
    known = routes(model, prompt)
    full = metric.extend(prompt)
    closing = RouteCloser(model, full, how, other)
    subsets = [group for size in range(len(known) + 1) for group in combinations(known, size)]
    by_name = {_subset_name(route.name for route in group): group for group in subsets}
    settings = {"prompt": digest(prompt), "how": how, "other": None if other is None else digest(other)}
    axes = {"open": list(by_name)}
    with Sweep("pathways", model, metric, axes, settings=settings, store=store, on_progress=on_progress) as sweep:
        reference = answer_logits(model, full, metric.answer_length)

        def compute(cell: tuple[str]) -> tuple[float, int]:
            edit = closing.edits([route for route in known if route not in by_name[cell[0]]])
            logits = answer_logits(model, full, metric.answer_length, edit=edit)
            return float(metric(logits, reference)[0]), int(logits[0, 0].argmax())

        sweep.run_each(compute)
        return _result(model, [route.name for route in known], sweep, how, metric)


def _result(model: Model, names: list[str], sweep: Sweep, how: str, metric: Metric) -> Pathways:
    labels = sweep.axes["open"]
    values = sweep.array(lambda result: result[0])
    game: dict[frozenset[str], float] = {
        frozenset(label.split(" + ") if label != NONE else ()): float(x)
        for label, x in zip(labels, values, strict=True)
    }
    return Pathways(
        routes=tuple(names),
        how=how,
        metric=metric.name,
        unit=metric.unit,
        values=Array.of(values, "open", {"open": labels}, metric.unit),
        answers={label: model.tokenizer.decode([sweep[label,][1]]) for label in labels},
        shapley=Array.of([shapley(game, names, name) for name in names], "route", {"route": names}, metric.unit),
    )


def shapley(values: dict[frozenset[str], float], players: Sequence[str], player: str) -> float:
    """Return a player's Shapley value in the game that gives each coalition its value."""
    others = [name for name in players if name != player]
    total = 0.0
    for size in range(len(others) + 1):
        weight = factorial(size) * factorial(len(players) - size - 1) / factorial(len(players))
        for group in combinations(others, size):
            total += weight * (values[frozenset((*group, player))] - values[frozenset(group)])
    return total


def _subset_name(names: Iterable[str]) -> str:
    return " + ".join(names) or NONE


def routes(model: Model, inputs: Inputs) -> list[Route]:
    """Return the routes that the model has for a prompt. Raises `InputError` for one without image and video."""
    types = inputs.mm_token_type_ids
    features = [
        f"vision.{name}" for kind, name in ((IMAGE, "image_features"), (VIDEO, "video_features")) if kind in types
    ]
    if not features:
        raise InputError("Routes lead from an image or video to the answer; got a prompt without. Give it an image.")
    every = [Route(FEATURES, tuple(features))]
    terms = len(model.config.vision.deepstack_indexes)
    every += [Route(f"deepstack {k}", (f"layers.{k}.deepstack_output",)) for k in range(terms)]
    linear = [b for b, kind in enumerate(model.config.text.layer_types) if kind == "linear_attention"]
    if linear:
        every.append(Route(WRITES, tuple(f"layers.{b}.linear_attn" for b in linear)))
    return every


class RouteCloser:
    """Makes the edits that close routes of one prompt, a batch of one, with what `CARRIES` says of `how` in their
    place.

    `other` is the prompt whose image is swapped in. Raises `InputError` where it does not fit `how` or the prompt.
    """

    def __init__(self, model: Model, inputs: Inputs, how: str, other: Inputs | None = None) -> None:
        check_choice("how", how, tuple(CARRIES))
        if (how == "swap") != (other is not None):
            raise InputError(
                f'`other`, the prompt whose image is swapped in, goes with how="swap" and only with it; got '
                f"how={how!r} {'without' if other is None else 'with'} `other`."
            )
        self.model, self.how, self.inputs = model, how, inputs
        self.visual = inputs.mm_token_type_ids[0] > 0
        if how == "mean" and int(self.visual.sum()) == 1:
            raise InputError("A mean over image tokens changes several; got an image of one token. Use another `how`.")
        self.other = None if other is None else check_prompt(other, "other")
        self.alignment: Alignment | None = None
        if other is not None:
            model.require_weights("A run")
            self.alignment = align(inputs, other)
            missing = self.visual & self.alignment.missing
            if bool(missing.any()):
                raise InputError(
                    f"Every image and video needs a counterpart in `other`; got {int(missing.sum())} of "
                    f"{int(self.visual.sum())} image tokens without. Give as many images and videos in both."
                )

    def edits(self, closed: Sequence[Route]) -> dict[str, EditFunction]:
        """Return edits by address that close these routes."""
        edits: dict[str, EditFunction] = {}
        for route in closed:
            for address in route.addresses:
                edits |= self._write_edits(address) if route.name == WRITES else {address: self._packed_edit(address)}
        return edits

    def _packed_edit(self, address: str) -> EditFunction:
        """Return the edit of a value [tokens hidden] with a vector per image token."""
        if self.how == "zero":
            return torch.zeros_like
        if self.how == "mean":
            return lambda vectors: vectors.mean(0, keepdim=True).expand_as(vectors).clone()
        new = self._swapped(address, self._kinds(address))
        return lambda vectors: new.to(vectors.dtype)

    def _kinds(self, address: str) -> tuple[int, ...]:
        if address.endswith("image_features"):
            return (IMAGE,)
        return (VIDEO,) if address.endswith("video_features") else (IMAGE, VIDEO)

    def _swapped(self, address: str, kinds: tuple[int, ...]) -> Tensor:
        """Return [tokens hidden]: the other prompt's vectors for this prompt's image tokens of these kinds."""
        assert self.other is not None
        assert self.alignment is not None
        packed = self.model.run(self.other, read=[address])[address]
        there = _of_kinds(self.other.mm_token_type_ids, kinds)
        dense = packed.new_zeros(1, there.shape[1], packed.shape[-1]).masked_scatter(there[..., None], packed)
        return self.alignment.take(dense, _of_kinds(self.inputs.mm_token_type_ids, kinds)[0].nonzero()[:, 0])

    def _write_edits(self, address: str) -> dict[str, EditFunction]:
        """Return the edit of a delta net: at image tokens nothing is written (betas), or other values are."""
        if self.how == "zero":
            return {f"{address}.betas": lambda betas: betas.masked_fill(self.visual[: betas.shape[-1]], 0)}
        positions = self.visual.nonzero()[:, 0]
        name = f"{address}.attention_values"  # [batch heads seq head_dim]
        if self.how == "mean":

            def flatten(values: Tensor) -> Tensor:
                mean = values[:, :, positions].mean(2, keepdim=True).expand(-1, -1, len(positions), -1)
                return values.index_copy(2, positions, mean.contiguous())

            return {name: flatten}
        assert self.other is not None
        assert self.alignment is not None
        there = self.model.run(self.other, read=[name])[name].transpose(1, 2)  # [batch seq heads head_dim]
        new = self.alignment.take(there, positions).transpose(0, 1)[None]  # [1 heads tokens head_dim]
        return {name: lambda values: values.index_copy(2, positions, new.to(values.dtype))}


def _of_kinds(types: Tensor, kinds: tuple[int, ...]) -> Tensor:
    return torch.isin(types, torch.tensor(kinds, device=types.device))
