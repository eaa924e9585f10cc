"""Which image and which video goes to which row: one, a flat list, or a list per row, and those inside messages.

It knows how callers nest media. It opens nothing and counts no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.text.messages import FROM_ARGUMENTS

_IMAGE_FILES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


def arrange_images(images: Any) -> tuple[list[Any], list[int] | None]:
    """Images in order, and how many each row has when they came as one list per row (None for a flat list)."""
    if images is None:
        return [], None
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:  # a stack of equal-sized images
        return list(images), None
    if not isinstance(images, list | tuple):
        return [images], None
    if any(isinstance(entry, list | tuple) for entry in images):
        return _flattened(images, "images")
    return list(images), None


def arrange_videos(videos: Any) -> tuple[list[Any], list[int] | None]:
    """Videos in order, and how many each row has when nested. A list of images is one video."""
    if videos is None:
        return [], None
    if isinstance(videos, np.ndarray | Tensor) and videos.ndim == 5:
        return list(videos), None
    if not isinstance(videos, list | tuple) or _is_frames(videos):
        return [videos], None
    if any(isinstance(entry, list | tuple) and not _is_frames(entry) for entry in videos):
        rows = [[row] if isinstance(row, list | tuple) and _is_frames(row) else row for row in videos]
        return _flattened(rows, "videos")
    return list(videos), None


def _flattened(rows: Sequence[Any], name: str) -> tuple[list[Any], list[int]]:
    for index, row in enumerate(rows):
        if row is not None and not isinstance(row, list | tuple):
            raise InputError(
                f"`{name}` is a flat list or one list per row; entry {index} is a {type(row).__name__} among lists. "
                f"Put it into a list of its own, or use an empty list for a row without any."
            )
    filled = [[] if row is None else list(row) for row in rows]
    return [entry for row in filled for entry in row], [len(row) for row in filled]


def _is_frames(entries: Sequence[Any]) -> bool:
    return bool(entries) and all(_is_frame(entry) for entry in entries)


def _is_frame(entry: Any) -> bool:
    if isinstance(entry, np.ndarray | Tensor):
        return entry.ndim <= 3
    if isinstance(entry, str | Path):
        return str(entry).lower().endswith(_IMAGE_FILES)
    return isinstance(entry, Image.Image)


def arrange_metadata(metadata: Any, videos: int) -> list[Any]:
    """One metadata entry (or None) per video; `InputError` when there are more or fewer entries than videos."""
    if metadata is None:
        return [None] * videos
    entries = list(metadata) if isinstance(metadata, list | tuple) else [metadata]
    if any(isinstance(entry, list | tuple) for entry in entries):
        entries = [inner for entry in entries for inner in (entry if isinstance(entry, list | tuple) else [entry])]
    if len(entries) != videos:
        raise InputError(
            f"`video_metadata` has one entry per video; got {len(entries)} for {videos}. Put None where a video has none."
        )
    return entries


def fill(
    word: str,
    wanted: Sequence[int],
    inside: Sequence[list[Any] | None],
    given: tuple[list[Any], list[int] | None],
) -> list[Any]:
    """All images (or videos) of a batch in order.

    - `wanted`: placeholders per row of the prompts; `inside`: what each row's messages carry (None: a string prompt).
    - `given`: the call's `images=` (or `videos=`), arranged.

    `InputError` with both numbers, row by row, when they do not match.
    """
    by_sample = [
        count if media is None else sum(entry is FROM_ARGUMENTS for entry in media)
        for count, media in zip(wanted, inside, strict=True)
    ]
    for row, (count, media) in enumerate(zip(wanted, inside, strict=True)):
        if media is not None and len(media) != count:
            raise InputError(
                f"the chat template turned the {len(media)} {word}s in the messages of row {row} into {count} "
                f"placeholders. Move them to a turn that the template shows, usually a user's."
            )
    media, by_row = given
    if (by_row is not None and by_row != by_sample) or len(media) != sum(by_sample):
        came = f"{len(media)} (by row {by_row})" if by_row is not None else f"{len(media)}"
        raise InputError(
            f"placeholders and {word}s must match: the text has {sum(by_sample)} {word} placeholders to fill (by row "
            f"{by_sample}), {came} were given. Give one {word} per placeholder, or one placeholder per {word} "
            f"(`processor.prompt(text, images=…, videos=…)` writes them)."
        )
    rest = iter(media)
    filled: list[Any] = []
    for count, row_media in zip(wanted, inside, strict=True):
        row_media = [FROM_ARGUMENTS] * count if row_media is None else row_media
        filled += [next(rest) if entry is FROM_ARGUMENTS else entry for entry in row_media]
    return filled


def is_batch(text: Any) -> bool:
    """Whether `text` is a batch: a list of prompts, or of lists of messages."""
    return isinstance(text, list | tuple) and not (bool(text) and isinstance(text[0], Mapping))
