"""Image pathways and attention knock-outs on a prompt of files: by which ways the image reaches the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.answers import prompt_spec, spoken
from cutaway.tasks.experiments import Experiment


def pathways(
    model: Model,
    question: str,
    files: Sequence[str | Path],
    *,
    model_name: str = "nano",
    other: str | Path | None = None,
    answer: str | None = None,
    knockout: bool = False,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result, and the experiment that repeats it: the probability of the answer by open routes, or by cuts.

    `other`: an image or video that the same question is asked about, for ``how="swap"``. `answer`: default what the
    model says. `parameters` are those of the technique's function.
    """
    prompt = prompt_spec(question, files)
    if other is not None:
        parameters["other"] = prompt_spec(question, [other])
    described = {
        "technique": "knockout" if knockout else "pathways",
        "model": model_name,
        "prompt": prompt,
        "metric": {"name": "probability", "answer": spoken(model, prompt) if answer is None else answer},
        "parameters": parameters,
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()
