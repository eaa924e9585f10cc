"""The published sizes as a list: names, families, parameters, memory of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.checkpoint.published_sizes import names
from cutaway.tasks.inspect import inspect


@dataclass(frozen=True)
class Published:
    """A published size: parameters with a tied head counted once, bytes of the weights in bfloat16."""

    name: str
    family: str
    parameters: int
    bytes_bfloat16: int
    text_layers: int
    text_width: int
    vision_layers: int
    vision_width: int


def published() -> list[Published]:
    """Every published size, in the order of the families."""
    rows = []
    for name in names():
        found = inspect(name, depth=0)
        rows.append(
            Published(
                name=name,
                family=found.family,
                parameters=found.parameters,
                bytes_bfloat16=found.parameters * 2,
                text_layers=found.config.text.num_layers,
                text_width=found.config.text.hidden_size,
                vision_layers=found.config.vision.num_layers,
                vision_width=found.config.vision.hidden_size,
            )
        )
    return rows
