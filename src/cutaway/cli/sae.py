"""`cutaway sae`: a sparse autoencoder's features over a folder of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, save_experiment, writable
from cutaway.cli.show import loading


def sae(
    dictionary: Annotated[Path, typer.Argument(help="A folder with cfg.json and sae_weights.safetensors.")],
    folder: Annotated[Path, typer.Argument(help="A folder of pictures.")],
    question: Annotated[str, typer.Argument(help="What is asked about every picture.")] = "What is this?",
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    value: Annotated[str, typer.Option(help="What the dictionary reads.")] = "vision.image_features",
    feature: Annotated[
        list[int] | None, typer.Option(help="A feature; may be given several times. Default: those that stand out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many features, where none is given.")] = 4,
    top: Annotated[int, typer.Option(min=1, help="Regions of each feature.")] = 4,
    loss: Annotated[bool, typer.Option("--loss", help="Measure the loss recovered too.")] = False,
    store: Annotated[Path | None, typer.Option(help="A folder that keeps what was read, to go on from.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show where the features of a sparse autoencoder fire most, over a folder of pictures.

    The dictionary is in SAELens' file format. The explained variance and L0 say how good it is here.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.sae import regions

    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Reading") as on_progress:
        result, described = regions(
            subject,
            dictionary,
            folder,
            question,
            model=model,
            store=store,
            on_progress=on_progress,
            value=value,
            count=count,
            top=top,
            loss=loss,
            **({"features": feature} if feature else {}),
        )
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure)
