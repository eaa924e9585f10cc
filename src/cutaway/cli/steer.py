"""`cutaway steer`: a direction from contrasting prompts, added while the model answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutaway.cli.options import ExperimentFile, Figure, Foil, Json, ModelName, ResumedOut, Words
from cutaway.cli.results import Outputs, run_analysis

Toward = Annotated[
    list[str] | None, typer.Option(help="An image to steer toward, same question; may be given several times.")
]
TowardQuestion = Annotated[
    list[str] | None, typer.Option(help="Another question about the same files to steer toward; likewise.")
]
Strengths = Annotated[list[float] | None, typer.Option(help="May be given several times. Default -1, 0.5, 1, 2.")]


def steer(
    words: Words,
    toward: Toward = None,
    away: Annotated[list[str] | None, typer.Option(help="An image to steer away from; likewise.")] = None,
    toward_question: TowardQuestion = None,
    away_question: Annotated[list[str] | None, typer.Option(help="A question to steer away from; likewise.")] = None,
    model: ModelName = "nano",
    value: Annotated[str, typer.Option(help="Which value, or pattern of values; each by itself.")] = (
        "layers.*.layer_output"
    ),
    where: Annotated[str, typer.Option(help="Tokens that are contrasted.")] = "last",
    at: Annotated[str | None, typer.Option(help="Tokens that it is added to. Default: those of --where.")] = None,
    when: Annotated[str, typer.Option(help="Steps: prompt, decode, all, or a range such as 0:3.")] = "prompt",
    strength: Strengths = None,
    normalise: Annotated[str, typer.Option(help="none, unit, or value: the direction's length.")] = "none",
    controls: Annotated[int, typer.Option(min=1, help="Random directions of equal length.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="Of each answer; 0 gives none.")] = 8,
    answer: Annotated[str | None, typer.Option(help="The answer. Default: what is said to each side.")] = None,
    foil: Foil = None,
    out: ResumedOut = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Steer the answer along the difference between two sets of images or questions.

    Each value is pushed by itself at each strength, a random direction of equal length beside it.
    """
    from cutaway.tasks.files import steps

    outputs = Outputs(out, figure, experiment, json)
    request: dict[str, Any] = {"question": words[-1], "files": words[:-1], "toward": toward or (), "away": away or ()}
    request |= {"toward_questions": toward_question or (), "away_questions": away_question or ()}
    request |= {"answer": answer, "foil": foil, "store": outputs.cells}
    parameters: dict[str, Any] = {"value": value, "where": where, "at": at, "when": steps(when)}
    parameters |= {"strengths": strength or None, "normalise": normalise, "controls": controls}
    parameters["max_new_tokens"] = max_new_tokens
    outputs.deliver(*run_analysis("Steering", "steer", model, **request, parameters=parameters))
