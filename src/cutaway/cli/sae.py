"""`cutaway sae`: a sparse autoencoder's features over a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.options import EveryQuestion, ExperimentFile, Figure, Json, ModelName, Out, Store
from cutaway.cli.results import Outputs, run_analysis


def sae(
    dictionary: Annotated[Path, typer.Argument(help="A folder with cfg.json and sae_weights.safetensors.")],
    folder: Annotated[Path, typer.Argument(help="A folder of images.")],
    question: EveryQuestion = "What is this?",
    model: ModelName = "nano",
    value: Annotated[str, typer.Option(help="What the dictionary reads.")] = "vision.image_features",
    feature: Annotated[
        list[int] | None, typer.Option(help="A feature; may be given several times. Default: those that stand out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many features, where none is given.")] = 4,
    top: Annotated[int, typer.Option(min=1, help="Regions of each feature.")] = 4,
    loss: Annotated[bool, typer.Option("--loss", help="Measure the loss recovered too.")] = False,
    store: Store = None,
    out: Out = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Show where the features of a sparse autoencoder fire most, over a folder of images.

    The dictionary is in SAELens' file format. The explained variance and L0 say how good it is here.
    """
    outputs = Outputs(out, figure, experiment, json)
    request = {"question": question, "folder": folder, "dictionary": dictionary, "store": store}
    parameters = {"value": value, "features": feature or None, "count": count, "top": top, "loss": loss}
    outputs.deliver(*run_analysis("Reading", "feature_regions", model, **request, parameters=parameters))
