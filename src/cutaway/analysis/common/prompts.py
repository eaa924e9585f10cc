"""Prompts and pairs of prompts, and which token of one answers to which token of the other.

Use `question` to prepare a prompt, `Pair` for the two prompts of activation patching, and `align` to move values
between prompts whose images have other sizes or whose words differ. Which tokens of a prompt are meant is
`token_selection`'s business; values of the model are not read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.arguments import describe
from cutaway.analysis.common.token_selection import geometry
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.inputs.geometry.geometry import Geometry
from cutaway.inputs.geometry.layout import MediaItem
from cutaway.inputs.media import as_messages


def question(
    model: Model, text: str, images: Any = None, videos: Any = None, *, system: str | None = None, **options: Any
) -> Inputs:
    """Prepare the prompt of one user turn: images and videos, then the text; `options` are the processor's."""
    if not isinstance(text, str):
        raise InputError(f"A question is a text; got {describe(text)}.")
    return model.prepare(as_messages(text, images, videos, system), **options)


def prompt_from_spec(model: Model, spec: Any) -> Inputs:
    """Prepare a prompt from plain data, ``{"question": …, "images": […], "videos": […], "system": …}``.

    `Inputs` are returned as they are. Raises `InputError` for anything else.
    """
    if isinstance(spec, Inputs):
        return spec
    if not isinstance(spec, Mapping) or not isinstance(spec.get("question"), str):
        raise InputError(f'A prompt is prepared `Inputs`, or {{"question": "…", "images": [files]}}; got {spec!r}.')
    unknown = sorted(set(spec) - {"question", "images", "videos", "system"})
    if unknown:
        raise InputError(f"A prompt has question, images, videos and system; got {', '.join(unknown)}. Leave that out.")
    media = {name: list(spec[name]) for name in ("images", "videos") if spec.get(name)}
    return question(model, spec["question"], system=spec.get("system"), **media)


@dataclass(frozen=True)
class Pair:
    """Two prompts that differ in what is studied: the answer is right for `clean` and wrong for `corrupt`."""

    clean: Inputs
    corrupt: Inputs

    @classmethod
    def of(cls, model: Model, *, clean: Any, corrupt: Any) -> Pair:
        """Return the pair of two prompts, each as `prompt_from_spec` takes them; each must be a batch of one."""
        prompts = {"clean": prompt_from_spec(model, clean), "corrupt": prompt_from_spec(model, corrupt)}
        return cls(*(check_prompt(inputs, name) for name, inputs in prompts.items()))


def check_prompt(inputs: Any, name: str = "prompt") -> Inputs:
    """Return `inputs` if they are one prepared prompt. Raises `InputError` for anything else, naming the argument."""
    if not isinstance(inputs, Inputs):
        kind = "a list" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
        raise InputError(
            f"`{name}` is one prepared prompt; got {kind}. Prepare one with `question(model, text, images=[…])`."
        )
    if len(inputs.input_ids) != 1:
        raise InputError(
            f"`{name}` is a batch of one; got {len(inputs.input_ids)} samples. Prepare each prompt by itself."
        )
    return inputs


def check_prompts(prompts: Any, name: str = "prompts", least: int = 1) -> list[Inputs]:
    """Return a list of prepared prompts, given as one or several. Raises `InputError` for fewer than `least`."""
    if isinstance(prompts, Inputs):
        prompts = [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, str):
        raise InputError(
            f"`{name}` are prepared prompts, one or a list; got a {type(prompts).__name__}. Prepare them with "
            f"`question(model, text, images=[…])`."
        )
    if len(prompts) < least:
        raise InputError(f"`{name}` has at least {least} prepared prompt(s); got {len(prompts)}.")
    return [check_prompt(inputs, f"{name}[{n}]") for n, inputs in enumerate(prompts)]


@dataclass(frozen=True)
class Alignment:
    """For each position of a base prompt, the positions of a source prompt that answer to it.

    - `sources`, `weights`: [seq k], up to `k` positions and their weights, which sum to one.
    - `missing`: [seq], true where a position has no counterpart.
    """

    sources: Tensor
    weights: Tensor
    missing: Tensor

    def take(self, values: Tensor, positions: Tensor) -> Tensor:
        """Return the source's `values` [1 seq_source …] for positions of the base prompt: [positions …].

        Raises `InputError` where a position has no counterpart.
        """
        unmatched = positions[self.missing[positions]].tolist()
        if unmatched:
            raise InputError(
                f"Every token needs a counterpart in the other prompt; got positions {unmatched} without one, where "
                f"the "
                f"words differ in number. Leave them out, or use prompts whose words match one to one."
            )
        candidates = values[0, self.sources[positions].to(values.device)]  # [positions k …]
        if self.sources.shape[1] == 1:
            return candidates[:, 0]
        weights = self.weights[positions].to(values.device, values.dtype)  # [positions k]
        return (candidates * weights.reshape(*weights.shape, *[1] * (candidates.dim() - 2))).sum(1)


def check_pairs(pairs: Any) -> list[Pair]:
    """Return a list of pairs, given as one or several. Raises `InputError` for none, or anything but pairs."""
    if isinstance(pairs, Pair):
        pairs = [pairs]
    if not isinstance(pairs, Sequence) or isinstance(pairs, str) or not all(isinstance(pair, Pair) for pair in pairs):
        raise InputError(
            f"`pairs` are `Pair(clean, corrupt)`, one or a list; got {describe(pairs)}. Make one with `Pair.of(model, "
            f"clean=…, corrupt=…)`."
        )
    if not pairs:
        raise InputError("`pairs` has at least one pair; got none.")
    for n, pair in enumerate(pairs):
        check_prompt(pair.clean, f"pairs[{n}].clean")
        check_prompt(pair.corrupt, f"pairs[{n}].corrupt")
    return list(pairs)


def align(base: Inputs, source: Inputs) -> Alignment:
    """Match each position of `base` to positions of `source`; both are batches of one.

    An image token takes the tokens of the other image that it overlaps once both images are stretched to one size,
    weighted by area; a video's likewise in time. Words match equal words, or as many other words between equal ones.
    """
    seq = check_prompt(base, "base").input_ids.shape[1]
    check_prompt(source, "source")
    matches: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    here, there = geometry(base), geometry(source)
    for kind, mine, other in (("image", here.images, there.images), ("video", here.videos, there.videos)):
        for item, match in zip(mine, other, strict=False):
            positions = _positions(here, kind, item.index)
            targets = _positions(there, kind, match.index)
            index, share = _overlaps(_grid(here, item), _grid(there, match))
            matches.update({int(p): (targets[i], s) for p, i, s in zip(positions, index, share, strict=True)})
    matches.update({p: (np.array([q]), np.ones(1)) for p, q in _matching_words(base, source)})
    width = max((len(i) for i, _ in matches.values()), default=1)
    sources, weights = torch.zeros(seq, width, dtype=torch.int64), torch.zeros(seq, width, dtype=torch.float64)
    missing = torch.ones(seq, dtype=torch.bool)
    for position, (index, share) in matches.items():
        sources[position, : len(index)] = torch.from_numpy(index)
        weights[position, : len(share)] = torch.from_numpy(share)
        missing[position] = False
    return Alignment(sources, weights, missing)


def _positions(geometry: Geometry, kind: str, item: int) -> np.ndarray:
    return np.flatnonzero((geometry.tokens.kind[0] == kind) & (geometry.tokens.item[0] == item))


def _grid(geometry: Geometry, item: MediaItem) -> tuple[int, int, int]:
    return item.grid[0], item.grid[1] // geometry.merge, item.grid[2] // geometry.merge


def _matching_words(base: Inputs, source: Inputs) -> list[tuple[int, int]]:
    """Return pairs of positions (base, source) whose words match."""
    positions = [(inputs.mm_token_type_ids[0] == 0).nonzero()[:, 0].tolist() for inputs in (base, source)]
    ids = [inputs.input_ids[0, at].tolist() for inputs, at in zip((base, source), positions, strict=True)]
    pairs = []
    for tag, a, b, c, d in SequenceMatcher(None, ids[0], ids[1], autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            pairs += zip(positions[0][a:b], positions[1][c:d], strict=True)
    return pairs


def _overlaps(grid: tuple[int, ...], other: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return [cells k] indices of the other grid's cells and [cells k] area shares, for two grids over one box."""
    index, share = np.zeros((1, 1), np.int64), np.ones((1, 1))
    for mine, theirs in zip(grid, other, strict=True):
        edges, cells = np.arange(mine + 1) / mine, np.arange(theirs + 1) / theirs
        low = np.maximum(edges[:-1, None], cells[None, :-1])
        part = np.clip(np.minimum(edges[1:, None], cells[None, 1:]) - low, 0, None) * mine
        part[part < 1e-9] = 0
        width = int((part > 0).sum(1).max())
        order = np.argsort(-part, 1, kind="stable")[:, :width]
        shares = np.take_along_axis(part, order, 1)
        index = (index[:, None, :, None] * theirs + order[None, :, None, :]).reshape(len(index) * mine, -1)
        share = (share[:, None, :, None] * shares[None, :, None, :]).reshape(len(share) * mine, -1)
    return index, share / share.sum(1, keepdims=True)
