"""Figures of a prompt of files: whether one can be written, and what it is drawn on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.plots import figures
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.inputs.kinds import kind_of
from cutaway.inputs.video.patches import open_video


def background(model: Model, files: Sequence[str | Path]) -> Any:
    """What a map is drawn on, as `figure` takes it: the first image's path, else a list of the first video's frames.

    Images come before videos, as in a prompt's maps; None without files.
    """
    if not files:
        return None
    picture = next((file for file in files if kind_of(file) == "image"), None)
    if picture is not None:
        return str(picture)
    settings = model.processor.video_settings
    if settings is None:
        raise InputError("The model's files do not say how videos are prepared, so their frames cannot be drawn.")
    return list(open_video(files[0], settings, name=str(files[0])).frames())[::2]


def still(model: Model, files: Sequence[str | Path]) -> Any:
    """What a map of one frame is drawn on: `background`, or the first of its frames."""
    found = background(model, files)
    return found[0] if isinstance(found, list) else found


def check_files(files: Sequence[Path], figure: Path | None = None) -> None:
    """Raises `InputError` for a file whose folder is not there, or a figure with an ending that is no figure's."""
    if figure is not None:
        figures.writable(figure)
    for path in files:
        if not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
        if path.is_dir():
            raise InputError(f"{path} cannot be written: it is a folder. Name a file.")


def box(text: str) -> tuple[float, float, float, float]:
    """``"left,top,right,bottom"`` in pixels, as it is written on the command line."""
    try:
        left, top, right, bottom = (float(side) for side in text.split(","))
    except ValueError as error:
        raise InputError(f"A box is left,top,right,bottom in pixels, such as 16,16,48,48; got {text!r}.") from error
    return left, top, right, bottom
