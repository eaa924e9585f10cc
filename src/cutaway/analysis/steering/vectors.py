"""Steering vectors: a direction for each value from two sets of prompts, and edits that add it to a run.

A steering vector is the mean of a value over one set of prompts less its mean over another. Its edits add it at
selected tokens of the prompt, at chosen steps of the answer, with a strength. A random vector of equal length is the
control: it says how much any push of that size does. That an answer moves shows that the direction can move it, not
that the model uses it by itself. Sweeps over values and strengths are `steer`'s (`sweep`).

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
from cutaway.analysis.common.arguments import check_choice, check_model, describe, sample_index
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.token_selection import TokenSelection, select_tokens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, InputError
from cutaway.trace.edits import Edit, When

SCALES = ("none", "unit", "value")


@dataclass(frozen=True, eq=False)
class SteeringVectors:
    """A direction for each of some values.

    - `vectors`: by address, [width] float32.
    - `sizes`: by address, the mean length of the value at the contrasted tokens, to judge a strength by.
    - `notes`: how the vectors were made.
    """

    vectors: dict[str, Tensor]
    sizes: dict[str, float]
    notes: dict[str, Any]

    def random(self, seed: int = 0) -> SteeringVectors:
        """Return random directions, each as long as the vector that it is the control of."""
        draw = torch.Generator().manual_seed(seed)
        drawn = {name: torch.randn(len(vector), generator=draw) for name, vector in self.vectors.items()}
        scaled = {name: v / v.norm() * self.vectors[name].norm() for name, v in drawn.items()}
        return replace(self, vectors=scaled, notes={**self.notes, "random": seed})

    def select(self, *addresses: str) -> SteeringVectors:
        """Return the vectors of some values. Raises `InputError` for one that there is not."""
        unknown = [name for name in addresses if name not in self.vectors]
        if unknown or not addresses:
            raise InputError(
                f"`select` takes addresses that there is a vector for, {', '.join(self.vectors)}; got "
                f"{', '.join(map(str, unknown)) or 'none'}."
            )
        return replace(self, vectors={name: self.vectors[name] for name in addresses})

    def save(self, path: str | Path) -> Path:
        """Write the vectors to one safetensors file."""
        return save_tensors(path, self.vectors, {"sizes": self.sizes, **self.notes})

    @classmethod
    def load(cls, path: str | Path) -> SteeringVectors:
        """Return the vectors that `save` wrote. Raises `CheckpointError` for any other file."""
        tensors, notes = load_tensors(path)
        sizes = notes.pop("sizes", None)
        if not isinstance(sizes, dict) or set(sizes) != set(tensors):
            raise CheckpointError(f"{path} holds no steering vectors. Name a file that `SteeringVectors.save` wrote.")
        return cls(tensors, sizes, notes)

    def edits(
        self,
        model: Model,
        inputs: Inputs,
        *,
        at: TokenSelection = "last",
        strength: float = 1.0,
        when: Any = "prompt",
        sample: int | None = None,
    ) -> dict[str, Edit]:
        """Return edits for ``model.generate(inputs, edit=…)``.

        - `at`: a token selection of the prompt; at later steps the one token of the step is edited.
        - `when`: ``"prompt"``, ``"decode"``, ``"all"``, or a range of steps (or its two ends); the prompt is step 0.
        """
        positions, sample = self._positions(model, inputs, at, sample)
        check_strength(strength)
        steps, edits = steps_of(when), {}
        for site in (Site.one(model, address) for address in self.vectors):
            add = _adder(self.vectors[site.address], strength)
            edits[site.address] = Edit(_step_edit(site, inputs, positions, add, sample), steps)
        return edits

    def teacher_forced_edits(
        self,
        model: Model,
        inputs: Inputs,
        *,
        at: TokenSelection = "last",
        strength: float = 1.0,
        when: Any = "prompt",
        sample: int | None = None,
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return edits for one forward on the prompt with the answer appended, equal to `edits` step by step.

        `inputs` is the prompt alone. The token that step n reads is n positions after the prompt's last one.
        """
        positions, sample = self._positions(model, inputs, at, sample)
        check_strength(strength)
        steps, edits = Edit(lambda value: value, steps_of(when)), {}
        for site in (Site.one(model, address) for address in self.vectors):
            add = _adder(self.vectors[site.address], strength)
            edits[site.address] = _forced_edit(site, inputs, positions, add, steps, sample)
        return edits

    def _positions(self, model: Model, inputs: Inputs, at: TokenSelection, sample: int | None) -> tuple[Tensor, int]:
        check_model(model, "Steering")
        sample = sample_index(inputs, sample)
        return select_tokens(model, inputs, at, sample).positions, sample


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
    """Return the mean of each value over `positive` prompts less that over `negative` ones, at selected tokens.

    - `value`: an address, a pattern or several. - `where`: a token selection.
    - `normalise`: ``"none"`` keeps the difference, so that strength 1 carries the mean of the negative prompts to that
      of the positive ones; ``"unit"`` makes its length 1; ``"value"`` the mean length of the value there.
    - `store`: a folder that keeps the activations that were read.

    Raises `InputError` for wrong arguments, or where both sets have the same mean.
    """
    check_model(model, "A contrast")
    check_choice("normalise", normalise, SCALES)
    check_prompts(positive, "positive")
    check_prompts(negative, "negative")
    activations = harvest(model, [*positive, *negative], value=value, where=where, store=store)
    vectors, sizes = {}, {}
    for name, pooled in activations.items():  # [prompts width]
        difference = pooled[: len(positive)].mean(0) - pooled[len(positive) :].mean(0)
        sizes[name], length = float(pooled.norm(dim=-1).mean()), float(difference.norm())
        if not length:
            raise InputError(
                f"Both sets of prompts have the same mean in `{name}` at these tokens, so there is no direction. "
                f"Choose tokens or values where they differ."
            )
        wanted = {"none": length, "unit": 1.0, "value": sizes[name]}[normalise]
        vectors[name] = difference * (wanted / length)
    counts = {"positive": len(positive), "negative": len(negative)}
    return SteeringVectors(vectors, sizes, {"where": plain_selection(where), "normalise": normalise, **counts})


def steps_of(when: Any) -> When:
    """Return steps as `Edit` takes them; a pair of whole numbers is a range. Raises `InputError` for anything else."""
    if isinstance(when, list | tuple) and len(when) == 2 and all(type(end) is int and end >= 0 for end in when):
        return range(when[0], when[1])
    if isinstance(when, range) or when in ("all", "prompt", "decode"):
        return when
    raise InputError(
        f'`when` must be "prompt", "decode", "all", or the two ends of a range of steps, such as [0, 3]; got '
        f"{describe(when)}."
    )


def check_strength(strength: Any) -> None:
    """Raises `InputError` unless `strength` is a finite number."""
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not abs(strength) < float("inf"):
        raise InputError(f"`strength` must be a number; got {describe(strength)}.")


def _adder(vector: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    def add(entries: Tensor) -> Tensor:  # [entries width]
        if entries.shape[-1] != len(vector):
            raise InputError(
                f"The steering vector has {len(vector)} numbers and the value {entries.shape[-1]}: it was made on "
                f"another model. Make one with `contrast` on this model."
            )
        return entries + (strength * vector).to(entries.device, entries.dtype)

    return add


def _step_edit(
    site: Site, inputs: Inputs, positions: Tensor, add: Callable[[Tensor], Tensor], sample: int
) -> Callable[[Tensor], Tensor]:
    """At the prompt the positions are edited, at a later step its one token."""
    length = inputs.input_ids.shape[1]

    def edit(value: Tensor) -> Tensor:
        if site.kind(value, inputs) == "seq" and value.shape[site.axis] != length:
            if value.shape[site.axis] != 1:
                raise InputError(
                    "Positions of the prompt cannot be edited while it is read in pieces: leave out `prefill_chunk`."
                )
            return site.change(inputs, None, add)(value)
        return site.change(inputs, positions, add, sample)(value)

    return edit


def _forced_edit(
    site: Site, inputs: Inputs, positions: Tensor, add: Callable[[Tensor], Tensor], steps: Edit, sample: int
) -> Callable[[Tensor], Tensor]:
    """The positions are edited if step 0 is, and the answer's token of every later step that is."""
    length = inputs.input_ids.shape[1]

    def edit(value: Tensor) -> Tensor:
        edited = [positions] if steps.applies_at(0) else []
        if site.kind(value, inputs) == "seq":
            after = [length + n - 1 for n in range(1, value.shape[site.axis] - length + 1) if steps.applies_at(n)]
            edited.append(torch.tensor(after, dtype=torch.int64))
        at = torch.cat(edited) if edited else torch.empty(0, dtype=torch.int64)
        return site.change(inputs, at, add, sample)(value) if len(at) else value

    return edit
