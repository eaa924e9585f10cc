"""Attribution on a prompt of files: what the answer's logit is made of, and which patches it hangs on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.tasks.answers import metric_spec, prompt_spec, rivals
from cutaway.tasks.experiments import Experiment

METHODS = ("direct", "gradient", "integrated")


def attribute(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    model_name: str = "nano",
    method: str = "direct",
    answer: str | int | None = None,
    foil: str | int | None = None,
    on_progress: OnProgress | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """The result of one of `METHODS`, and the experiment that repeats it.

    Without an `answer` the model's likeliest first token is compared with the likeliest other word.
    `parameters` are those of the technique's function; None stands for its default.
    """
    if method not in METHODS:
        raise InputError(f"`method` is {', '.join(METHODS)}; got {method!r}.")
    prompt = prompt_spec(question, files)
    if answer is None and foil is None:
        answer, foil = rivals(model, prompt)
    given = {name: value for name, value in parameters.items() if value is not None}
    described: dict[str, Any] = {"technique": "input_attribution", "model": model_name, "prompt": prompt}
    if method == "direct":
        words = {"answer": answer, "foil": foil}
        if answer is None:
            raise InputError("`foil` is what the answer is compared with: say the answer too.")
        given |= {name: word for name, word in words.items() if word is not None}
        described["technique"] = "direct_logit_attribution"
    else:
        given["method"] = method
        described["metric"] = metric_spec(model, [prompt], answer, foil)  # type: ignore[arg-type]
    experiment = Experiment.of({**described, "parameters": given})
    return experiment.run(model, on_progress=on_progress), experiment.to_json()
