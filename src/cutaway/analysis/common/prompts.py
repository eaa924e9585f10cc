"""What is compared and where: prompts, pairs of them, groups of their tokens, and which token answers to which.

Positions count in a row of the sequence; regions, frames and images of other sizes go through `inputs.geometry`. It
knows what the processor made of a prompt; it knows no values of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.inputs.geometry.geometry import Geometry
from cutaway.inputs.geometry.tables import Item
from cutaway.inputs.question import as_messages


def question(
    model: Model, text: str, images: Any = None, videos: Any = None, *, system: str | None = None, **options: Any
) -> Inputs:
    """The prompt of one user's turn: images and videos, then the text; `options` are the processor's."""
    return model.prepare(as_messages(text, images, videos, system), **options)


def from_spec(model: Model, spec: Any) -> Inputs:
    """A prompt from plain data: ``{"question": …, "images": […], "videos": […], "system": …}``, or `Inputs` as such."""
    if isinstance(spec, Inputs):
        return spec
    if not isinstance(spec, Mapping) or not isinstance(spec.get("question"), str):
        raise InputError(f'A prompt is {{"question": "…", "images": [files]}}; got {spec!r}.')
    unknown = sorted(set(spec) - {"question", "images", "videos", "system"})
    if unknown:
        raise InputError(f"A prompt has question, images, videos and system; {', '.join(unknown)} is none of them.")
    media = {name: list(spec[name]) for name in ("images", "videos") if spec.get(name)}
    return question(model, spec["question"], system=spec.get("system"), **media)


@dataclass(frozen=True)
class Pair:
    """Two prompts that differ in what is studied: the `clean` one has the answer, the `corrupt` one has it not."""

    clean: Inputs
    corrupt: Inputs

    @classmethod
    def of(cls, model: Model, *, clean: Any, corrupt: Any) -> Pair:
        """Of two prompts, each as `from_spec` takes them. Raises `InputError` unless each is a batch of one."""
        pair = cls(from_spec(model, clean), from_spec(model, corrupt))
        for name, inputs in (("clean", pair.clean), ("corrupt", pair.corrupt)):
            if inputs.input_ids.shape[0] != 1:
                raise InputError(f"Each prompt of a pair is a batch of one; the {name} one has {len(inputs.input_ids)}")
        return pair


def geometry(inputs: Inputs) -> Geometry:
    """The geometry of a batch. Raises `InputError` for one that was not prepared by the model's processor."""
    if inputs.geometry is None:
        raise InputError("This batch has no geometry. Prepare it with `model.prepare` or the model's processor.")
    return inputs.geometry


def _where(mask: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


def groups(model: Model, inputs: Inputs, row: int = 0) -> dict[str, Tensor]:
    """Positions of the groups that a row has, by name; groups without a token are left out.

    ``"all"``; ``"image"`` (every image's and video's tokens) and each of them, ``"image 0"``, ``"video 0"``, numbered
    in the batch; ``"markers"`` around them; ``"text"``; ``"question"``, the words after the last image or video, or
    all words where there are none; ``"last"``, the position that predicts the answer.
    """
    table = geometry(inputs).tokens
    kind, item = table.kind[row], table.item[row]
    visual = np.isin(kind, ("image", "video"))
    found = {"all": kind != "padding", "image": visual}
    for name in ("image", "video"):
        for index in sorted(set(item[kind == name])):
            found[f"{name} {index}"] = (kind == name) & (item == index)
    found |= {"markers": kind == "marker", "text": kind == "text"}
    positions = {name: _where(mask) for name, mask in found.items() if mask.any()}
    ids = inputs.input_ids[row, : len(kind)].cpu().numpy()
    words = (kind == "text") & ~np.isin(ids, list(model.tokenizer.special_ids))
    after = np.flatnonzero(visual | (kind == "marker"))
    asked = words & (np.arange(len(kind)) > (after[-1] if len(after) else -1))
    if len(after) and asked.any():  # up to the control token that ends the turn
        first = int(np.flatnonzero(asked)[0])
        ends = np.flatnonzero((kind == "text") & ~words & (np.arange(len(kind)) > first))
        asked &= np.arange(len(kind)) < (ends[0] if len(ends) else len(kind))
    asked = asked if asked.any() else words
    if asked.any():
        positions["question"] = _where(asked)
    positions["last"] = positions["all"][-1:]
    return positions


def word(model: Model, inputs: Inputs, text: str, row: int = 0) -> Tensor:
    """Positions of the tokens that together spell `text`, at its last occurrence among the text of a row."""
    kind = geometry(inputs).tokens.kind[row]
    places = np.flatnonzero(kind == "text")
    # in bytes: a character that the vocabulary lacks is cut into tokens that are no text by themselves
    pieces = [model.tokenizer.token_bytes(id) for id in inputs.input_ids[row, places].tolist()]
    said, wanted = b"".join(pieces), text.encode("utf-8", "replace")
    start, ends = said.rfind(wanted) if text else -1, np.cumsum([len(piece) for piece in pieces])
    if start < 0:
        raise InputError(f"The prompt does not say {text!r}; its text is {said.decode('utf-8', 'replace')!r}.")
    return torch.from_numpy(places[(ends > start) & (ends - [len(p) for p in pieces] < start + len(wanted))])


def region(
    inputs: Inputs, box: tuple[float, float, float, float], *, image: int = 0, video: int | None = None, **which: Any
) -> Tensor:
    """Positions of the tokens that a box (left, top, right, bottom), in pixels of the image, overlaps.

    With `video` the box is one of a video; `frame` picks a temporal grid.
    """
    medium = {"image": image} if video is None else {"video": video}
    mask = geometry(inputs).select(box=box, **medium, **which).mask
    return mask.nonzero()[:, 1]


def regions(inputs: Inputs, rows: int, columns: int, *, image: int = 0) -> dict[str, Tensor]:
    """An image cut into `rows` × `columns` rectangles: the positions of the tokens whose centre lies in each.

    Named ``"r0 c0"`` in reading order; a rectangle without a token's centre is left out.
    """
    where, table = geometry(inputs), geometry(inputs).tokens
    item = where.item(image=image)
    if rows < 1 or columns < 1:
        raise InputError(f"An image is cut into at least one row and column; got {rows} × {columns}.")
    mine = (table.kind == item.kind) & (table.item == item.index)
    places, box = np.nonzero(mine)[1], table.box[mine]
    down = ((box[:, 1] + box[:, 3]) / 2 * rows / item.size[0]).astype(int)
    across = ((box[:, 0] + box[:, 2]) / 2 * columns / item.size[1]).astype(int)
    cut = {(r, c): places[(down == r) & (across == c)] for r in range(rows) for c in range(columns)}
    return {f"r{r} c{c}": torch.from_numpy(found) for (r, c), found in cut.items() if len(found)}


def frames(inputs: Inputs, video: int = 0) -> dict[str, Tensor]:
    """The positions of each temporal grid of a video, named ``"frame 0"`` …"""
    where = geometry(inputs)
    count = where.item(video=video).grid[0]
    return {f"frame {f}": where.select(video=video, frame=f).mask.nonzero()[:, 1] for f in range(count)}


def tokens(model: Model, inputs: Inputs, row: int = 0) -> dict[str, Tensor]:
    """Every token of a row by itself, named by position and text: ``"12 'red'"``, in an image ``"5 image r0 c1"``."""
    table, found = geometry(inputs).tokens, {}
    names = model.tokenizer.strings(inputs.input_ids[row].tolist())
    for position in np.flatnonzero(table.kind[row] != "padding"):
        kind = str(table.kind[row, position])
        name = repr(names[position])
        if kind in ("image", "video"):
            frame = f" f{table.frame[row, position]}" if kind == "video" else ""
            name = f"{kind}{frame} r{table.row[row, position]} c{table.col[row, position]}"
        found[f"{position} {name}"] = torch.tensor([position])
    return found


Spots = str | Sequence[str] | Mapping[str, Tensor]
"""Places to act on: a way to divide the prompt, names of groups or words, or positions by name."""


def spots(model: Model, inputs: Inputs, where: Spots) -> dict[str, Tensor]:
    """Named places of a prompt: positions by name.

    ``"tokens"`` every token, ``"regions 4x6"`` the first image in rows and columns, ``"frames"`` those of the first
    video, ``"groups"`` every group that there is (of groups with the same tokens the first); or a list of groups and
    words of the prompt; or positions by name.
    """
    if isinstance(where, Mapping):
        found = {name: torch.as_tensor(positions).flatten() for name, positions in where.items()}
        if not found:
            raise InputError("The places are empty: name at least one, with its positions.")
        return _inside(found, inputs)
    if not isinstance(where, str):
        if not len(where):
            raise InputError('The list of places is empty: name at least one, such as ["image", "last"].')
        have = groups(model, inputs)
        return {name: have[name] if name in have else word(model, inputs, name) for name in where}
    cut = re.fullmatch(r"regions (\d+)x(\d+)", where)
    if cut:
        return regions(inputs, int(cut[1]), int(cut[2]))
    ways = {"tokens": tokens, "groups": _distinct, "frames": lambda _, batch: frames(batch)}
    if where not in ways:
        raise InputError(
            f'Places are "tokens", "regions 4x6", "frames", "groups", or a list of names such as ["image", "last"]; '
            f"got {where!r}."
        )
    return ways[where](model, inputs)


def _distinct(model: Model, inputs: Inputs) -> dict[str, Tensor]:
    seen: dict[tuple[int, ...], str] = {}
    found = groups(model, inputs)
    return {name: at for name, at in found.items() if seen.setdefault(tuple(at.tolist()), name) == name}


def _inside(found: dict[str, Tensor], inputs: Inputs) -> dict[str, Tensor]:
    length = inputs.input_ids.shape[1]
    for name, positions in found.items():
        if not len(positions) or not 0 <= int(positions.min()) <= int(positions.max()) < length:
            raise InputError(f"Positions are from 0 to {length - 1}, at least one; {name!r} has {positions.tolist()}.")
    return found


@dataclass(frozen=True)
class Alignment:
    """For each position of a base sequence, where it takes its value from in a source sequence.

    `sources` and `weights` [seq k]: up to `k` positions, with shares that sum to one; `missing` [seq]: it has none.
    """

    sources: Tensor
    weights: Tensor
    missing: Tensor

    def take(self, values: Tensor, positions: Tensor) -> Tensor:
        """The source's `values` [1 seq_source …] for base `positions`: [positions …]. Raises where one has none."""
        lost = positions[self.missing[positions]].tolist()
        if lost:
            raise InputError(
                f"The tokens at positions {lost} have no counterpart in the other prompt: its words there differ in "
                f"number. Leave them out, or choose prompts whose words match one to one."
            )
        picked = values[0, self.sources[positions].to(values.device)]
        if self.sources.shape[1] == 1:
            return picked[:, 0]
        weights = self.weights[positions].to(values.device, values.dtype)
        return (picked * weights.reshape(*weights.shape, *[1] * (picked.dim() - 2))).sum(1)


def align(base: Inputs, source: Inputs) -> Alignment:
    """Which positions of `source` each position of `base` answers to; both are batches of one.

    An image's token takes the tokens of the other image that it overlaps, both images stretched to one size, with
    shares by area; a video's likewise in time. Words answer to equal words, and to as many other words in their place.
    """
    seq = base.input_ids.shape[1]
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    here, there = geometry(base), geometry(source)
    for kind, mine, other in (("image", here.images, there.images), ("video", here.videos, there.videos)):
        for item, match in zip(mine, other, strict=False):
            places = _positions(here, kind, item.index)
            targets = _positions(there, kind, match.index)
            index, share = _overlaps(_grid(here, item), _grid(there, match))
            found.update({int(p): (targets[i], s) for p, i, s in zip(places, index, share, strict=True)})
    found.update({p: (np.array([q]), np.ones(1)) for p, q in _words(base, source)})
    width = max((len(i) for i, _ in found.values()), default=1)
    sources, weights = torch.zeros(seq, width, dtype=torch.int64), torch.zeros(seq, width, dtype=torch.float64)
    missing = torch.ones(seq, dtype=torch.bool)
    for place, (index, share) in found.items():
        sources[place, : len(index)] = torch.from_numpy(index)
        weights[place, : len(share)] = torch.from_numpy(share)
        missing[place] = False
    return Alignment(sources, weights, missing)


def _positions(where: Geometry, kind: str, item: int) -> np.ndarray:
    return np.flatnonzero((where.tokens.kind[0] == kind) & (where.tokens.item[0] == item))


def _grid(where: Geometry, item: Item) -> tuple[int, int, int]:
    return item.grid[0], item.grid[1] // where.merge, item.grid[2] // where.merge


def _words(base: Inputs, source: Inputs) -> list[tuple[int, int]]:
    """Pairs of positions whose words answer to each other."""
    places = [(inputs.mm_token_type_ids[0] == 0).nonzero()[:, 0].tolist() for inputs in (base, source)]
    ids = [inputs.input_ids[0, at].tolist() for inputs, at in zip((base, source), places, strict=True)]
    pairs = []
    for tag, a, b, c, d in SequenceMatcher(None, ids[0], ids[1], autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            pairs += zip(places[0][a:b], places[1][c:d], strict=True)
    return pairs


def _overlaps(grid: tuple[int, ...], other: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[cells k] indices into the other grid's cells and their shares, for two grids over one box."""
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
