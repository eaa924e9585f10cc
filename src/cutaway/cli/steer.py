"""`cutaway steer`: a direction from contrasting prompts, added while the model answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, finished_cells, save_experiment, writable
from cutaway.cli.show import loading


def steer(
    words: Annotated[
        list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")
    ],
    toward: Annotated[
        list[str] | None, typer.Option(help="A picture to steer toward, same question; may be given several times.")
    ] = None,
    away: Annotated[list[str] | None, typer.Option(help="A picture to steer away from; likewise.")] = None,
    toward_question: Annotated[
        list[str] | None, typer.Option(help="Another question about the same files to steer toward; likewise.")
    ] = None,
    away_question: Annotated[list[str] | None, typer.Option(help="A question to steer away from; likewise.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    value: Annotated[str, typer.Option(help="Which value, or pattern of values; each by itself.")] = (
        "layers.*.layer_output"
    ),
    where: Annotated[str, typer.Option(help="Tokens that are contrasted.")] = "last",
    at: Annotated[str | None, typer.Option(help="Tokens that it is added to. Default: those of --where.")] = None,
    when: Annotated[str, typer.Option(help="Steps: prompt, decode, all, or a range such as 0:3.")] = "prompt",
    strength: Annotated[
        list[float] | None, typer.Option(help="May be given several times. Default -1, 0.5, 1, 2.")
    ] = None,
    normalise: Annotated[str, typer.Option(help="none, unit, or value: the direction's length.")] = "none",
    controls: Annotated[int, typer.Option(min=1, help="Random directions of equal length.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="Of each answer; 0 gives none.")] = 8,
    answer: Annotated[str | None, typer.Option(help="The answer. Default: what is said to each side.")] = None,
    against: Annotated[str | None, typer.Option(help="Another answer; then logits are compared.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Steer the answer along the difference between two sets of pictures or questions.

    Each value is pushed by itself at each strength, a random direction of equal length beside it.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.steer import steer as steered
    from cutaway.tasks.steer import steps

    parameters = {
        "value": value, "where": where, "when": steps(when), "normalise": normalise, "controls": controls,
        "max_new_tokens": max_new_tokens,
        **({"at": at} if at is not None else {}), **({"strengths": strength} if strength else {}),
    }  # fmt: skip
    sides = {"toward": toward or (), "away": away or ()}
    sides |= {"toward_questions": toward_question or (), "away_questions": away_question or ()}
    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    with counting("Steering") as on_progress:
        result, described = steered(
            subject, words[-1], words[:-1], model=model, answer=answer, against=against, store=finished_cells(out),
            on_progress=on_progress, **sides, **parameters,
        )  # fmt: skip
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure)
