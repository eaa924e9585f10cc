"""Which tokens are meant, and where they lie in the images: what techniques that read some positions share.

It knows prompts and grids. It knows no values of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common import prompts as pairs
from cutaway.analysis.common.result import Array
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

Where = str | int | Sequence[int] | Tensor | Mapping[str, Any]
"""Tokens of a row: a group's name, a word of the prompt, a position or several, or ``{"box": …, "image": 0}``."""


@dataclass(frozen=True)
class Chosen:
    """Positions [tokens] int64 in a row, and what they were called."""

    name: str
    positions: Tensor


def choose(model: Model, inputs: Inputs, where: Where, row: int = 0) -> Chosen:
    """The tokens of a row that `where` means.

    - A string is a group of `pairs.groups` (``"last"``, ``"question"``, ``"image 0"`` …), otherwise words of the
      prompt, at their last occurrence.
    - A number or several are positions; negative ones count from the end.
    - A mapping is a region: ``{"box": (left, top, right, bottom), "image": 0}``, ``"video"`` and ``"frame"``.

    Raises `InputError` when nothing is meant by it.
    """
    check_row(inputs, row)
    if isinstance(where, str):
        found = pairs.groups(model, inputs, row)
        return Chosen(where, found[where] if where in found else _word(model, inputs, where, row, list(found)))
    if isinstance(where, Mapping):
        positions = pairs.region(inputs, **where)
        name = f"box {', '.join(f'{side:g}' for side in where['box'])}"
    else:
        positions = _numbers(inputs, where, row)
        name = f"position {', '.join(map(str, positions.tolist()[:4]))}{' …' if len(positions) > 4 else ''}"
    if not len(positions):
        raise InputError(f"No token lies in {name}. A box is in pixels of the image as it came.")
    return Chosen(name, positions)


def check_row(inputs: Inputs, row: int) -> None:
    """Raises `InputError` for a row that the batch does not have."""
    if not 0 <= row < len(inputs.input_ids):
        raise InputError(f"This batch has {len(inputs.input_ids)} rows, numbered from 0; there is no row {row}.")


def _word(model: Model, inputs: Inputs, text: str, row: int, groups: list[str]) -> Tensor:
    try:
        return pairs.word(model, inputs, text, row)
    except InputError as error:
        raise InputError(f"{text!r} is no group of tokens here ({', '.join(groups)}), nor words: {error}") from error


def _numbers(inputs: Inputs, where: int | Sequence[int] | Tensor, row: int) -> Tensor:
    length = inputs.input_ids.shape[1]
    try:
        given = torch.as_tensor(where).flatten().tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Tokens are a group's name, a word, positions or a region; got {where!r}.") from error
    wrong = [p for p in given if not isinstance(p, int) or not -length <= p < length]
    padding = [p for p in given if p not in wrong and not inputs.attention_mask[row, p]]
    if wrong or padding:
        raise InputError(f"Positions are whole numbers from 0 to {length - 1} with a token; got {wrong or padding}.")
    return torch.tensor([p % length for p in given])


def labels(model: Model, inputs: Inputs, row: int = 0) -> tuple[str, ...]:
    """[seq]: what each position of a row is called, as `pairs.tokens` does; padding by its number alone."""
    names = {int(at[0]): name for name, at in pairs.tokens(model, inputs, row).items()}
    return tuple(names.get(position, f"{position} padding") for position in range(inputs.input_ids.shape[1]))


def places(inputs: Inputs, row: int = 0) -> dict[str, dict[str, tuple[int, ...]]]:
    """The images and videos of a row by name (``"image 0"``), each with its merged `grid` and its tokens' positions.

    Plain data, so that a result can carry it: positions are in raster order, frame by frame.
    """
    where = pairs.geometry(inputs)
    found = {}
    for item in (*where.images, *where.videos):
        if item.sample == row:
            grid = (item.grid[0], item.grid[1] // where.merge, item.grid[2] // where.merge)
            mine = (where.tokens.kind[row] == item.kind) & (where.tokens.item[row] == item.index)
            found[f"{item.kind} {item.index}"] = {"grid": grid, "tokens": tuple(np.flatnonzero(mine).tolist())}
    return found


def on_image(values: np.ndarray, place: Mapping[str, tuple[int, ...]], unit: str = "") -> Array:
    """Values of every position [seq] as a map "frame row column" of one image or video of `places`."""
    return Array.of(values[list(place["tokens"])].reshape(place["grid"]), "frame row column", unit=unit)


def pick(found: Mapping[str, Any], item: str | None) -> str:
    """The name of the image or video that is meant: the only or first one where none is named."""
    if not found:
        raise InputError("The prompt has no image and no video, so there is no map. `weights` has a value per token.")
    if item is None:
        return next(iter(found))
    if item not in found:
        raise InputError(f"There is no {item!r}; the prompt has {', '.join(found)}.")
    return item
