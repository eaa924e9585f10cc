"""Arguments and options that several commands have, in the same words. It does not know what they do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Words = Annotated[list[str], typer.Argument(metavar="[PICTURE_OR_CLIP]... QUESTION", help="Files, then the question.")]
"""Files that may be missing, and a question, which is the last word."""

EveryQuestion = Annotated[str, typer.Argument(help="What is asked about every image.")]

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
]
Answer = Annotated[str | None, typer.Option(help="The answer. Default: the likeliest token, against its runner-up.")]
Foil = Annotated[str | None, typer.Option(help="Another answer; then logits are compared.")]
Store = Annotated[Path | None, typer.Option(help="A folder that keeps what was read, to go on from.")]

Out = Annotated[Path | None, typer.Option(help="Write the result as JSON here.")]
ResumedOut = Annotated[Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")]
"""`Out` of a command that keeps finished cells beside the result."""

Figure = Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")]
ExperimentFile = Annotated[Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
