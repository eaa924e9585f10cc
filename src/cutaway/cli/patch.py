"""`cutaway patch`: activation patching between two pictures or clips, or two questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, finished_cells, save_experiment, writable
from cutaway.cli.show import loading


def patch(
    clean: Annotated[str, typer.Argument(help="The picture or clip that has the answer.")],
    corrupt: Annotated[str, typer.Argument(help="The one that has another; it may be the same file.")],
    question: Annotated[str, typer.Argument(help="What is asked about both.")],
    corrupt_question: Annotated[str | None, typer.Option(help="What is asked about the corrupt one instead.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    answer: Annotated[
        str | None, typer.Option(help="The clean answer. Default: what the model says to each prompt.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="The corrupt answer; then logits are compared.")] = None,
    component: Annotated[
        str, typer.Option(help="residual, attention, mlp, head, deepstack, expert, or block.")
    ] = "residual",
    where: Annotated[
        str, typer.Option(help='"tokens", "regions 4x4", "frames", "groups", or names: "image,question,last".')
    ] = "groups",
    direction: Annotated[
        str, typer.Option(help="denoise: clean values into the corrupt run; noise: the other way.")
    ] = "denoise",
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find which places and parts of the model carry the answer from one picture to another.

    Each cell is a run on the corrupt prompt with one value taken from the clean one: an effect of 1 brings the whole
    answer along, 0 nothing of it.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.patch import patch as patched
    from cutaway.tasks.patch import places

    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Patching") as on_progress:
        result, described = patched(
            subject,
            clean,
            corrupt,
            question,
            model=model,
            corrupt_question=corrupt_question,
            answer=answer,
            against=against,
            component=component,
            where=places(where),
            direction=direction,
            store=finished_cells(out),
            on_progress=on_progress,
        )
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure)
