"""`cutaway run`: an experiment file, run from beginning to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.results import counting, deliver, finished_cells, writable
from cutaway.cli.show import loading


def run(
    file: Annotated[Path, typer.Argument(help="A JSON file: technique, model, prompts, metric, parameters.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run an experiment again, as it was written down.

    The file is checked before the model is loaded; pictures are looked for beside it.
    """
    from cutaway.tasks.ask import load
    from cutaway.tasks.run import Experiment
    from cutaway.tasks.run import run as repeat

    writable(out, figure)
    experiment = Experiment.read(file)
    with loading(experiment.model) as progress:
        subject = load(experiment.model, progress=progress)
    with counting(experiment.technique) as on_progress:
        result = repeat(subject, experiment, store=finished_cells(out), on_progress=on_progress)
    deliver(result, json_wanted=json, out=out, figure=figure)
