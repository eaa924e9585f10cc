"""Where every token of a batch stands: the runs of text, image and video tokens, and their M-RoPE positions.

Pure functions of token types, mask and grids. They know nothing of ids, pixels or weights.

Words used here: a *grid* is (time, height, width) in patches, as the processor reports it; a *merged grid* has height
and width divided by the merge size, one cell per token; a *block* is the merged grid that is placed at one go (on the
families with time stamps a video is placed as one block per temporal grid, otherwise an image or video is one block).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cutaway.batch import IMAGE, TEXT, VIDEO
from cutaway.errors import InputError

KIND_NAMES = {TEXT: "text", IMAGE: "image", VIDEO: "video"}


@dataclass(frozen=True)
class TokenRun:
    """Consecutive unmasked tokens of one row that belong together: a stretch of text, or one block.

    - `kind`: `TEXT`, `IMAGE` or `VIDEO`; `start`: index of the first token among the row's unmasked ones; `length`.
    - `item`: which image (or video) of the batch; `frame`: its first temporal grid.
    - `time`, `height`, `width`: the merged grid; 1 x 1 x 1 for text.
    """

    kind: int
    start: int
    length: int
    item: int = -1
    frame: int = 0
    time: int = 1
    height: int = 1
    width: int = 1


def read_grids(grids: Tensor | Sequence[Sequence[int]] | None, merge: int, kind: int = IMAGE) -> list[tuple[int, ...]]:
    """The rows of a grid array [items 3] as tuples of ints; `InputError` for another shape, a side of zero, or one that
    the merge size does not divide.
    """
    if grids is None:
        return []
    array = torch.as_tensor(grids, device="cpu")
    if array.numel() == 0:
        return []
    if array.ndim != 2 or array.shape[1] != 3:
        raise InputError(
            f"a {KIND_NAMES[kind]} grid array is [items 3] (time, height, width in patches); got {tuple(array.shape)}."
        )
    rows = [tuple(int(n) for n in row) for row in array.tolist()]
    for item, (time, height, width) in enumerate(rows):
        if min(time, height, width) < 1 or height % merge or width % merge:
            raise InputError(
                f"a grid has positive sides, height and width multiples of the merge size {merge}; {KIND_NAMES[kind]} {item} "
                f"has {(time, height, width)}. Pass the grids as the processor made them."
            )
    return rows


def _blocks(rows: list[tuple[int, ...]], merge: int, split: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """(item, frame, time, height, width) of every block, in order; with `split` one per temporal grid."""
    for item, (time, height, width) in enumerate(rows):
        cells = height // merge, width // merge
        if split:
            yield from ((item, frame, 1, *cells) for frame in range(time))
        else:
            yield (item, 0, time, *cells)


def _check_totals(types: Tensor, mask: Tensor, rows: dict[int, list[tuple[int, ...]]], merge: int) -> None:
    """Raises unless the batch has as many placeholders of each kind as its grids describe tokens."""
    for kind, grids in rows.items():
        per_row = ((types == kind) & (mask != 0)).sum(-1).tolist()
        tokens = [time * height * width // merge**2 for time, height, width in grids]
        if sum(per_row) != sum(tokens):
            raise InputError(
                f"{KIND_NAMES[kind]} placeholders and {KIND_NAMES[kind]} grids must match: the ids have {sum(per_row)} "
                f"placeholders (by row {per_row}), the grids describe {sum(tokens)} tokens (by {KIND_NAMES[kind]} {tokens}). "
                f"Prepare the text and the {KIND_NAMES[kind]}s in one call, and do not cut the ids."
            )


def token_runs(
    types: Tensor,
    mask: Tensor,
    image_grids: Tensor | Sequence[Sequence[int]] | None,
    video_grids: Tensor | Sequence[Sequence[int]] | None,
    *,
    merge: int = 2,
    timestamps: bool,
) -> list[list[TokenRun]]:
    """The runs of every row, in order.

    `types` and `mask` are [batch seq]; grids are [items 3], in the order in which the rows use them. Grids are consumed
    one block at a time, so blocks may touch. `InputError` when placeholders and grids do not match.
    """
    if types.shape != mask.shape or types.ndim != 2:
        raise InputError(
            f"token types and attention mask are both [batch seq]; got {tuple(types.shape)} and {tuple(mask.shape)}."
        )
    rows = {IMAGE: read_grids(image_grids, merge, IMAGE), VIDEO: read_grids(video_grids, merge, VIDEO)}
    _check_totals(types, mask, rows, merge)
    blocks = {kind: _blocks(grids, merge, timestamps and kind == VIDEO) for kind, grids in rows.items()}
    return [_row_runs(row, types[row][mask[row] != 0], blocks) for row in range(types.shape[0])]


def _row_runs(row: int, kept: Tensor, blocks: dict[int, Iterator[tuple[int, int, int, int, int]]]) -> list[TokenRun]:
    """The runs of one row, its unmasked token types given."""
    found: list[TokenRun] = []
    start = 0
    kinds, counts = torch.unique_consecutive(kept, return_counts=True)
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        if kind not in KIND_NAMES:
            raise InputError(f"a token type is 0 (text), 1 (image) or 2 (video); row {row} has {kind}.")
        end = start + count
        if kind == TEXT:
            found.append(TokenRun(TEXT, start, count))
            start = end
        while start < end:
            item, frame, *grid = next(blocks[kind])  # the totals match, so a block is left
            length = grid[0] * grid[1] * grid[2]
            if length > end - start:
                raise InputError(
                    f"row {row} has {end - start} {KIND_NAMES[kind]} placeholders in one run where {KIND_NAMES[kind]} {item}, with "
                    f"a merged grid of {tuple(grid)}, needs {length}. Each {KIND_NAMES[kind]}'s placeholders stand together, "
                    f"in the order of the grids."
                )
            found.append(TokenRun(kind, start, length, item, frame, *grid))
            start += length
    return found


@dataclass(frozen=True)
class GridCells:
    """For every unmasked token of a row: which run it is in, and its place in that run's merged grid. All [tokens]."""

    run: np.ndarray
    local: np.ndarray
    time: np.ndarray
    height: np.ndarray
    width: np.ndarray


def grid_cells(found: list[TokenRun]) -> GridCells:
    """The cells of one row's runs; text tokens have place (0, 0, 0) and their index in the run as `local`."""
    lengths = np.array([run.length for run in found], np.int64)
    run = np.repeat(np.arange(len(found)), lengths)
    sizes = np.array([(r.start, r.height, r.width) for r in found], np.int64).reshape(-1, 3)[run]
    local = np.arange(lengths.sum()) - sizes[:, 0]
    block = np.array([r.kind != TEXT for r in found], bool)[run]
    in_frame = local % (sizes[:, 1] * sizes[:, 2])
    time = np.where(block, local // (sizes[:, 1] * sizes[:, 2]), 0)
    return GridCells(run, local, time, in_frame // sizes[:, 2], in_frame % sizes[:, 2])


def _steps(
    videos: int, timestamps: bool, tokens_per_second: float | None, second_per_grid: Tensor | Sequence[float] | None
) -> list[np.float32]:
    """How many positions a temporal grid of each video lasts, a float32 product (Qwen2.5-VL); 1 on the other families."""
    if timestamps or tokens_per_second is None:
        return [np.float32(1)] * videos
    if videos and second_per_grid is None:
        raise InputError(
            "videos of this model are placed by the clock: give `second_per_grid_ts`, the seconds per temporal grid of "
            "each video, as the processor returns it."
        )
    seconds = torch.as_tensor([] if second_per_grid is None else second_per_grid, dtype=torch.float32).flatten()
    if len(seconds) != videos:
        raise InputError(f"`second_per_grid_ts` has one entry per video; got {len(seconds)} for {videos} videos.")
    if not bool((seconds.isfinite() & (seconds >= 0)).all()):
        raise InputError(f"`second_per_grid_ts` holds finite, positive seconds; got {seconds.tolist()}.")
    return [np.float32(tokens_per_second) * np.float32(s) for s in seconds.tolist()]


def mrope_positions(
    types: Tensor,
    mask: Tensor,
    image_grids: Tensor | Sequence[Sequence[int]] | None = None,
    video_grids: Tensor | Sequence[Sequence[int]] | None = None,
    *,
    merge: int = 2,
    timestamps: bool,
    tokens_per_second: float | None = None,
    second_per_grid: Tensor | Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """M-RoPE positions of a batch, and each row's next one.

    - `types`, `mask`: [batch seq]; masked tokens get position 0 and count for nothing, on whichever side they are.
    - `image_grids`, `video_grids`: [items 3], in patches.
    - `timestamps`: videos are placed one temporal grid at a time (Qwen3-VL, Qwen3.5).
    - `tokens_per_second`, `second_per_grid` [videos]: Qwen2.5-VL's clock; their product is float32, and the index times
      the product is truncated once.

    Returns positions [3 batch seq] (time, height, width) and next positions [batch], int64. Text counts up by one on
    all three; a block starts where the text stopped, and what follows starts at the largest position used plus one.
    Source: the rule the published weights were trained with.
    """
    found = token_runs(types, mask, image_grids, video_grids, merge=merge, timestamps=timestamps)
    videos = len(read_grids(video_grids, merge, VIDEO))
    steps = _steps(videos, timestamps, tokens_per_second, second_per_grid)
    placed = torch.zeros(3, *types.shape, dtype=torch.int64)
    following = torch.zeros(types.shape[0], dtype=torch.int64)
    for row, row_runs in enumerate(found):
        if row_runs:
            values, following[row] = _place(row_runs, steps)
            placed[:, row, (mask[row] != 0).cpu()] = torch.from_numpy(values)
    return placed.to(types.device), following.to(types.device)


def _place(found: list[TokenRun], steps: list[np.float32]) -> tuple[np.ndarray, int]:
    """Positions [3 tokens] of one row's unmasked tokens, and the next position."""
    starts, step, cursor = [], [], 0
    for run in found:
        starts.append(cursor)
        step.append(steps[run.item] if run.kind == VIDEO else np.float32(1))
        if run.kind == TEXT:
            cursor += run.length
        else:
            cursor += max(int(np.float32(run.time - 1) * step[-1]), run.height - 1, run.width - 1) + 1
    cell = grid_cells(found)
    text = np.array([run.kind == TEXT for run in found], bool)[cell.run]
    time = (cell.time.astype(np.float32) * np.array(step, np.float32)[cell.run]).astype(np.int64)
    place = np.stack([np.where(text, cell.local, axis) for axis in (time, cell.height, cell.width)])
    return place + np.array(starts, np.int64)[cell.run], cursor
