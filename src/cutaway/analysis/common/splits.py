"""Splits of prompts into training and held-out parts that keep whole groups together.

Two prompts about one image are not independent: a probe or lens that has seen one has seen the other. By default
prompts with the same images and videos (and prompts with the same text, where there are none) are one group. What is
trained on a part is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import describe
from cutaway.batch import Inputs
from cutaway.errors import InputError


def groups_of(prompts: Sequence[Inputs], groups: Sequence[Any] | None = None) -> list[str]:
    """Return the name of each prompt's group: the `groups` that the caller gives, else one for each set of images.

    Raises `InputError` unless there is one group for each prompt.
    """
    if groups is not None:
        if isinstance(groups, str) or not isinstance(groups, Sequence) or len(groups) != len(prompts):
            raise InputError(
                f"`groups` must have one entry for each of the {len(prompts)} prompts; got {describe(groups)}."
            )
        return [str(group) for group in groups]
    return [_content(inputs) for inputs in prompts]


def _content(inputs: Inputs) -> str:
    """A hash of the pixels of a prompt, or of its token ids where it has no image and no video."""
    result = sha256()
    pixels = [p for p in (inputs.pixel_values, inputs.pixel_values_videos) if p is not None]
    for tensor in pixels or [inputs.input_ids]:
        result.update(tensor.cpu().numpy().tobytes())
    return result.hexdigest()[:16]


def held_out_part(groups: Sequence[str], share: float, seed: int) -> Tensor:
    """Return [prompts] bool: whole groups, drawn at random, that hold about `share` of the prompts; at least one group.

    Raises `InputError` where there is only one group, so that nothing could be held out.
    """
    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        raise InputError(
            "Nothing can be held out: all prompts are one group, since they have the same images. Give prompts about "
            "different images, or say with `groups=` which prompts belong together."
        )
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    wanted, selection, count = share * len(groups), set(), 0
    for n in order[:-1]:
        if selection and count >= wanted:
            break
        selection.add(names[n])
        count += groups.count(names[n])
    return torch.tensor([group in selection for group in groups])


def group_folds(groups: Sequence[str], classes: Tensor | None, folds: int, seed: int) -> Tensor:
    """Return [examples] int64: the fold in which each example is held out; a group is never in two folds.

    With `classes` [examples] each class is spread over the folds as evenly as the groups allow. Raises `InputError`
    for fewer groups than folds.
    """
    names = list(dict.fromkeys(groups))
    if len(names) < folds:
        raise InputError(
            f"{folds} folds need at least as many groups of prompts (one for each set of images); got {len(names)}. "
            f"Give more images, fewer `folds`, or say with `groups=` which prompts belong together."
        )
    labels = torch.zeros(len(groups), dtype=torch.int64) if classes is None else classes.long()
    members = {name: torch.tensor([group == name for group in groups]) for name in names}
    counts = {
        name: torch.bincount(labels[mine], minlength=int(labels.max()) + 1).double() for name, mine in members.items()
    }
    order = [names[n] for n in torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()]
    order.sort(key=lambda name: (-float(counts[name].sum()), int(counts[name].argmax())))  # large ones first, by class
    filled = torch.zeros(folds, int(labels.max()) + 1, dtype=torch.float64)  # [folds classes]
    fold_of: dict[str, int] = {}
    for name in order:
        after = filled + counts[name]
        uneven = [float((after[fold] ** 2 - filled[fold] ** 2).sum()) for fold in range(folds)]
        best = min(range(folds), key=lambda fold: (uneven[fold], float(filled[fold].sum())))
        filled[best] = after[best]
        fold_of[name] = best
    return torch.tensor([fold_of[group] for group in groups])
