"""The ways by which an image reaches the text model, and what closes one: edits by address.

An image enters as rows among the embeddings (`image_features`, `video_features`) and on Qwen3-VL once more after each
of the first layers (`deepstack_output`). On Qwen3.5 its tokens also write into the delta nets' states. This module
knows values by name; what an answer is worth without them is the techniques' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.analysis.common.prompts import Alignment, align
from cutaway.api import Model
from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.errors import InputError

HOWS = ("zero", "swap", "mean")
"""What a closed route carries instead: nothing, another image's, or its own mean over the image's tokens."""

FEATURES, WRITES = "features", "state writes"

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Route:
    """One way in: its name, and the values that carry it."""

    name: str
    addresses: tuple[str, ...]


def routes(model: Model, inputs: Inputs) -> list[Route]:
    """The routes that this model has for this prompt. Raises `InputError` for a prompt without image and video."""
    types = inputs.mm_token_type_ids
    features = [
        f"vision.{name}" for kind, name in ((IMAGE, "image_features"), (VIDEO, "video_features")) if kind in types
    ]
    if not features:
        raise InputError("Routes lead from an image or video to the answer, and this prompt has neither.")
    found = [Route(FEATURES, tuple(features))]
    taps = len(model.config.vision.deepstack_indexes)
    found += [Route(f"deepstack {k}", (f"layers.{k}.deepstack_output",)) for k in range(taps)]
    linear = [b for b, kind in enumerate(model.config.text.layer_types) if kind == "linear_attention"]
    if linear:
        found.append(Route(WRITES, tuple(f"layers.{b}.linear_attn" for b in linear)))
    return found


class Closing:
    """Closes routes of one prompt, a batch of one: makes the edits that put something else in their place."""

    def __init__(self, model: Model, inputs: Inputs, how: str, other: Inputs | None = None) -> None:
        if how not in HOWS:
            raise InputError(f"A closed route carries one of {', '.join(HOWS)}; got {how!r}.")
        if (how == "swap") != (other is not None):
            raise InputError(
                '`other` is the prompt whose image is swapped in: it goes with how="swap", and only there.'
            )
        self.model, self.how, self.inputs = model, how, inputs
        self.visual = inputs.mm_token_type_ids[0] > 0
        self.other = other
        self.alignment: Alignment | None = None
        if other is not None:
            model.require_weights("A run")
            self.alignment = align(inputs, other)
            missing = self.visual & self.alignment.missing
            if bool(missing.any()):
                raise InputError(
                    f"Every image and video needs a counterpart to be swapped: {int(missing.sum())} of "
                    f"{int(self.visual.sum())} visual tokens have none. Give as many images and videos in both."
                )

    def edits(self, closed: list[Route]) -> dict[str, Edit]:
        """Edits by address that close these routes."""
        found: dict[str, Edit] = {}
        for route in closed:
            for address in route.addresses:
                found |= self._writes(address) if route.name == WRITES else {address: self._packed(address)}
        return found

    def _packed(self, address: str) -> Edit:
        """For rows [tokens hidden], one a visual token of the kinds that the value has."""
        if self.how == "zero":
            return torch.zeros_like
        if self.how == "mean":
            return lambda rows: rows.mean(0, keepdim=True).expand_as(rows).clone()
        new = self._swapped(address, self._kinds(address))
        return lambda rows: new.to(rows.dtype)

    def _kinds(self, address: str) -> tuple[int, ...]:
        if address.endswith("image_features"):
            return (IMAGE,)
        return (VIDEO,) if address.endswith("video_features") else (IMAGE, VIDEO)

    def _swapped(self, address: str, kinds: tuple[int, ...]) -> Tensor:
        """The other prompt's rows for this prompt's visual tokens of these kinds."""
        assert self.other is not None
        assert self.alignment is not None
        rows = self.model.run(self.other, read=[address])[address]
        there = _of_kinds(self.other.mm_token_type_ids, kinds)
        dense = rows.new_zeros(1, there.shape[1], rows.shape[-1]).masked_scatter(there[..., None], rows)
        return self.alignment.take(dense, _of_kinds(self.inputs.mm_token_type_ids, kinds)[0].nonzero()[:, 0])

    def _writes(self, address: str) -> dict[str, Edit]:
        """For a delta net: at the image's tokens nothing is written (betas), or other values are."""
        if self.how == "zero":
            return {f"{address}.betas": lambda betas: betas.masked_fill(self.visual[: betas.shape[-1]], 0)}
        places = self.visual.nonzero()[:, 0]
        name = f"{address}.attention_values"  # [batch heads seq dim]
        if self.how == "mean":

            def flat(values: Tensor) -> Tensor:
                mean = values[:, :, places].mean(2, keepdim=True).expand(-1, -1, len(places), -1)
                return values.index_copy(2, places, mean.contiguous())

            return {name: flat}
        assert self.other is not None
        assert self.alignment is not None
        there = self.model.run(self.other, read=[name])[name].transpose(1, 2)
        new = self.alignment.take(there, places).transpose(0, 1)[None]
        return {name: lambda values: values.index_copy(2, places, new.to(values.dtype))}


def _of_kinds(types: Tensor, kinds: tuple[int, ...]) -> Tensor:
    return torch.isin(types, torch.tensor(kinds, device=types.device))
