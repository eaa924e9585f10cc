"""`cutaway lens`: what the model would say after each layer, over the image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.options import ExperimentFile, Figure, Json, ModelName, Out, Words
from cutaway.cli.results import Outputs, counting, loaded
from cutaway.cli.show import complain

Tokens = Annotated[
    str, typer.Option(help='Where to read: "all", "last", "question", "image 0", or a word of the question.')
]
Nearest = Annotated[
    bool, typer.Option("--nearest", help="Instead: the vocabulary words nearest to the image's features.")
]


def lens(
    words: Words,
    model: ModelName = "nano",
    tokens: Tokens = "all",
    top: Annotated[int, typer.Option(min=1, help="Likeliest words kept at each place.")] = 5,
    word: Annotated[list[str] | None, typer.Option(help="A word of one token to follow; may be given again.")] = None,
    nearest: Nearest = False,
    tuned: Annotated[Path | None, typer.Option(help="A tuned lens to read through; with --train it goes here.")] = None,
    train: Annotated[Path | None, typer.Option(help="Train a tuned lens on the images of this folder.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times that the training sees each image.")] = 10,
    layer: Annotated[int | None, typer.Option(help="Draw the words after this layer over the image.")] = None,
    out: Out = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Read the stream after every layer with the model's own head, at words and at the tokens of images.

    The figure is a table of layers and the last places, or with --layer the words over the first image.
    """
    from cutaway.tasks.analyses import analyse
    from cutaway.tasks.files import still

    if train is not None and tuned is None:
        raise typer.BadParameter("--train writes a lens to the file of --tuned: give that too.")
    if nearest and (layer is not None or word or tuned is not None):
        raise typer.BadParameter("--layer, --word and --tuned are about the lens; --nearest takes none of them.")
    outputs = Outputs(out, figure, experiment, json)
    loaded_model = loaded(model)
    if train is not None:
        _train(loaded_model, words[-1], train, str(tuned), epochs)
    parameters: dict[str, Any] = {"top": top}
    if not nearest:
        parameters |= {"tokens": tokens, "words": word or [], "tuned": str(tuned) if tuned else None}
    drawn: dict[str, Any] = {} if nearest else {"layer": layer}
    if figure is not None and (nearest or layer is not None):
        drawn["background"] = still(loaded_model, words[:-1])
    request: dict[str, Any] = {"question": words[-1], "files": words[:-1], "model_name": model}
    technique = "nearest_tokens" if nearest else "logit_lens"
    outputs.deliver(*analyse(loaded_model, technique, **request, parameters=parameters), **drawn)


def _train(model: Any, question: str, folder: Path, tuned: str, epochs: int) -> None:
    """Train a tuned lens on the images of a folder and write it."""
    from cutaway.tasks.analyses import train_tuned_lens

    with counting("Training") as on_progress:
        train_tuned_lens(model, question, folder, epochs=epochs, on_progress=on_progress).save(tuned)
    complain("written", tuned)
