"""`cutaway lens`: what the model would say after each block, over the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, save_experiment, writable
from cutaway.cli.show import complain, loading


def lens(
    words: Annotated[
        list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    tokens: Annotated[
        str, typer.Option(help='Where to read: "all", "last", "question", "image 0", or a word of the question.')
    ] = "all",
    top: Annotated[int, typer.Option(min=1, help="Likeliest words kept at each place.")] = 5,
    word: Annotated[list[str] | None, typer.Option(help="A word of one token to follow; may be given again.")] = None,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Instead: the vocabulary words nearest to the picture's features.")
    ] = False,
    tuned: Annotated[Path | None, typer.Option(help="A tuned lens to read through; with --train it goes here.")] = None,
    train: Annotated[Path | None, typer.Option(help="Train a tuned lens on the pictures of this folder.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times that the training sees each picture.")] = 10,
    block: Annotated[int | None, typer.Option(help="Draw the words after this block over the picture.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Read the stream after every block with the model's own head, at words and at the tokens of pictures.

    The figure is a table of blocks and the last places, or with --block the words over the first picture.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.lens import lens as read
    from cutaway.tasks.lens import train as trained
    from cutaway.tasks.shown import background

    if train is not None and tuned is None:
        raise typer.BadParameter("say with --tuned where the trained lens goes.")
    if nearest and (block is not None or word or tuned is not None):
        raise typer.BadParameter("--block, --word and --tuned are about the lens; --nearest takes none of them.")
    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    if train is not None:
        with counting("Training") as on_progress:
            trained(subject, words[-1], train, epochs=epochs, on_progress=on_progress).save(str(tuned))
        complain("written", tuned)
    if nearest:
        parameters = {"top": top}
        options = {"picture": background(subject, words[:-1])} if figure else {}
    else:
        parameters = {"tokens": tokens, "top": top, "words": word or [], **({"tuned": str(tuned)} if tuned else {})}
        options = {"block": block, "picture": background(subject, words[:-1]) if figure and block is not None else None}
    if isinstance(options.get("picture"), list):
        options["picture"] = options["picture"][0]  # a clip: its first temporal grid is drawn
    result, described = read(subject, words[-1], words[:-1], model=model, nearest=nearest, **parameters)
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure, figure_options=options)
