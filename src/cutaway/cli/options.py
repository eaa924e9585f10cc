"""Arguments and options that several commands share, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Words = Annotated[list[str], typer.Argument(metavar="[IMAGE_OR_VIDEO]... QUESTION", help="Files, then the question.")]
"""Optional files, then a question, which is the last argument."""

EveryQuestion = Annotated[str, typer.Argument(help="What is asked about every image.")]

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
]
Answer = Annotated[
    str | None, typer.Option(help="The answer. Default: the most probable token, the runner-up as foil.")
]
Foil = Annotated[str | None, typer.Option(help="The answer's foil: the logit difference of the two is measured.")]
Store = Annotated[Path | None, typer.Option(help="A folder that keeps what was read, to go on from.")]

Out = Annotated[Path | None, typer.Option(help="Write the result as JSON here.")]
ResumedOut = Annotated[Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")]
"""`Out` of a command that keeps finished cells beside the result."""

Figure = Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")]
ExperimentFile = Annotated[Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
