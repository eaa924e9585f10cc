"""Ablation on a prompt of files: which parts of the model, or of the prompt, the answer needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.answers import metric_spec, prompt_spec
from cutaway.tasks.experiments import Experiment


def ablate(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    model_name: str = "nano",
    others: Sequence[str | Path] = (),
    answer: str | None = None,
    foil: str | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of ablating, and the experiment that repeats it.

    `others`: images or videos that the same question is asked about, for means and resampling. `parameters` are those
    of `cutaway.analysis.intervention.ablation.ablate`.
    """
    prompt = prompt_spec(question, files)
    if others:
        parameters["others"] = [prompt_spec(question, [file]) for file in others]
    described = {
        "technique": "ablation",
        "model": model_name,
        "prompts": [prompt],
        "metric": metric_spec(model, [prompt], answer, foil),
        "parameters": parameters,
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()
