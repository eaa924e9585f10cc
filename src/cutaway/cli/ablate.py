"""`cutaway ablate`: parts of the model, or of the prompt, taken away one by one."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.options import Answer, ExperimentFile, Figure, Foil, Json, ModelName, ResumedOut, Words
from cutaway.cli.results import Outputs, run_analysis


def ablate(
    words: Words,
    other: Annotated[
        list[str] | None, typer.Option(help="An image for means and resampling; may be given several times.")
    ] = None,
    model: ModelName = "nano",
    answer: Answer = None,
    foil: Foil = None,
    component: Annotated[
        str, typer.Option(help="head, mlp, attention, block, expert, deepstack, residual, or token.")
    ] = "head",
    how: Annotated[str, typer.Option(help="mean, zero, or resample.")] = "mean",
    where: Annotated[
        str, typer.Option(help='"all", "tokens", "regions 4x4", "frames", "groups", or names: "image,last".')
    ] = "all",
    out: ResumedOut = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Rank the parts of the model, or of the prompt, by how much the answer needs them.

    Each part in turn is replaced by its mean over tokens, by zeros, or by what it is for another image.
    """
    from cutaway.tasks.files import selection

    outputs = Outputs(out, figure, experiment, json)
    request = {"question": words[-1], "files": words[:-1], "others": other or (), "answer": answer, "foil": foil}
    parameters = {"component": component, "how": how, "where": selection(where)}
    outputs.deliver(*run_analysis("Ablating", "ablation", model, **request, parameters=parameters, store=outputs.cells))
