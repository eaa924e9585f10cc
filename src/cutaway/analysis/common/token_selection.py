"""Which tokens of a prompt an analysis is about: groups, words, positions, regions of images.

Two parameters select tokens. A `TokenSelection` (`select_tokens`) is one set of positions: analyses that read or edit
some tokens take it. `PositionGroups` (`position_groups`) are several named sets, one for each cell of a sweep: patching
and ablation take them. Both know the same group names, words and regions. Values of the model are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.result import Array
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.inputs.geometry.geometry import Geometry

TokenSelection = str | int | Sequence[int] | Tensor | Mapping[str, Any]
"""Tokens of one sample: a group's name, a word of the prompt, a position or several, or ``{"box": …, "image": 0}``."""


@dataclass(frozen=True)
class SelectedTokens:
    """Positions [tokens] int64 in one sample, and a name for them."""

    name: str
    positions: Tensor


def select_tokens(model: Model, inputs: Inputs, where: TokenSelection, sample: int = 0) -> SelectedTokens:
    """Return the tokens of a sample that `where` selects.

    - A string is a group of `token_groups` (``"last"``, ``"question"``, ``"image 0"`` …), otherwise whole
      words of the user's turn, ``"square"``, and where it says them twice ``"square #2"``.
    - A number or several are positions; negative ones count from the end.
    - A mapping is a region: ``{"box": (left, top, right, bottom), "image": 0}``, ``"video"`` and ``"frame"`` for
      videos.

    Raises `InputError` for anything else, and for a selection without a token.
    """
    check_sample(inputs, sample)
    if isinstance(where, str):
        groups = token_groups(model, inputs, sample)
        positions = groups[where] if where in groups else _word(model, inputs, where, sample, list(groups))
        return SelectedTokens(where, positions)
    if isinstance(where, Mapping):
        name, positions = _region(inputs, where, sample)
    else:
        positions = _numbers(inputs, where, sample)
        name = f"position {', '.join(map(str, positions.tolist()[:4]))}{' …' if len(positions) > 4 else ''}"
    if not len(positions):
        raise InputError(
            f"A selection has at least one token; got {name}, which has none. A box is in the image's pixels."
        )
    return SelectedTokens(name, positions)


def check_sample(inputs: Inputs, sample: int) -> None:
    """Raise `InputError` for a sample that the batch does not have."""
    if not isinstance(inputs, Inputs):
        raise InputError(
            f"A prepared prompt is wanted; got a {type(inputs).__name__}. Prepare one with `model.prepare`."
        )
    if type(sample) is not int or not 0 <= sample < len(inputs.input_ids):
        raise InputError(f"Samples are numbered from 0 to {len(inputs.input_ids) - 1} in this batch; got {sample!r}.")


def _region(inputs: Inputs, where: Mapping[str, Any], sample: int) -> tuple[str, Tensor]:
    if not where or not set(where) <= set(REGION_KEYS):
        raise InputError(
            f'A region is {{"box": (left, top, right, bottom), "image": 0}}, with "video" and "frame" for videos, or a '
            f'"mask" of pixels; got {dict(where)!r}.'
        )
    medium = {} if where.get("image") is not None or where.get("video") is not None else {"image": 0}
    selected = geometry(inputs).select(**medium, **where)
    words = []
    for key in where:
        value = where[key]
        words.append(key if key == "mask" else f"{key} {value}" if isinstance(value, int) else "box " + _sides(value))
    return " ".join(words), _indices(np.asarray(selected.mask)[sample])


def _sides(box: Sequence[float]) -> str:
    return ", ".join(f"{side:g}" for side in box)


def _word(model: Model, inputs: Inputs, text: str, sample: int, groups: list[str]) -> Tensor:
    try:
        return word_tokens(model, inputs, text, sample)
    except InputError as error:
        raise InputError(
            f"{text!r} is not a group of tokens here ({', '.join(groups)}), nor a word: {error}"
        ) from error


def _numbers(inputs: Inputs, where: int | Sequence[int] | Tensor, sample: int) -> Tensor:
    length = inputs.input_ids.shape[1]
    try:
        numbers = torch.as_tensor(where).flatten().tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Tokens are selected by a group's name, a word, positions or a region; got {where!r}."
        ) from error
    wrong = [p for p in numbers if type(p) is not int or not -length <= p < length]
    padding = [p for p in numbers if p not in wrong and not inputs.attention_mask[sample, p]]
    if wrong or padding:
        raise InputError(f"Positions are whole numbers from 0 to {length - 1} with a token; got {wrong or padding}.")
    return torch.tensor([p % length for p in numbers], dtype=torch.int64)


def token_labels(model: Model, inputs: Inputs, sample: int = 0) -> tuple[str, ...]:
    """Return [seq]: a name for each position of a sample, as in `single_tokens`; padding is called that."""
    names = {int(at[0]): name for name, at in single_tokens(model, inputs, sample).items()}
    return tuple(names.get(position, f"{position} padding") for position in range(inputs.input_ids.shape[1]))


def media_tokens(inputs: Inputs, sample: int = 0) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the images and videos of a sample by name (``"image 0"``): each one's merged `grid` and `tokens`.

    `tokens` are positions in raster order, frame by frame. Plain data, so that a result can hold it.
    """
    layout = geometry(inputs)
    media = {}
    for item in (*layout.images, *layout.videos):
        if item.sample == sample:
            grid = (item.grid[0], item.grid[1] // layout.merge, item.grid[2] // layout.merge)
            mine = (layout.tokens.kind[sample] == item.kind) & (layout.tokens.item[sample] == item.index)
            media[f"{item.kind} {item.index}"] = {"grid": grid, "tokens": tuple(np.flatnonzero(mine).tolist())}
    return media


def image_map(values: np.ndarray, medium: Mapping[str, tuple[int, ...]], unit: str = "") -> Array:
    """Return values of every position [seq] as an array "frame row column" of one entry of `media_tokens`."""
    return Array.of(values[list(medium["tokens"])].reshape(medium["grid"]), "frame row column", unit=unit)


def one_medium(media: Mapping[str, Any], name: str | None) -> str:
    """Return the name of one image or video of `media_tokens`; the first where `name` is None."""
    if not media:
        raise InputError("A map needs an image or video; got a prompt without. `weights` has a value per token.")
    if name is None:
        return next(iter(media))
    if name not in media:
        raise InputError(f"Images and videos of this prompt are {', '.join(media)}; got {name!r}.")
    return name


def geometry(inputs: Inputs) -> Geometry:
    """Return the geometry of a batch. Raises `InputError` for one that the model's processor did not prepare."""
    if not isinstance(inputs, Inputs):
        raise InputError(
            f"A prompt must be prepared inputs: use `model.prepare(…)`; got a {type(inputs).__name__}. A list of "
            f"prompts "
            f"is prepared one by one."
        )
    if inputs.geometry is None:
        raise InputError(
            "Tokens are selected by the geometry of a batch; got one without. Prepare it with `model.prepare` or the "
            "model's processor."
        )
    return inputs.geometry


def _indices(mask: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


def token_groups(model: Model, inputs: Inputs, sample: int = 0) -> dict[str, Tensor]:
    """Return the positions of the groups of tokens that a sample has, by name; empty groups are left out.

    ``"all"``; ``"image"`` (every image's and video's tokens) and each of them, ``"image 0"``, ``"video 0"``, numbered
    in the batch; ``"markers"`` around them; ``"text"``; ``"question"``, the words after the last image or video, or
    all words where there are none; ``"last"``, the position that predicts the answer.
    """
    table = geometry(inputs).tokens
    kind, item = table.kind[sample], table.item[sample]
    visual = np.isin(kind, ("image", "video"))
    masks = {"all": kind != "padding", "image": visual}
    for name in ("image", "video"):
        for index in sorted(set(item[kind == name])):
            masks[f"{name} {index}"] = (kind == name) & (item == index)
    masks |= {"markers": kind == "marker", "text": kind == "text"}
    positions = {name: _indices(mask) for name, mask in masks.items() if mask.any()}
    ids = inputs.input_ids[sample, : len(kind)].cpu().numpy()
    words = (kind == "text") & ~np.isin(ids, list(model.tokenizer.special_ids))
    after = np.flatnonzero(visual | (kind == "marker"))
    question = words & (np.arange(len(kind)) > (after[-1] if len(after) else -1))
    if len(after) and question.any():  # up to the control token that ends the turn
        first = int(np.flatnonzero(question)[0])
        ends = np.flatnonzero((kind == "text") & ~words & (np.arange(len(kind)) > first))
        question &= np.arange(len(kind)) < (ends[0] if len(ends) else len(kind))
    question = question if question.any() else words
    if question.any():
        positions["question"] = _indices(question)
    positions["last"] = positions["all"][-1:]
    return positions


_WITHOUT_SPACES = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Scripts that do not put spaces between words; there a word may stand between letters."""


def word_tokens(model: Model, inputs: Inputs, text: str, sample: int = 0) -> Tensor:
    """Return the positions of the tokens that together spell a word, or several words, of the user's turn.

    Whole words alone are found: ``"is"`` is not found in ``"this"``. Where the turn says them more than once, add which
    one is meant: ``"square #2"``. Without a chat template all text of the sample counts as the turn. Raises
    `InputError` for words that the turn does not say, or says more than once.
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"A word is a text; got {text!r}.")
    positions = _turn(model, inputs, sample)
    # in bytes: a character that the vocabulary lacks is cut into tokens that are no text by themselves
    pieces = [model.tokenizer.token_bytes(id) for id in inputs.input_ids[sample, positions].tolist()]
    spelled = b"".join(pieces).decode("utf-8", "surrogateescape")
    start, length = _occurrence(spelled, text.strip())
    first = len(spelled[:start].encode("utf-8", "surrogateescape"))
    last = first + len(spelled[start : start + length].encode("utf-8", "surrogateescape"))
    ends = np.cumsum([len(piece) for piece in pieces])
    return torch.from_numpy(positions[(ends > first) & (ends - [len(piece) for piece in pieces] < last)])


def _turn(model: Model, inputs: Inputs, sample: int) -> np.ndarray:
    """Return the positions of the text of the user's turns; of all text where no turn is marked as the user's."""
    kind = geometry(inputs).tokens.kind[sample]
    positions = np.flatnonzero(kind == "text")
    ids = inputs.input_ids[sample, positions].tolist()
    special, role = set(model.tokenizer.special_ids), b"user\n"
    mine: list[int] = []
    spelled: bytes | None = None  # of the turn so far; None outside the turns
    for n, (id, name) in enumerate(zip(ids, model.tokenizer.strings(ids), strict=True)):
        if name in ("<|im_start|>", "<|im_end|>"):
            spelled = b"" if name == "<|im_start|>" else None
        elif spelled is not None and id not in special:
            if spelled.startswith(role):
                mine.append(n)
            spelled += model.tokenizer.token_bytes(id)
    return positions[mine or [n for n, id in enumerate(ids) if id not in special]]


def _occurrence(spelled: str, text: str) -> tuple[int, int]:
    """Return the start and length of the words `text` in a turn. Raises `InputError` unless one occurrence is meant."""
    result, wanted, number = _whole_words(spelled, text), text, None
    numbered = re.fullmatch(r"(.+?) ?#(\d+)", text, re.S)
    if not result and numbered:
        wanted, number = numbered[1], int(numbered[2])
        result = _whole_words(spelled, wanted)
    message = spelled.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not result:
        raise InputError(f"{text!r} is no word of the user's turn, which says {message!r}. Select whole words of it.")
    if number is None and len(result) > 1:
        listed = ", ".join(
            f"{wanted} #{n} in {spelled[max(0, at - 12) : at + len(wanted) + 12]!r}" for n, at in enumerate(result, 1)
        )
        raise InputError(f'{text!r} is said {len(result)} times: {listed}. Say which one, as in "{wanted} #1".')
    if number is not None and not 1 <= number <= len(result):
        raise InputError(f"{wanted!r} is said {len(result)} times, numbered from 1; got #{number}.")
    return result[(number or 1) - 1], len(wanted)


def _whole_words(spelled: str, text: str) -> list[int]:
    """Return where `text` stands in a turn with no letter or digit joined to either of its ends."""
    inside = rf"[^\W_{_WITHOUT_SPACES}]"
    before = rf"(?<!{inside})" if re.match(inside, text) else ""
    after = rf"(?!{inside})" if re.match(inside, text[-1]) else ""
    return [match.start() for match in re.finditer(f"{before}{re.escape(text)}{after}", spelled)]


def region_tokens(
    inputs: Inputs, box: tuple[float, float, float, float], *, image: int = 0, video: int | None = None, **which: Any
) -> Tensor:
    """Return the positions of the tokens that a box (left, top, right, bottom), in pixels of the image, overlaps.

    With `video` the box is in a video's frames; `frame` picks one temporal grid.
    """
    medium = {"image": image} if video is None else {"video": video}
    mask = geometry(inputs).select(box=box, **medium, **which).mask
    return mask.nonzero()[:, 1]


def image_regions(inputs: Inputs, rows: int, columns: int, *, image: int = 0) -> dict[str, Tensor]:
    """Cut an image into `rows` × `columns` rectangles and return the positions of the tokens whose centre is in each.

    Named ``"r0 c0"`` in reading order; a rectangle without a token's centre is left out.
    """
    where, table = geometry(inputs), geometry(inputs).tokens
    item = where.item(image=image)
    if rows < 1 or columns < 1:
        raise InputError(f"An image is cut into at least one row and one column; got {rows} × {columns}.")
    mine = (table.kind == item.kind) & (table.item == item.index)
    positions, box = np.nonzero(mine)[1], table.box[mine]
    down = ((box[:, 1] + box[:, 3]) / 2 * rows / item.size[0]).astype(int)
    across = ((box[:, 0] + box[:, 2]) / 2 * columns / item.size[1]).astype(int)
    cut = {(r, c): positions[(down == r) & (across == c)] for r in range(rows) for c in range(columns)}
    return {f"r{r} c{c}": torch.from_numpy(at) for (r, c), at in cut.items() if len(at)}


def video_frames(inputs: Inputs, video: int = 0) -> dict[str, Tensor]:
    """Return the positions of each temporal grid of a video, named ``"frame 0"``, ``"frame 1"`` …"""
    where = geometry(inputs)
    count = where.item(video=video).grid[0]
    return {f"frame {f}": where.select(video=video, frame=f).mask.nonzero()[:, 1] for f in range(count)}


def single_tokens(model: Model, inputs: Inputs, sample: int = 0) -> dict[str, Tensor]:
    """Return every token of a sample by itself, named by position and text: ``"12 'red'"``, ``"5 image r0 c1"``."""
    table, names_to_positions = geometry(inputs).tokens, {}
    names = model.tokenizer.strings(inputs.input_ids[sample].tolist())
    for position in np.flatnonzero(table.kind[sample] != "padding"):
        kind = str(table.kind[sample, position])
        name = repr(names[position])
        if kind in ("image", "video"):
            frame = f" f{table.frame[sample, position]}" if kind == "video" else ""
            name = f"{kind}{frame} r{table.row[sample, position]} c{table.col[sample, position]}"
        names_to_positions[f"{position} {name}"] = torch.tensor([position])
    return names_to_positions


PositionGroups = str | Sequence[str] | Mapping[str, Any]
"""Several named groups of positions, the rows of a sweep's grid: see `position_groups`."""

REGION_KEYS = ("box", "image", "video", "frame", "mask")
"""Keys that describe a region: with a number, or beside a box, they are no names of groups."""


def position_groups(model: Model, inputs: Inputs, where: PositionGroups) -> dict[str, Tensor]:
    """Return several named groups of positions of a prompt, one for each cell of a sweep.

    - ``"tokens"``: every token by itself. ``"groups"``: every group of `token_groups`; of groups with the same tokens
      the first. ``"regions 4x6"``: the first image in rows and columns. ``"frames"``: those of the first video.
    - A list of groups and words of the prompt, ``["image", "red"]``.
    - One region, ``{"box": (left, top, right, bottom), "image": 0}``, as `select_tokens` takes it.
    - A mapping from names to positions, or to regions: ``{"sky": [4, 5], "sun": {"box": (0, 0, 32, 32)}}``.

    Raises `InputError` for anything else, for no group, and for a group without a position.
    """
    if len(geometry(inputs).tokens.kind) != 1:
        raise InputError(
            f"Token groups are of one prompt; got a batch of {len(inputs.input_ids)} samples. Prepare each by itself."
        )
    if isinstance(where, Mapping):
        return _named_groups(model, inputs, where)
    if isinstance(where, str):
        return _divided(model, inputs, where)
    if not isinstance(where, Sequence) or not all(isinstance(name, str) for name in where):
        raise InputError(f'{_GROUPS_RULE}; got {where!r}. For positions give them a name: {{"name": [4, 5]}}.')
    if not len(where):
        raise InputError('A list of token groups names at least one; got an empty list. Try ["image", "last"].')
    groups = token_groups(model, inputs)
    return {name: groups[name] if name in groups else _word(model, inputs, name, 0, list(groups)) for name in where}


_GROUPS_RULE = 'Token groups are "tokens", "groups", "frames", "regions 4x6", a list of names, or positions by name'


def _divided(model: Model, inputs: Inputs, where: str) -> dict[str, Tensor]:
    cut = re.fullmatch(r"regions (\d+)x(\d+)", where)
    if cut:
        return image_regions(inputs, int(cut[1]), int(cut[2]))
    ways = {"tokens": single_tokens, "groups": _distinct_groups, "frames": lambda _, batch: video_frames(batch)}
    if where not in ways:
        raise InputError(f'{_GROUPS_RULE}; got {where!r}. For one group give a list: ["{where}"].')
    return ways[where](model, inputs)


def _distinct_groups(model: Model, inputs: Inputs) -> dict[str, Tensor]:
    seen: dict[tuple[int, ...], str] = {}
    groups = token_groups(model, inputs)
    return {name: at for name, at in groups.items() if seen.setdefault(tuple(at.tolist()), name) == name}


def _named_groups(model: Model, inputs: Inputs, where: Mapping[str, Any]) -> dict[str, Tensor]:
    if not where:
        raise InputError("A mapping of token groups names at least one; got an empty one.")
    numbered = [key for key in REGION_KEYS if isinstance(where.get(key), int)]
    if "box" in where or numbered:  # one region, not groups that are called "box" and "image"
        selected = select_tokens(model, inputs, where)
        return {selected.name: selected.positions}
    return {str(name): select_tokens(model, inputs, group).positions for name, group in where.items()}
