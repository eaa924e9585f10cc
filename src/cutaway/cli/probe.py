"""`cutaway probe`: linear probes on a folder of labelled pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, save_experiment, writable
from cutaway.cli.show import loading


def probe(
    folder: Annotated[Path, typer.Argument(help="A folder with a folder of pictures for each class.")],
    question: Annotated[str, typer.Argument(help="What is asked about every picture.")],
    labels: Annotated[
        Path | None, typer.Option(help="Instead of folders: a JSON file, picture's name to label.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    value: Annotated[list[str] | None, typer.Option(help="Values or patterns. Default: layers.*.layer_output.")] = None,
    where: Annotated[str, typer.Option(help='Tokens that are read: "last", "image", or a word.')] = "last",
    pool: Annotated[str, typer.Option(help="Over those tokens: mean, max, or last.")] = "mean",
    method: Annotated[str, typer.Option(help="logistic for classes, ridge for numbers.")] = "logistic",
    penalty: Annotated[float, typer.Option(help="Of the squared weights.")] = 1.0,
    folds: Annotated[int, typer.Option(min=2, help="Each is held out once.")] = 5,
    controls: Annotated[int, typer.Option(min=1, help="How often labels are shuffled.")] = 3,
    store: Annotated[Path | None, typer.Option(help="A folder that keeps what was read, to go on from.")] = None,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Draw the best value's confusions instead of the curve.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure what can be read off each value by a linear map, on held-out pictures.

    Beside each score stands the same with the labels shuffled.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.probe import probe as probed

    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Reading") as on_progress:
        result, described = probed(
            subject,
            question,
            folder,
            model=model,
            labels=labels,
            store=store,
            on_progress=on_progress,
            **({"value": value} if value else {}),
            where=where,
            pool=pool,
            method=method,
            penalty=penalty,
            folds=folds,
            controls=controls,
        )
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure, figure_options={"confusion": confusion})
