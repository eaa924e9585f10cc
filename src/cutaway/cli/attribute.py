"""`cutaway attribute`: what the answer's logit is made of, and which patches it hangs on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutaway.cli.options import Answer, ExperimentFile, Figure, Foil, Json, ModelName, Out, Words
from cutaway.cli.results import Outputs, counting, loaded

Method = Annotated[str, typer.Option(help="direct: the logit as a sum of parts; gradient or integrated: patches.")]
Baseline = Annotated[
    str | None, typer.Option(help="grey, black or white: what patches are compared with. Default grey.")
]
Show = Annotated[str, typer.Option(help="Figure of the direct method: terms, heads, or image (what heads read).")]


def attribute(
    words: Words,
    model: ModelName = "nano",
    method: Method = "direct",
    answer: Answer = None,
    foil: Foil = None,
    baseline: Baseline = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of integrated gradients. Default 32.")] = None,
    show: Show = "terms",
    out: Out = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Take the answer apart: into embeddings, heads, MLPs and experts, or into patches of the image.

    The direct method's terms add up to the logit, with the final norm frozen. Integrated gradients add up to the rise
    over the baseline image.
    """
    from cutaway.tasks.analyses import analyse
    from cutaway.tasks.files import background

    if method not in ("direct", "gradient", "integrated"):
        raise typer.BadParameter(f"--method is direct, gradient or integrated; got {method!r}.")
    direct = method == "direct"
    if direct and (baseline is not None or steps is not None):
        raise typer.BadParameter("--baseline and --steps belong to the methods gradient and integrated: give --method.")
    outputs = Outputs(out, figure, experiment, json)
    loaded_model = loaded(model)
    request: dict[str, Any] = {"question": words[-1], "files": words[:-1], "answer": answer, "foil": foil}
    parameters = {} if direct else {"method": method, "baseline": baseline, "steps": steps}
    technique = "direct_logit_attribution" if direct else "input_attribution"
    with counting("Steps") as on_progress:
        request |= {"model_name": model, "parameters": parameters, "on_progress": on_progress}
        result, described = analyse(loaded_model, technique, **request)
    drawn: dict[str, Any] = {"kind": show} if direct else {}
    if figure is not None and (not direct or show == "image"):
        drawn["background"] = background(loaded_model, words[:-1])
    outputs.deliver(result, described, **drawn)
