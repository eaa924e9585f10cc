"""Steering on prompts of files: a direction from contrasting images or questions, added while the model answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.tasks.answers import metric_spec, prompt_spec
from cutaway.tasks.experiments import Experiment


def steer(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    model_name: str = "nano",
    toward: Sequence[str | Path] = (),
    away: Sequence[str | Path] = (),
    toward_questions: Sequence[str] = (),
    away_questions: Sequence[str] = (),
    answer: str | None = None,
    foil: str | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of steering, and the experiment that repeats it.

    `toward` and `away` are images or videos that the question is asked about; `toward_questions` and `away_questions`
    are asked about `files`. `parameters` are those of `steer`. Raises `InputError` unless both
    sides have something.
    """
    sides = {}
    for name, media, texts in (("positive", toward, toward_questions), ("negative", away, away_questions)):
        sides[name] = [prompt_spec(question, [file]) for file in media] + [prompt_spec(text, files) for text in texts]
        if not sides[name]:
            raise InputError("A direction leads from something to something: say what to steer toward, and away from.")
    prompt = prompt_spec(question, files)
    asked = [sides["positive"][0], sides["negative"][0]] if answer is None and foil is None else [prompt]
    described = {
        "technique": "steer",
        "model": model_name,
        "prompts": [prompt],
        "metric": metric_spec(model, asked, answer, foil),
        "parameters": {**sides, **parameters},
    }
    experiment = Experiment.of(described)
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()


def steps(text: str) -> str | list[int]:
    """``"prompt"``, ``"decode"``, ``"all"``, or ``"0:3"`` as a range of steps."""
    first, colon, last = text.partition(":")
    if not colon:
        return text
    if not (first.isdigit() and last.isdigit()):
        raise InputError(f"Steps are prompt, decode, all, or a range such as 0:3; got {text!r}.")
    return [int(first), int(last)]
