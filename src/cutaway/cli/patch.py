"""`cutaway patch`: activation patching between two images or videos, or two questions."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.options import ExperimentFile, Figure, Json, ModelName, ResumedOut
from cutaway.cli.results import Outputs, run_analysis


def patch(
    clean: Annotated[str, typer.Argument(help="The image or video that has the answer.")],
    corrupt: Annotated[str, typer.Argument(help="The one that has another; it may be the same file.")],
    question: Annotated[str, typer.Argument(help="What is asked about both.")],
    corrupt_question: Annotated[str | None, typer.Option(help="What is asked about the corrupt one instead.")] = None,
    model: ModelName = "nano",
    answer: Annotated[
        str | None, typer.Option(help="The clean answer. Default: what the model says to each prompt.")
    ] = None,
    foil: Annotated[str | None, typer.Option(help="The corrupt answer; then logits are compared.")] = None,
    component: Annotated[
        str, typer.Option(help="residual, attention, mlp, head, deepstack, expert, or block.")
    ] = "residual",
    where: Annotated[
        str, typer.Option(help='"tokens", "regions 4x4", "frames", "groups", or names: "image,question,last".')
    ] = "groups",
    direction: Annotated[
        str, typer.Option(help="denoise: clean values into the corrupt run; noise: the other way.")
    ] = "denoise",
    out: ResumedOut = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Find which positions and parts of the model carry the answer from one image to another.

    Each cell is a run on the corrupt prompt with one value taken from the clean one: an effect of 1 restores the
    answer, 0 changes nothing.
    """
    from cutaway.tasks.files import selection

    outputs = Outputs(out, figure, experiment, json)
    request = {"question": question, "files": (clean, corrupt), "corrupt_question": corrupt_question}
    request |= {"answer": answer, "foil": foil, "store": outputs.cells}
    parameters = {"component": component, "where": selection(where), "direction": direction}
    outputs.deliver(*run_analysis("Patching", "patching", model, **request, parameters=parameters))
