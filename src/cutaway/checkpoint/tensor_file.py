"""Named tensors in one file, with notes about them: what a technique has learned, kept for the next time.

The file is safetensors; the notes are JSON in its header. What the tensors mean is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cutaway.errors import CheckpointError
from cutaway.storage import check_regular, parse_json, replacing

_NOTES = "notes"


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> Path:
    """Writes tensors by name, and notes of plain JSON data, whole or not at all. Raises `InputError`."""
    path = Path(path)
    with replacing(path) as (part,):
        write_tensors(part, tensors, {_NOTES: json.dumps(notes)})
    return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a safetensors file as it is, for a caller that puts it in its place. Raises `OSError` for a full disk."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, dict(header))
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Every tensor of a file by name, on the CPU, and its notes: empty for a file of other origin.

    Raises `CheckpointError` for a file that is missing, damaged or no safetensors file.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"There is no file {path}. Name one that was saved before.")
    check_regular(path)
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_NOTES, "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no readable safetensors file: {error}.") from error
    notes = parse_json(text, f"The notes of {path}")
    if not isinstance(notes, dict):
        raise CheckpointError(f"The notes of {path} must be a mapping; got a {type(notes).__name__}. Save it again.")
    return tensors, notes
