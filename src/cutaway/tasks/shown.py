"""What figures of a prompt of files are drawn on: the first picture, or a frame for each temporal grid of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.errors import InputError
from cutaway.inputs.kinds import kind_of
from cutaway.inputs.video import open_clip
from cutaway.subject import Subject


def background(subject: Subject, files: Sequence[str | Path]) -> Any:
    """The first file as `figure` takes it: a picture's path, or a list of a clip's frames; None without files."""
    if not files:
        return None
    if kind_of(files[0]) == "picture":
        return str(files[0])
    settings = subject.processor.video_settings
    if settings is None:
        raise InputError("The model's files do not say how clips are prepared, so their frames cannot be drawn.")
    return list(open_clip(files[0], settings, name=str(files[0])).frames())[::2]


def box(text: str) -> tuple[float, float, float, float]:
    """``"left,top,right,bottom"`` in pixels, as it is written on the command line."""
    try:
        left, top, right, bottom = (float(side) for side in text.split(","))
    except ValueError as error:
        raise InputError(f"A box is left,top,right,bottom in pixels, such as 16,16,48,48; got {text!r}.") from error
    return left, top, right, bottom
