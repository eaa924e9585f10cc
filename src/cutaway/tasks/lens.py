"""The lens on a prompt of files, the tuned lens trained on a folder of images, and the words nearest to features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.analysis.common.prompts import from_spec
from cutaway.analysis.lens.tuned_lens import TunedLens, train_tuned_lens
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.tasks.answers import prompt_spec
from cutaway.tasks.experiments import Experiment
from cutaway.tasks.folders import images_in


def lens(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    model_name: str = "nano",
    nearest: bool = False,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of the lens, or with `nearest` of the nearest words, and the experiment that repeats it.

    `parameters` are those of `lens` or of `nearest_tokens`.
    """
    described = {
        "technique": "nearest_tokens" if nearest else "logit_lens",
        "model": model_name,
        "prompt": prompt_spec(question, files),
        "parameters": parameters,
    }
    experiment = Experiment.of(described)
    return experiment.run(model), experiment.to_json()


def train(
    model: Model, question: str, folder: str | Path, *, on_progress: OnProgress | None = None, **options: Any
) -> TunedLens:
    """A tuned lens trained on the question about every image of a folder; `options` as `tuned_lens.train` has them.

    Raises `InputError` for a folder without images.
    """
    pictures = images_in(folder)
    if len(pictures) < 2:
        raise InputError(f"A lens is trained on at least two images; {folder} has {len(pictures)}.")
    prompts = [from_spec(model, prompt_spec(question, [picture])) for picture in pictures]
    return train_tuned_lens(model, prompts, on_progress=on_progress, **options)
