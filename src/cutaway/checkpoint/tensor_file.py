"""Named tensors in one file, with notes about them: what a technique has learned, kept for the next time.

The file is safetensors; the notes are JSON in its header. What the tensors mean is the caller's business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cutaway.errors import CheckpointError

_NOTES = "notes"


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> Path:
    """Writes tensors by name, and notes of plain JSON data, whole or not at all. Raises `CheckpointError`."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, part, {_NOTES: json.dumps(notes)})
        os.replace(part, path)
    except OSError as error:
        raise CheckpointError(f"The tensors cannot be written to {path}: {error.strerror or error}.") from error
    return path


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Every tensor of a file by name, on the CPU, and its notes: empty for a file of other origin.

    Raises `CheckpointError` for a file that is missing, damaged or no safetensors file.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"There is no file {path}. Name one that was saved before.")
    try:
        with safe_open(path, "pt") as file:
            notes = json.loads((file.metadata() or {}).get(_NOTES, "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no readable safetensors file: {error}.") from error
