"""A sparse autoencoder over a folder of images: where its features fire, and how much it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.answers import prompt_spec
from cutaway.tasks.experiments import Experiment
from cutaway.tasks.folders import images_in


def regions(
    model: Model,
    dictionary: str | Path,
    folder: str | Path,
    question: str,
    *,
    model_name: str = "nano",
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The strongest regions over a folder, and the experiment that repeats them.

    `parameters` are those of `cutaway.analysis.sae.regions.top_regions`; `store` is a folder for what was read.
    """
    prompts = [prompt_spec(question, [file]) for file in images_in(folder)]
    named = {"dictionary": str(Path(dictionary).resolve()), "sources": [prompt["images"][0] for prompt in prompts]}
    described = {
        "technique": "feature_regions",
        "model": model_name,
        "prompts": prompts,
        "parameters": {**named, **parameters},
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()
