"""Activation patching between two prompts of files: which places and parts of the model carry the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.answers import metric_spec, prompt_spec
from cutaway.tasks.experiments import Experiment


def patch(
    model: Model,
    clean: str | Path,
    corrupt: str | Path,
    question: str,
    *,
    model_name: str = "nano",
    corrupt_question: str | None = None,
    answer: str | None = None,
    foil: str | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of patching, and the experiment that repeats it.

    `clean`, `corrupt`: an image or video each; `answer`, `foil`: as `metric_spec` takes them. `parameters` are those
    of `cutaway.analysis.intervention.patching.patch`.
    """
    first = prompt_spec(question, [clean])
    second = prompt_spec(corrupt_question or question, [corrupt])
    described = {
        "technique": "patching",
        "model": model_name,
        "pairs": [{"clean": first, "corrupt": second}],
        "metric": metric_spec(model, [first, second], answer, foil),
        "parameters": parameters,
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()


def places(text: str) -> str | Sequence[str]:
    """Places as they are written on the command line: a way to divide the prompt, or names with commas between."""
    ways = text in ("tokens", "groups", "frames") or text.startswith("regions ")
    return text if ways else [name.strip() for name in text.split(",")]
