"""How pictures and clips become tokens: sizes, grids, times, and where the tokens stand in the prompt.

Only a checkpoint's small files are read: config, tokenizer, template and preprocessing settings. No weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cutaway.batch import Inputs
from cutaway.checkpoint.configs import read_config
from cutaway.checkpoint.files import locate
from cutaway.config import Config
from cutaway.errors import InputError
from cutaway.inputs.gridlines import save, with_token_grid
from cutaway.inputs.image import Patches, prepare_picture, read_picture
from cutaway.inputs.kinds import kind_of
from cutaway.inputs.positions import WORD, runs
from cutaway.inputs.prepare import Processor
from cutaway.inputs.video import ClipPatches, open_clip, prepare_clip


@dataclass(frozen=True)
class Medium:
    """A picture or clip: sizes (height, width) in pixels, grid (time, height, width) in patches, counts.

    `frames` are the source numbers of a clip's frames, `seconds` the time of each temporal grid.
    """

    file: str
    kind: str
    original_size: tuple[int, int]
    resized_size: tuple[int, int]
    grid: tuple[int, int, int]
    patches: int
    tokens: int
    frames: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Span:
    """A run of the prompt: what it is, its first token, how many, and its first and last positions on each axis."""

    kind: str
    start: int
    length: int
    time: tuple[int, int]
    height: tuple[int, int]
    width: tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A prompt with its pictures and clips: `length` tokens in all, and the position of the first answered token."""

    media: tuple[Medium, ...]
    runs: tuple[Span, ...]
    length: int
    next_position: int


def tokens(model: str, files: Sequence[str | Path], *, text: str = "", draw: Path | None = None) -> Layout:
    """The layout of a prompt that asks `text` about `files`, as `model` would be given it.

    With `draw` the first picture, or a clip's first frame, is written there with its token grid. Raises `InputError`
    for files that cannot be used, `ConfigError` and `CheckpointError` for the model's.
    """
    folder = locate(model, weights=False)
    config = read_config(folder)
    processor = Processor.from_folder(folder, config)
    kinds = [kind_of(file) for file in files]
    inputs = processor([{"role": "user", "content": content(files, kinds, text)}])
    media = [medium(file, kind, processor, config) for file, kind in zip(files, kinds, strict=True)]
    if draw is not None:
        _, rows, columns = merged(media[0].grid, config)
        save(with_token_grid(first_frame(files[0], kinds[0], processor), rows, columns), draw)
    return Layout(tuple(media), spans(inputs, config), inputs.input_ids.shape[1], int(inputs.next_position[0]))


def content(files: Sequence[str | Path], kinds: Sequence[str], text: str) -> list[dict[str, Any]]:
    """The content items of one user message: the files in order, then the text."""
    names = {"picture": "image", "clip": "video"}
    items = [{"type": names[kind], names[kind]: str(file)} for file, kind in zip(files, kinds, strict=True)]
    return [*items, {"type": "text", "text": text}]


def medium(file: str | Path, kind: str, processor: Processor, config: Config) -> Medium:
    """What a file becomes."""
    found = patches_of(file, kind, processor)
    time, rows, columns = merged(found.grid, config)
    clip = found if isinstance(found, ClipPatches) else None
    return Medium(
        file=str(file),
        kind=kind,
        original_size=found.original_size,
        resized_size=found.resized_size,
        grid=found.grid,
        patches=len(found.rows),
        tokens=time * rows * columns,
        frames=clip.indices if clip else (),
        seconds=clip.seconds if clip else (),
    )


def patches_of(file: str | Path, kind: str, processor: Processor) -> Patches:
    """The file's patches, prepared as the processor does."""
    if kind == "picture" and processor.image_settings is not None:
        return prepare_picture(file, processor.image_settings, name=str(file))
    if kind == "clip" and processor.video_settings is not None:
        return prepare_clip(file, processor.video_settings, name=str(file))
    raise InputError(f"This checkpoint's folder does not say how a {kind} is prepared, so {file} cannot be.")


def first_frame(file: str | Path, kind: str, processor: Processor) -> Tensor:
    """A picture, or a clip's first used frame, upright: uint8 [3 height width]."""
    if kind == "picture" or processor.video_settings is None:
        return read_picture(file, name=str(file))
    return next(iter(open_clip(file, processor.video_settings, name=str(file)).frames()))


def merged(grid: tuple[int, int, int], config: Config) -> tuple[int, int, int]:
    """A grid of patches as a grid of tokens."""
    merge = config.vision.spatial_merge_size
    return grid[0], grid[1] // merge, grid[2] // merge


def spans(inputs: Inputs, config: Config) -> tuple[Span, ...]:
    """The runs of the first row."""
    found = runs(
        inputs.mm_token_type_ids,
        inputs.attention_mask,
        inputs.image_grid_thw,
        inputs.video_grid_thw,
        merge=config.vision.spatial_merge_size,
        timestamps=config.timestamps,
    )[0]
    rows = []
    for run in found:
        places = inputs.position_ids[:, 0, run.start : run.start + run.length]
        ends = [(int(axis.min()), int(axis.max())) for axis in places]
        name = WORD[run.kind] if run.item < 0 else f"{WORD[run.kind]} {run.item}"
        rows.append(
            Span(
                f"{name}, grid {run.frame}" if run.kind == 2 and config.timestamps else name,
                run.start,
                run.length,
                *ends,
            )
        )
    return tuple(rows)
