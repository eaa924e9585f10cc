"""How images and videos become tokens: sizes, grids, times, and where the tokens lie in the prompt.

Only a checkpoint's small files are read: config, tokenizer, template and preprocessing settings. No weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.batch import VIDEO, Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.files import locate
from cutaway.config import Config, VisionConfig
from cutaway.inputs.batch.mrope import KIND_NAMES, token_runs
from cutaway.inputs.geometry.geometry import Geometry
from cutaway.inputs.geometry.layout import MediaItem
from cutaway.inputs.geometry.overlay import draw_numbered_cells, save_image
from cutaway.inputs.image.open import read_image
from cutaway.inputs.media import kind_of
from cutaway.inputs.processor import Processor
from cutaway.inputs.video.patches import open_video


@dataclass(frozen=True)
class Medium:
    """An image or video: sizes (height, width) in pixels, grid (time, height, width) in patches, counts.

    `seconds` is the time of each temporal grid of a video.
    """

    file: str
    kind: str
    original_size: tuple[int, int]
    resized_size: tuple[int, int]
    grid: tuple[int, int, int]
    patches: int
    tokens: int
    seconds: tuple[float, ...]


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
class PromptLayout:
    """A prompt with its images and videos: `length` tokens in all, and the position of the first answered token."""

    media: tuple[Medium, ...]
    runs: tuple[Span, ...]
    length: int
    next_position: int


def tokens(model: str, files: Sequence[str | Path], *, text: str = "", draw: Path | None = None) -> PromptLayout:
    """Return the layout of a prompt that asks `text` about `files`, as `model` would be given it.

    With `draw` the first image, or a video's first frame, is written there with its token grid. Raises `InputError`
    for files that cannot be used, `ConfigError` and `CheckpointError` for the model's.
    """
    folder = locate(model, weights=False)
    config = read_config(folder)
    processor = Processor.from_folder(folder, config)
    kinds = [kind_of(file) for file in files]
    inputs = processor([{"role": "user", "content": content(files, kinds, text)}])
    geometry: Geometry = inputs.geometry
    items = {"image": iter(geometry.images), "video": iter(geometry.videos)}
    media = [medium(file, kind, next(items[kind]), config.vision) for file, kind in zip(files, kinds, strict=True)]
    if draw is not None:
        save_image(token_grid(files[0], kinds[0], geometry, processor), draw)
    return PromptLayout(tuple(media), spans(inputs, config), inputs.input_ids.shape[1], int(inputs.next_position[0]))


def content(files: Sequence[str | Path], kinds: Sequence[str], text: str) -> list[dict[str, Any]]:
    """The content items of one user message: the files in order, then the text."""
    names = {"image": "image", "video": "video"}
    items = [{"type": names[kind], names[kind]: str(file)} for file, kind in zip(files, kinds, strict=True)]
    return [*items, {"type": "text", "text": text}]


def medium(file: str | Path, kind: str, item: MediaItem, vision: VisionConfig) -> Medium:
    """Describe what a file became."""
    time, rows, columns = item.grid
    return Medium(
        file=str(file),
        kind=kind,
        original_size=item.size,
        resized_size=(rows * vision.patch_size, columns * vision.patch_size),
        grid=item.grid,
        patches=time * rows * columns,
        tokens=time * rows * columns // vision.spatial_merge_size**2,
        seconds=item.seconds,
    )


def token_grid(file: str | Path, kind: str, geometry: Geometry, processor: Processor) -> Any:
    """The first image, or a video's first frame, with its token grid, cells numbered in the tokens' order."""
    if processor.video_settings is None or kind == "image":
        pixels = read_image(file, name=str(file))
    else:
        pixels = next(iter(open_video(file, processor.video_settings, name=str(file)).frames()))
    table = geometry.tokens
    named = "image" if kind == "image" else "video"
    return draw_numbered_cells(pixels, table.box[(table.kind == named) & (table.item == 0) & (table.frame == 0)])


def spans(inputs: Inputs, config: Config) -> tuple[Span, ...]:
    """Return the runs of the first sample."""
    runs = token_runs(
        inputs.mm_token_type_ids,
        inputs.attention_mask,
        inputs.image_grid_thw,
        inputs.video_grid_thw,
        merge=config.vision.spatial_merge_size,
        timestamps=config.timestamps,
    )[0]
    spans = []
    for run in runs:
        ids = inputs.position_ids[:, 0, run.start : run.start + run.length]
        ends = [(int(axis.min()), int(axis.max())) for axis in ids]
        name = KIND_NAMES[run.kind] if run.item < 0 else f"{KIND_NAMES[run.kind]} {run.item}"
        stamped = f"{name}, grid {run.frame}" if run.kind == VIDEO and config.timestamps else name
        spans.append(Span(stamped, run.start, run.length, *ends))
    return tuple(spans)
