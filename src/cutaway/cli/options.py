"""Arguments and options that several commands share, with one help text each."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer


def check_words(words: list[str]) -> list[str]:
    """Return files and question as they came; raise a usage error for a missing question or a question in pieces."""
    *files, question = words
    if not question.strip():
        raise typer.BadParameter("The last argument is the question; got an empty one. Ask something.")
    if looks_like_a_file(question):
        raise typer.BadParameter(
            f"The last argument is the question; got {question!r}, the name of a file. Put the question after it."
        )
    for file in files:
        if "://" in file or file.startswith(("http:", "https:")):
            raise typer.BadParameter(
                f"Images and videos are files on this machine; got the URL {file}. Download it, and give the file."
            )
    if files and not any(looks_like_a_file(file) for file in files[-1:]):
        pieces = list(takewhile(lambda word: not looks_like_a_file(word), reversed(files)))[::-1]
        raise typer.BadParameter(
            f"The question is one argument, and files come before it; got {pieces[0]!r}, which is no file. Put quotes "
            f"around the question: {' '.join([*pieces, question])!r}."
        )
    return words


def looks_like_a_file(word: str) -> bool:
    """Return whether a word is the path of something that exists, or ends like the name of a file."""
    return os.path.exists(word) or re.fullmatch(r"\S*[^\s.]\.[A-Za-z][A-Za-z0-9]{1,4}", word) is not None


Words = Annotated[
    list[str],
    typer.Argument(metavar="[IMAGE_OR_VIDEO]... QUESTION", help="Files, then the question.", callback=check_words),
]
"""Optional files, then a question, which is the last argument."""

EveryQuestion = Annotated[str, typer.Argument(help="What is asked about every image.")]

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="The bundled model nano, a checkpoint folder, or a hub id.")
]
Answer = Annotated[
    str | None, typer.Option(help="The answer. Default: the most probable token; its log probability is measured.")
]
Foil = Annotated[str | None, typer.Option(help="The answer's foil: the logit difference of the two is measured.")]
Store = Annotated[Path | None, typer.Option(help="A folder that keeps what was read, to go on from.")]

Out = Annotated[Path | None, typer.Option(help="Write the result as JSON here.")]
ResumedOut = Annotated[Path | None, typer.Option(help="Write the result as JSON here; a run that was stopped goes on.")]
"""`Out` of a command that keeps finished cells beside the result."""

Figure = Annotated[Path | None, typer.Option(help="Write the figure here (png, pdf, svg).")]
ExperimentFile = Annotated[Path | None, typer.Option(help="Write an experiment here that `cutaway run` repeats.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
