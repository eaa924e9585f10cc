"""Folders of images, as techniques that learn from many of them take them. It knows files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cutaway.errors import CutawayError, InputError
from cutaway.inputs.kinds import kind_of


def images_in(folder: str | Path) -> list[Path]:
    """The images of a folder by name. Raises `InputError` where there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"A folder of images is wanted; {folder} is none.")
    found = [file for file in sorted(folder.iterdir()) if file.is_file() and is_image(file)]
    if not found:
        raise InputError(f"{folder} has no images in it.")
    return found


def labelled(folder: str | Path, labels: str | Path | None = None) -> tuple[list[Path], list[Any]]:
    """Images and their labels: of a folder with a folder for each class, or by a JSON file {name: label}.

    Raises `InputError` for an image without a label.
    """
    folder = Path(folder)
    if labels is None:
        if not folder.is_dir():
            raise InputError(f"A folder with a folder of images for each class is wanted; {folder} is none.")
        classes = [place for place in sorted(folder.iterdir()) if place.is_dir()]
        if len(classes) < 2:
            raise InputError(
                f"{folder} has {len(classes)} folders in it; a probe tells classes apart, a folder of images for "
                f"each. Or say the labels in a JSON file {{name: label}}."
            )
        pairs = [(file, place.name) for place in classes for file in images_in(place)]
        return [file for file, _ in pairs], [label for _, label in pairs]
    try:
        known = json.loads(Path(labels).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{labels} cannot be read as labels: {error}.") from error
    found = images_in(folder)
    if not isinstance(known, dict) or any(file.name not in known for file in found):
        lost = [file.name for file in found if not isinstance(known, dict) or file.name not in known]
        raise InputError(f"{labels} is JSON {{name of a picture: label}}; it lacks {', '.join(lost[:5])}.")
    return found, [known[file.name] for file in found]


def is_image(file: Path) -> bool:
    """Whether a file is an image by its content or name."""
    try:
        return kind_of(file) == "image"
    except CutawayError:
        return False
