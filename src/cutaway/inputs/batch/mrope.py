"""M-RoPE positions: the time, height and width position of every token of a batch.

The functions take token types, mask and grids, and know nothing of ids, pixels or weights. Use `mrope_positions` for
the positions, `token_runs` to find where each image and video lies in the sequence.

A *grid* is (time, height, width) in patches, as the processor reports it. A *merged grid* has height and width divided
by the merge size, one cell per token. A *segment* is a merged grid whose positions are assigned together: an image, a
whole video, or, on the families with time stamps, one temporal grid of a video.
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
    """Consecutive unmasked tokens of one sample that belong together: a stretch of text, or one segment.

    - `kind`: `TEXT`, `IMAGE` or `VIDEO`; `start`: index of the first token among the sample's unmasked ones; `length`.
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
    """Return the entries of a grid array [items 3] as tuples of ints.

    Raises `InputError` for another shape, a side of zero, or one that the merge size does not divide.
    """
    if grids is None:
        return []
    array = torch.as_tensor(grids, device="cpu")
    if array.numel() == 0:
        return []
    if array.is_floating_point() or array.dtype == torch.bool:
        raise InputError(f"A {KIND_NAMES[kind]} grid array has whole numbers of patches; got {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != 3:
        raise InputError(
            f"A {KIND_NAMES[kind]} grid array is [items 3] (time, height, width in patches); got {tuple(array.shape)}."
        )
    entries = [tuple(int(n) for n in entry) for entry in array.tolist()]
    for item, (time, height, width) in enumerate(entries):
        if min(time, height, width) < 1 or height % merge or width % merge:
            raise InputError(
                f"A grid has positive sides, height and width multiples of the merge size {merge}; got "
                f"{(time, height, width)} for {KIND_NAMES[kind]} {item}. Pass the grids as the processor made them."
            )
    return entries


def _segments(grids: list[tuple[int, ...]], merge: int, split: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (item, frame, time, height, width) of every segment, in order; with `split` one per temporal grid."""
    for item, (time, height, width) in enumerate(grids):
        cells = height // merge, width // merge
        if split:
            yield from ((item, frame, 1, *cells) for frame in range(time))
        else:
            yield (item, 0, time, *cells)


def _check_totals(types: Tensor, mask: Tensor, grids_by_kind: dict[int, list[tuple[int, ...]]], merge: int) -> None:
    """Raise `InputError` unless the batch has as many placeholders of each kind as its grids describe tokens."""
    for kind, grids in grids_by_kind.items():
        by_sample = ((types == kind) & (mask != 0)).sum(-1).tolist()
        tokens = [time * height * width // merge**2 for time, height, width in grids]
        if sum(by_sample) != sum(tokens):
            raise InputError(
                f"{KIND_NAMES[kind].capitalize()} placeholders and grids must match: the ids have {sum(by_sample)} "
                f"placeholders (by sample {by_sample}), the grids describe {sum(tokens)} tokens (by "
                f"{KIND_NAMES[kind]} {tokens}). "
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
    """Return the runs of every sample, in order.

    `types` and `mask` are [batch seq]; grids are [items 3], in the order of the batch. Grids are consumed one segment
    at a time, so segments may touch. Raises `InputError` when placeholders and grids do not match.
    """
    if types.shape != mask.shape or types.ndim != 2:
        raise InputError(
            f"Token types and attention mask are both [batch seq]; got {tuple(types.shape)} and {tuple(mask.shape)}."
        )
    grids_by_kind = {IMAGE: read_grids(image_grids, merge, IMAGE), VIDEO: read_grids(video_grids, merge, VIDEO)}
    _check_totals(types, mask, grids_by_kind, merge)
    segments = {kind: _segments(grids, merge, timestamps and kind == VIDEO) for kind, grids in grids_by_kind.items()}
    return [_sample_runs(sample, types[sample][mask[sample] != 0], segments) for sample in range(types.shape[0])]


def _sample_runs(
    sample: int, types: Tensor, segments: dict[int, Iterator[tuple[int, int, int, int, int]]]
) -> list[TokenRun]:
    """Return the runs of one sample from the token types [tokens] of its unmasked tokens."""
    runs: list[TokenRun] = []
    start = 0
    kinds, counts = torch.unique_consecutive(types, return_counts=True)
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        if kind not in KIND_NAMES:
            raise InputError(f"A token type is 0 (text), 1 (image) or 2 (video); got {kind} in sample {sample}.")
        end = start + count
        if kind == TEXT:
            runs.append(TokenRun(TEXT, start, count))
            start = end
        while start < end:
            item, frame, *grid = next(segments[kind])  # the totals match, so a segment is left
            length = grid[0] * grid[1] * grid[2]
            if length > end - start:
                raise InputError(
                    f"{KIND_NAMES[kind].capitalize()} {item}, with a merged grid of {tuple(grid)}, needs {length} "
                    f"placeholders in one run; got {end - start} in sample {sample}. Each {KIND_NAMES[kind]}'s "
                    f"placeholders stand together, "
                    f"in the order of the grids."
                )
            runs.append(TokenRun(kind, start, length, item, frame, *grid))
            start += length
    return runs


@dataclass(frozen=True)
class GridCells:
    """For every unmasked token of a sample, the run it is in and its cell in that run's merged grid: [tokens] each.

    `run` is the index of the run, `local` the token's index in it; `time`, `height` and `width` are grid coordinates.
    """

    run: np.ndarray
    local: np.ndarray
    time: np.ndarray
    height: np.ndarray
    width: np.ndarray


def grid_cells(runs: list[TokenRun]) -> GridCells:
    """Return the cells of one sample's runs; a text token has the coordinates (0, 0, 0)."""
    lengths = np.array([run.length for run in runs], np.int64)
    run = np.repeat(np.arange(len(runs)), lengths)  # [tokens]
    sizes = np.array([(r.start, r.height, r.width) for r in runs], np.int64).reshape(-1, 3)[run]  # [tokens 3]
    local = np.arange(lengths.sum()) - sizes[:, 0]
    in_grid = np.array([r.kind != TEXT for r in runs], bool)[run]
    in_frame = local % (sizes[:, 1] * sizes[:, 2])
    time = np.where(in_grid, local // (sizes[:, 1] * sizes[:, 2]), 0)
    return GridCells(run, local, time, in_frame // sizes[:, 2], in_frame % sizes[:, 2])


def _positions_per_grid(
    videos: int, timestamps: bool, tokens_per_second: float | None, second_per_grid: Tensor | Sequence[float] | None
) -> list[np.float32]:
    """Return how many time positions a temporal grid of each video takes: 1, or on Qwen2.5-VL a float32 product."""
    if timestamps or tokens_per_second is None:
        return [np.float32(1)] * videos
    if videos and second_per_grid is None:
        raise InputError(
            "Time positions of this model's videos are in seconds. Give `second_per_grid_ts`, the seconds per temporal "
            "grid of each video, as the processor returns it."
        )
    seconds = torch.as_tensor([] if second_per_grid is None else second_per_grid, dtype=torch.float32).flatten()
    if len(seconds) != videos:
        raise InputError(f"`second_per_grid_ts` has one entry per video; got {len(seconds)} for {videos} videos.")
    if not bool((seconds.isfinite() & (seconds >= 0)).all()):
        raise InputError(f"`second_per_grid_ts` holds finite seconds from 0; got {seconds.tolist()}.")
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
    """Return the M-RoPE positions of a batch [3 batch seq] (time, height, width) and the next positions [batch], int64.

    - `types`, `mask`: [batch seq]; masked tokens, on whichever side, get position 0 and count for nothing.
    - `image_grids`, `video_grids`: [items 3], in patches.
    - `timestamps`: every temporal grid of a video is a segment of its own (Qwen3-VL, Qwen3.5).
    - `tokens_per_second`, `second_per_grid` [videos]: time in seconds, on Qwen2.5-VL. Their product is float32, and the
      index of a temporal grid times the product is truncated once.

    Text counts up by one on all three axes. A segment starts where the text stopped, and what follows starts at the
    largest position used plus one. Source: transformers 4.57, the rule the published weights were trained with.
    Raises `InputError` when placeholders, grids and seconds do not match.
    """
    runs_by_sample = token_runs(types, mask, image_grids, video_grids, merge=merge, timestamps=timestamps)
    videos = len(read_grids(video_grids, merge, VIDEO))
    steps = _positions_per_grid(videos, timestamps, tokens_per_second, second_per_grid)
    positions = torch.zeros(3, *types.shape, dtype=torch.int64)  # [3 batch seq]
    next_positions = torch.zeros(types.shape[0], dtype=torch.int64)
    for sample, runs in enumerate(runs_by_sample):
        if runs:
            values, next_positions[sample] = _sample_positions(runs, steps)
            positions[:, sample, (mask[sample] != 0).cpu()] = torch.from_numpy(values)
    return positions.to(types.device), next_positions.to(types.device)


def _sample_positions(runs: list[TokenRun], steps: list[np.float32]) -> tuple[np.ndarray, int]:
    """Return the positions [3 tokens] of one sample's unmasked tokens, and the next position."""
    starts, step, cursor = [], [], 0
    for run in runs:
        starts.append(cursor)
        step.append(steps[run.item] if run.kind == VIDEO else np.float32(1))
        if run.kind == TEXT:
            cursor += run.length
        else:
            cursor += max(int(np.float32(run.time - 1) * step[-1]), run.height - 1, run.width - 1) + 1
    cell = grid_cells(runs)
    text = np.array([run.kind == TEXT for run in runs], bool)[cell.run]
    time = (cell.time.astype(np.float32) * np.array(step, np.float32)[cell.run]).astype(np.int64)
    offsets = np.stack([np.where(text, cell.local, axis) for axis in (time, cell.height, cell.width)])  # [3 tokens]
    return offsets + np.array(starts, np.int64)[cell.run], cursor
