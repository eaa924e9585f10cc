"""`cutaway pathways`: by which routes the image reaches the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutaway.cli.options import ExperimentFile, Figure, Json, ModelName, ResumedOut
from cutaway.cli.results import Outputs, run_analysis


def pathways(
    words: Annotated[list[str], typer.Argument(metavar="IMAGE_OR_VIDEO... QUESTION", help="Files, then the question.")],
    other: Annotated[
        str | None, typer.Option(help="An image whose values a closed route carries instead of nothing.")
    ] = None,
    model: ModelName = "nano",
    answer: Annotated[str | None, typer.Option(help="The answer. Default: what the model says first.")] = None,
    how: Annotated[str | None, typer.Option(help="What a closed route carries: zero, mean, or swap.")] = None,
    knockout: Annotated[
        bool, typer.Option("--knockout", help="Cut attention between groups of tokens instead, by layers.")
    ] = False,
    out: ResumedOut = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Measure by which routes the image reaches the answer.

    Every subset of the routes (features, DeepStack terms, state writes) is closed in turn; a Shapley value says what
    each route is worth. With --knockout: which tokens must see which others, and in which layers.
    """
    if knockout and (other is not None or how is not None):
        raise typer.BadParameter("--other and --how are about routes; --knockout takes neither.")
    outputs = Outputs(out, figure, experiment, json)
    request: dict[str, Any] = {"question": words[-1], "files": words[:-1], "other": other, "answer": answer}
    parameters = {} if knockout else {"how": how or ("zero" if other is None else "swap")}
    request |= {"parameters": parameters, "store": outputs.cells}
    outputs.deliver(*run_analysis("Closing routes", "knockout" if knockout else "pathways", model, **request))
