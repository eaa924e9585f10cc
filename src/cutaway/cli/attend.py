"""`cutaway attend`: where tokens of a prompt look, over the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.results import deliver, save_experiment, writable
from cutaway.cli.show import loading


def attend(
    words: Annotated[
        list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    tokens: Annotated[
        str, typer.Option("--from", help='Who looks: "last", "question", "image 0", or a word of the question.')
    ] = "last",
    box: Annotated[
        str | None, typer.Option(help="Who looks instead: a region of the first picture, left,top,right,bottom.")
    ] = None,
    block: Annotated[int | None, typer.Option(help="Draw the heads of this block instead of all blocks.")] = None,
    head: Annotated[int | None, typer.Option(help="Draw this head of --block.")] = None,
    without_sinks: Annotated[bool, typer.Option("--without-sinks", help="Leave sinks clear in the figure.")] = False,
    rollout: Annotated[bool, typer.Option("--rollout", help="Follow attention through all blocks at once.")] = False,
    vision: Annotated[bool, typer.Option("--vision", help="The vision encoder's own attention instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show where tokens look: per block and head, with the part that goes to sinks.

    A sink takes attention from any token, so a bright sink is no finding. With --vision patches of the first picture
    look, those of --box or all.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.attend import attend as looked
    from cutaway.tasks.shown import background
    from cutaway.tasks.shown import box as region

    if rollout and vision:
        raise typer.BadParameter("--rollout and --vision are two ways; give one.")
    if head is not None and block is None:
        raise typer.BadParameter("--head is one of a block: say --block too.")
    place = None if box is None else region(box)
    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    options: dict[str, Any] = {}
    if vision:
        parameters: dict[str, Any] = {"box": place}
        options["block"] = block
    else:
        parameters = {"tokens": tokens if place is None else {"box": place}}
        options = {} if rollout else {"block": block, "head": head, "sinks": not without_sinks}
    way = "vision" if vision else "rollout" if rollout else "attention"
    result, described = looked(subject, words[-1], words[:-1], model=model, way=way, **parameters)
    if figure is not None:
        options["picture"] = background(subject, words[:-1])
        if vision and isinstance(options["picture"], list):
            options["picture"] = options["picture"][0]  # a clip: its first temporal grid is drawn
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure, figure_options=options)
