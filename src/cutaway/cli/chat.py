"""`cutaway chat`: a conversation on the terminal, or one whose questions are lines of a file."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cutaway.cli.options import ModelName
from cutaway.cli.results import loaded
from cutaway.cli.show import complain
from cutaway.errors import CutawayError, InputError


def chat(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE_OR_VIDEO]...", help="Files of the first question.")
    ] = None,
    model: ModelName = "nano",
    system: Annotated[str | None, typer.Option(help="A system message before the first question.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that an answer may have.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Randomness; 0 always takes the most probable token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes random answers repeatable.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each turn as a line of JSON.")] = False,
) -> None:
    """Talk with a model about images and videos, or about none.

    Every line of the input is a question; its answer is printed as it is written. `/add FILE…` adds images and videos
    to the next question, `/undo` takes the last turn back. Ctrl-C stops an answer and takes its turn back; at the
    prompt it ends the command, and so does Ctrl-D.
    """
    from cutaway.tasks.chat import ChatSession

    session = ChatSession(
        loaded(model),
        files or [],
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    at_terminal = sys.stdin.isatty()
    for line in lines(at_terminal):
        try:
            turn(session, line, json)
        except KeyboardInterrupt:
            if not at_terminal:
                raise
            print()
            complain("stopped", "the turn is taken back")
        except CutawayError as error:
            if not at_terminal:
                raise
            complain("error", error)


def turn(session: Any, line: str, json: bool) -> None:
    """Answer one line and print it."""
    pieces = []
    for piece in session.respond(line):
        pieces.append(piece)
        if not json:
            print(piece, end="", flush=True)
    if line.lstrip().startswith("/"):
        return
    if json:
        reason = session.chat.result.finish_reasons[0]
        answer = {"question": line.strip(), "answer": "".join(pieces), "finish_reason": reason}
        print(json_format.dumps(answer, ensure_ascii=False), flush=True)
    else:
        print(flush=True)


def lines(at_terminal: bool) -> Iterator[str]:
    """The lines of the input that are not empty, each asked for with a prompt on a terminal."""
    prompt = "> " if at_terminal and sys.stdout.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except UnicodeDecodeError as error:
            raise InputError(f"A question is text in {error.encoding}; got bytes that are not: {error}.") from error
        if line.strip():
            yield line
