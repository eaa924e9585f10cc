"""Steering: a direction from contrasting prompts, added to a value while the model answers.

The direction is the mean of a value over one set of prompts less its mean over another. It is added at chosen tokens
of the prompt, at chosen steps of the answer, with a strength. Beside it goes a random direction of equal length, which
says how much any push of that size does. That an answer moves says that the direction is enough to move it, not that
the model uses it by itself.

Sources: Turner et al. 2023 (activation addition); Rimsky et al. 2024 (mean difference of contrast sets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.activations import Site, harvest, plain_selection
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.token_selection import TokenSelection, select_tokens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, InputError
from cutaway.trace.edits import Edit, When

NORMALISED = ("none", "unit", "value")


@dataclass(frozen=True, eq=False)
class SteeringVectors:
    """A direction for each value. - `vectors`: by address, [width] float32.

    - `sizes`: by address, the mean length of the value at the tokens that were contrasted, to judge a strength by.
    - `notes`: how they were made.
    """

    vectors: dict[str, Tensor]
    sizes: dict[str, float]
    notes: dict[str, Any]

    def random(self, seed: int = 0) -> SteeringVectors:
        """Directions drawn at random, each as long as the one that it stands beside."""
        draw = torch.Generator().manual_seed(seed)
        drawn = {name: torch.randn(len(vector), generator=draw) for name, vector in self.vectors.items()}
        scaled = {name: v / v.norm() * self.vectors[name].norm() for name, v in drawn.items()}
        return replace(self, vectors=scaled, notes={**self.notes, "random": seed})

    def only(self, *addresses: str) -> SteeringVectors:
        """Those of some values."""
        unknown = [name for name in addresses if name not in self.vectors]
        if unknown:
            raise InputError(f"There is no direction for {', '.join(unknown)}; there are {', '.join(self.vectors)}.")
        return replace(self, vectors={name: self.vectors[name] for name in addresses})

    def save(self, path: str | Path) -> Path:
        """Writes the directions, one safetensors file."""
        return save_tensors(path, self.vectors, {"sizes": self.sizes, **self.notes})

    @classmethod
    def load(cls, path: str | Path) -> SteeringVectors:
        """What `save` wrote. Raises `CheckpointError` for anything else."""
        tensors, notes = load_tensors(path)
        sizes = notes.pop("sizes", None)
        if not isinstance(sizes, dict) or set(sizes) != set(tensors):
            raise CheckpointError(f"{path} holds no directions. Name a file that `SteeringVectors.save` wrote.")
        return cls(tensors, sizes, notes)

    def edits(
        self, model: Model, inputs: Inputs, *, at: TokenSelection = "last", strength: float = 1.0, when: Any = "prompt"
    ) -> dict[str, Edit]:
        """Edits for ``model.generate(inputs, edit=…)``.

        - `at`: tokens of the prompt, as `select_tokens` takes them; at later steps the one token of the step.
        - `when`: ``"prompt"``, ``"decode"``, ``"all"``, or a range of steps (or its two ends), the prompt being step 0.
        """
        positions, steps = select_tokens(model, inputs, at).positions, steps_of(when)
        found = {}
        for site in (Site.one(model, address) for address in self.vectors):
            add = _adder(self._checked(site), strength)
            found[site.address] = Edit(_step_edit(site, inputs, positions, add), steps)
        return found

    def forced(
        self, model: Model, inputs: Inputs, *, at: TokenSelection = "last", strength: float = 1.0, when: Any = "prompt"
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """Edits for one forward on the prompt with an answer appended, that do what `edits` do step by step.

        The token that step n reads stands n places after the prompt's last one. `inputs` is the prompt alone.
        """
        positions, steps = select_tokens(model, inputs, at).positions, Edit(lambda v: v, steps_of(when))
        found = {}
        for site in (Site.one(model, address) for address in self.vectors):
            add = _adder(self._checked(site), strength)
            found[site.address] = _forced_edit(site, inputs, positions, add, steps)
        return found

    def _checked(self, site: Site) -> Tensor:
        if site.address not in self.vectors:
            raise InputError(f"There is no direction for {site.address}; there are {', '.join(self.vectors)}.")
        return self.vectors[site.address]


def contrast(
    model: Model,
    positive: Sequence[Inputs],
    negative: Sequence[Inputs],
    *,
    value: str | Sequence[str] = "layers.*.layer_output",
    where: TokenSelection = "last",
    normalise: str = "none",
    store: str | Path | None = None,
) -> SteeringVectors:
    """The mean of each value over `positive` prompts less that over `negative` ones, at the tokens of `where`.

    - `normalise`: ``"none"`` keeps the difference, so that a strength of 1 carries the mean of the negative prompts to
      that of the positive ones; ``"unit"`` makes it of length 1; ``"value"`` as long as the value is there on average.
    - `store`: a folder that keeps what was read.
    """
    if normalise not in NORMALISED:
        raise InputError(f"`normalise` is one of {', '.join(NORMALISED)}; got {normalise!r}.")
    for prompts in (positive, negative):
        check_prompts(prompts)
    read = harvest(model, [*positive, *negative], value=value, where=where, store=store)
    vectors, sizes = {}, {}
    for name, rows in read.items():
        difference = rows[: len(positive)].mean(0) - rows[len(positive) :].mean(0)
        sizes[name], length = float(rows.norm(dim=-1).mean()), float(difference.norm())
        if not length:
            raise InputError(f"Both sets have the same mean in `{name}` at these tokens: there is no direction.")
        wanted = {"none": length, "unit": 1.0, "value": sizes[name]}[normalise]
        vectors[name] = difference * (wanted / length)
    counts = {"positive": len(positive), "negative": len(negative)}
    return SteeringVectors(vectors, sizes, {"where": plain_selection(where), "normalise": normalise, **counts})


def steps_of(when: Any) -> When:
    """Steps as `Edit` takes them; a pair of numbers is a range."""
    pair = isinstance(when, list | tuple)
    if pair and len(when) == 2 and all(isinstance(end, int) for end in when):
        return range(when[0], when[1])
    if pair or (isinstance(when, str) and when not in ("all", "prompt", "decode")):
        raise InputError(f'`when` is "prompt", "decode", "all", or the two ends of a range of steps; got {when!r}.')
    return when


def _adder(vector: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    def add(rows: Tensor) -> Tensor:
        if rows.shape[-1] != len(vector):
            raise InputError(f"The direction has {len(vector)} numbers, the value's rows {rows.shape[-1]}.")
        return rows + (strength * vector).to(rows.device, rows.dtype)

    return add


def _step_edit(
    site: Site, inputs: Inputs, positions: Tensor, add: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    length = inputs.input_ids.shape[1]

    def edit(value: Tensor) -> Tensor:
        if site.kind(value, inputs) == "seq" and value.shape[site.axis] != length:
            if value.shape[site.axis] != 1:
                raise InputError("Tokens of the prompt cannot be found where it is read in pieces: no `prefill_chunk`.")
            return site.change(inputs, None, add)(value)
        return site.change(inputs, positions, add)(value)

    return edit


def _forced_edit(
    site: Site, inputs: Inputs, positions: Tensor, add: Callable[[Tensor], Tensor], steps: Edit
) -> Callable[[Tensor], Tensor]:
    length = inputs.input_ids.shape[1]

    def edit(value: Tensor) -> Tensor:
        chosen = [positions] if steps.applies_at(0) else []
        if site.kind(value, inputs) == "seq":
            after = [length + n - 1 for n in range(1, value.shape[site.axis] - length + 1) if steps.applies_at(n)]
            chosen.append(torch.tensor(after, dtype=torch.int64))
        at = torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)
        return site.change(inputs, at, add)(value) if len(at) else value

    return edit
