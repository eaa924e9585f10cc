"""Files of the command line: folders of images, labels, what a figure is drawn on, and words that stand for numbers.

Use it to turn what a person typed into what an analysis takes. It knows no technique.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.plots import figures
from cutaway.api import Model
from cutaway.errors import CutawayError, InputError
from cutaway.inputs.media import kind_of
from cutaway.inputs.video.patches import open_video


def images_in(folder: str | Path) -> list[Path]:
    """Return the images of a folder, sorted by name. Raises `InputError` where there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"A folder of images is needed; got {folder}, which is not a folder.")
    images = [file for file in sorted(folder.iterdir()) if file.is_file() and is_image(file)]
    if not images:
        raise InputError(f"A folder of images is needed; got {folder}, in which no file is an image.")
    return images


def labelled(folder: str | Path, labels: str | Path | None = None) -> tuple[list[Path], list[Any]]:
    """Return images and their labels: one subfolder for each class, or a JSON file {name of an image: label}.

    Raises `InputError` for an image without a label.
    """
    folder = Path(folder)
    if labels is None:
        if not folder.is_dir():
            raise InputError(f"A folder with one subfolder of images for each class is needed; got {folder}.")
        classes = [child for child in sorted(folder.iterdir()) if child.is_dir()]
        if len(classes) < 2:
            raise InputError(
                f"A probe tells at least two classes apart, one subfolder of images for each; got {len(classes)} in "
                f"{folder}. Add subfolders, or give the labels as a JSON file {{name: label}}."
            )
        pairs = [(file, child.name) for child in classes for file in images_in(child)]
        return [file for file, _ in pairs], [label for _, label in pairs]
    try:
        known = json.loads(Path(labels).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"Labels are a JSON file {{name of an image: label}}; got {labels}: {error}.") from error
    images = images_in(folder)
    missing = [file.name for file in images if not isinstance(known, dict) or file.name not in known]
    if missing:
        raise InputError(
            f"Labels are JSON {{name of an image: label}} with one entry for each image; {labels} lacks "
            f"{', '.join(missing[:5])}."
        )
    return images, [known[file.name] for file in images]


def is_image(file: Path) -> bool:
    """Return whether a file is an image, by its content or name."""
    try:
        return kind_of(file) == "image"
    except CutawayError:
        return False


def background(model: Model, files: Sequence[str | Path]) -> Any:
    """Return what a map is drawn on: the first image's path, else a list of the first video's frames.

    Images come before videos, as in a prompt's maps; None without files.
    """
    if not files:
        return None
    image = next((file for file in files if kind_of(file) == "image"), None)
    if image is not None:
        return str(image)
    settings = model.processor.video_settings
    if settings is None:
        raise InputError("The model's files do not say how videos are prepared, so their frames cannot be drawn.")
    return list(open_video(files[0], settings, name=str(files[0])).frames())[::2]


def still(model: Model, files: Sequence[str | Path]) -> Any:
    """Return what a map of one frame is drawn on: `background`, or the first of its frames."""
    drawn_on = background(model, files)
    return drawn_on[0] if isinstance(drawn_on, list) else drawn_on


def check_writable(files: Sequence[Path], figure: Path | None = None) -> None:
    """Raise `InputError` for a file whose folder does not exist, or a figure of a format that cannot be written."""
    if figure is not None:
        figures.writable(figure)
    for path in files:
        if not path.parent.is_dir():
            raise InputError(f"A file is written into a folder that exists; there is no folder {path.parent}. Make it.")
        if path.is_dir():
            raise InputError(f"A file is written; got {path}, which is a folder. Name a file in it.")


def box(text: str) -> tuple[float, float, float, float]:
    """Parse ``"left,top,right,bottom"`` in pixels."""
    try:
        left, top, right, bottom = (float(side) for side in text.split(","))
    except ValueError as error:
        raise InputError(f"A box is left,top,right,bottom in pixels, such as 16,16,48,48; got {text!r}.") from error
    return left, top, right, bottom


def selection(text: str) -> str | Sequence[str]:
    """Parse ``--where``: a division of the prompt (tokens, groups, frames, regions 4x4), or names with commas."""
    divisions = text in ("tokens", "groups", "frames") or text.startswith("regions ")
    return text if divisions else [name.strip() for name in text.split(",")]


def steps(text: str) -> str | list[int]:
    """Parse ``--when``: ``"prompt"``, ``"decode"``, ``"all"``, or ``"0:3"`` as a range of steps."""
    first, colon, last = text.partition(":")
    if not colon:
        return text
    if not (first.isdigit() and last.isdigit()):
        raise InputError(f"Steps are prompt, decode, all, or a range such as 0:3; got {text!r}.")
    return [int(first), int(last)]
