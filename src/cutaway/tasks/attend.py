"""Attention on a prompt of files: where its tokens look, through one layer, all of them, or the vision encoder's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.tasks.answers import prompt_spec
from cutaway.tasks.experiments import Experiment

WAYS = {"attention": "attention_map", "rollout": "attention_rollout", "vision": "vision_attention"}
"""Names of the command line, and the techniques."""


def attend(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    model_name: str = "nano",
    way: str = "attention",
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of one of `WAYS`, and the experiment that repeats it.

    `parameters` are those of the technique's function; None stands for its default.
    """
    if way not in WAYS:
        raise InputError(f"Attention is read as {', '.join(WAYS)}; got {way!r}.")
    described = {
        "technique": WAYS[way],
        "model": model_name,
        "prompt": prompt_spec(question, files),
        "parameters": {name: value for name, value in parameters.items() if value is not None},
    }
    experiment = Experiment.of(described)
    return experiment.run(model), experiment.to_json()
