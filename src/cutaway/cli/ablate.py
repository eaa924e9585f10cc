"""`cutaway ablate`: parts of the model, or of the prompt, taken away one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, finished_cells, save_experiment, writable
from cutaway.cli.show import loading


def ablate(
    words: Annotated[
        list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")
    ],
    other: Annotated[
        list[str] | None, typer.Option(help="A picture for means and resampling; may be given several times.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    answer: Annotated[
        str | None, typer.Option(help="The answer. Default: the likeliest token, against its runner-up.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another answer; then logits are compared.")] = None,
    component: Annotated[
        str, typer.Option(help="head, mlp, attention, block, expert, deepstack, residual, or token.")
    ] = "head",
    how: Annotated[str, typer.Option(help="mean, zero, or resample.")] = "mean",
    where: Annotated[
        str, typer.Option(help='"all", "tokens", "regions 4x4", "frames", "groups", or names: "image,last".')
    ] = "all",
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Rank the parts of the model, or of the prompt, by how much the answer needs them.

    Each part in turn is replaced by its mean over tokens, by zeros, or by what it is for another picture.
    """
    from cutaway.tasks.ablate import ablate as ablated
    from cutaway.tasks.ask import load
    from cutaway.tasks.patch import places

    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Ablating") as on_progress:
        result, described = ablated(
            subject,
            words[-1],
            words[:-1],
            model=model,
            others=other or (),
            answer=answer,
            against=against,
            component=component,
            how=how,
            where=places(where),
            store=finished_cells(out),
            on_progress=on_progress,
        )
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure)
