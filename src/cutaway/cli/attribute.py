"""`cutaway attribute`: what the answer's logit is made of, and which patches it hangs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.results import counting, deliver, save_experiment, writable
from cutaway.cli.show import loading


def attribute(
    words: Annotated[
        list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    method: Annotated[
        str, typer.Option(help="direct: the logit as a sum of parts; gradient or integrated: patches.")
    ] = "direct",
    answer: Annotated[
        str | None, typer.Option(help="The answer. Default: the likeliest token, against its runner-up.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="The answer that it is compared with.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="grey, black or white: what patches are compared with. Default grey.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of integrated gradients. Default 32.")] = None,
    show: Annotated[
        str, typer.Option(help="Figure of the direct method: terms, heads, or picture (what heads read).")
    ] = "terms",
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Take the answer apart: into embeddings, heads, MLPs and experts, or into patches of the picture.

    The direct method's terms add up to the logit, with the final norm frozen. Integrated gradients add up to the rise
    over the baseline picture.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.attribute import attribute as attributed
    from cutaway.tasks.shown import background

    if method == "direct" and (baseline is not None or steps is not None):
        raise typer.BadParameter("--baseline and --steps are of the methods gradient and integrated: say --method.")
    writable(out, figure, experiment)
    with loading(model) as progress:
        subject = load(model, progress=progress)
    direct = method == "direct"
    parameters: dict[str, Any] = {} if direct else {"baseline": baseline, "steps": steps}
    with counting("Steps") as on_progress:
        result, described = attributed(
            subject,
            words[-1],
            words[:-1],
            model=model,
            method=method,
            answer=answer,
            against=against,
            on_progress=None if direct else on_progress,
            **parameters,
        )
    options: dict[str, Any] = {"kind": show} if direct else {}
    if figure is not None and (not direct or show == "picture"):
        options["picture"] = background(subject, words[:-1])
    save_experiment(described, experiment)
    deliver(result, json_wanted=json, out=out, figure=figure, figure_options=options)
