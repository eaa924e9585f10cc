"""`cutaway attribute`: what the answer's logit is made of, and which patches it hangs on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutaway.cli.options import Answer, ExperimentFile, Figure, Json, ModelName, Out, Words
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
    foil: Annotated[str | None, typer.Option(help="The answer that it is compared with.")] = None,
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
    from cutaway.tasks.attribute import attribute as attributed
    from cutaway.tasks.shown import background

    direct = method == "direct"
    if direct and (baseline is not None or steps is not None):
        raise typer.BadParameter("--baseline and --steps are of the methods gradient and integrated: say --method.")
    outputs = Outputs(out, figure, experiment, json)
    loaded_model = loaded(model)
    given: dict[str, Any] = {"model_name": model, "method": method, "answer": answer, "foil": foil}
    with counting("Steps") as on_progress:
        if not direct:
            given |= {"baseline": baseline, "steps": steps, "on_progress": on_progress}
        result, described = attributed(loaded_model, words[-1], words[:-1], **given)
    drawn: dict[str, Any] = {"kind": show} if direct else {}
    if figure is not None and (not direct or show == "image"):
        drawn["picture"] = background(loaded_model, words[:-1])
    outputs.deliver(result, described, **drawn)
