"""`cutaway probe`: linear probes on a folder of labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.options import EveryQuestion, ExperimentFile, Figure, Json, ModelName, Out, Store
from cutaway.cli.results import Outputs, run_analysis


def probe(
    folder: Annotated[Path, typer.Argument(help="A folder with a folder of images for each class.")],
    question: EveryQuestion,
    labels: Annotated[Path | None, typer.Option(help="Instead of folders: a JSON file, image's name to label.")] = None,
    model: ModelName = "nano",
    value: Annotated[list[str] | None, typer.Option(help="Values or patterns. Default: layers.*.layer_output.")] = None,
    where: Annotated[str, typer.Option(help='Tokens that are read: "last", "image", or a word.')] = "last",
    pool: Annotated[str, typer.Option(help="Over those tokens: mean, max, or last.")] = "mean",
    method: Annotated[str, typer.Option(help="logistic for classes, ridge for numbers.")] = "logistic",
    penalty: Annotated[float, typer.Option(help="Of the squared weights.")] = 1.0,
    folds: Annotated[int, typer.Option(min=2, help="Each is held out once.")] = 5,
    controls: Annotated[int, typer.Option(min=1, help="How often labels are shuffled.")] = 3,
    store: Store = None,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Draw the best value's confusions instead of the curve.")
    ] = False,
    out: Out = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Measure what can be read off each value by a linear map, on held-out images.

    Beside each score stands the same with the labels shuffled.
    """
    outputs = Outputs(out, figure, experiment, json)
    request = {"question": question, "folder": folder, "labels": labels, "store": store}
    parameters = {"value": value or None, "where": where, "pool": pool, "method": method, "penalty": penalty}
    parameters |= {"folds": folds, "controls": controls}
    outputs.deliver(*run_analysis("Reading", "probe", model, **request, parameters=parameters), confusion=confusion)
