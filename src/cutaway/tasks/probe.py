"""Linear probes on a folder of labelled images: what the values tell about them, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.answers import prompt_spec
from cutaway.tasks.experiments import Experiment
from cutaway.tasks.folders import labelled


def probe(
    model: Model,
    question: str,
    folder: str | Path,
    *,
    model_name: str = "nano",
    labels: str | Path | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of probing, and the experiment that repeats it.

    `folder` has a folder of images for each class, or images that the JSON file `labels` names. `parameters` are
    those of `cutaway.analysis.probing.probes.probe`; `store` is a folder for what was read.
    """
    files, known = labelled(folder, labels)
    described = {
        "technique": "probe",
        "model": model_name,
        "prompts": [prompt_spec(question, [file]) for file in files],
        "parameters": {"labels": known, **parameters},
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()
