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


def published_models() -> list[Published]:
    """Every published size, in the order of the families."""
    models = []
    for name in names():
        inspection = inspect(name, depth=0)
        models.append(
            Published(
                name=name,
                family=inspection.family,
                parameters=inspection.parameters,
                bytes_bfloat16=inspection.parameters * 2,
                text_layers=inspection.config.text.num_layers,
                text_width=inspection.config.text.hidden_size,
                vision_layers=inspection.config.vision.num_layers,
                vision_width=inspection.config.vision.hidden_size,
            )
        )
    return models
