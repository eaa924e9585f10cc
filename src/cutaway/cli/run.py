"""`cutaway run`: an experiment file, run from beginning to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.options import Figure, Json, ResumedOut
from cutaway.cli.results import Outputs, counting, loaded


def run(
    file: Annotated[Path, typer.Argument(help="A JSON file: technique, model, prompts, metric, parameters.")],
    out: ResumedOut = None,
    figure: Figure = None,
    json: Json = False,
) -> None:
    """Run the experiment of a JSON file.

    The file is checked before the model is loaded; paths of images are relative to its folder.
    """
    from cutaway.tasks.experiments import Experiment

    outputs = Outputs(out, figure, json=json)
    experiment = Experiment.read(file)
    model = loaded(experiment.model)
    with counting(experiment.technique) as on_progress:
        result = experiment.run(model, store=outputs.cells, on_progress=on_progress)
    outputs.deliver(result)
