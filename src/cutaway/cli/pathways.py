"""`cutaway pathways`: by which routes the picture reaches the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.results import counting, deliver, finished_cells, save_experiment, writable
from cutaway.cli.show import loading


def pathways(
    words: Annotated[
        list[str], typer.Argument(metavar="PICTURE_OR_CLIP... QUESTION", help="Files, then the question.")
    ],
    other: Annotated[
        str | None, typer.Option(help="A picture whose values a closed route carries instead of nothing.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    answer: Annotated[str | None, typer.Option(help="The answer. Default: what the model says first.")] = None,
    how: Annotated[str | None, typer.Option(help="What a closed route carries: zero, mean, or swap.")] = None,
    knockout: Annotated[
        bool, typer.Option("--knockout", help="Cut attention between groups of tokens instead, by blocks.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure by which routes the picture reaches the answer.

    Every subset of the routes (features, DeepStack terms, state writes) is closed in turn; a Shapley value says what
    each route is worth. With --knockout: which tokens must see which others, and in which blocks.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.pathways import pathways as measured

    if knockout and (other is not None or how is not None):
        raise typer.BadParameter("--other and --how are about routes; --knockout takes neither.")
    given: dict[str, Any] = {} if knockout else {"how": how or ("zero" if other is None else "swap")}
    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Closing routes") as on_progress:
        result, described = measured(
            subject,
            words[-1],
            words[:-1],
            model=model,
            other=other,
            answer=answer,
            knockout=knockout,
            store=finished_cells(out),
            on_progress=on_progress,
            **given,
        )
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure)
