"""A conversation that is typed line by line: questions, and commands that add files and take turns back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.inputs.media import kind_of

COMMANDS = {"/add": "FILE…", "/undo": ""}
"""What a line can begin with, and what follows it. Every other line is a question."""


class ChatSession:
    """A conversation of a model with a person at a keyboard.

    `files` belong to the first question. `options` are those of generation; None stands for the checkpoint's default.
    Raises `InputError` for a file that is neither an image nor a video.
    """

    def __init__(
        self, model: Model, files: Sequence[str | Path] = (), *, system: str | None = None, **options: Any
    ) -> None:
        settings = {name: value for name, value in options.items() if value is not None}
        self.chat = model.chat(system=system, **settings)
        self._files: list[tuple[str, str]] = []
        self.add(files)

    def add(self, files: Sequence[str | Path]) -> None:
        """Keep files for the next question."""
        self._files += [(kind_of(file), str(file)) for file in files]

    def respond(self, line: str) -> Iterator[str]:
        """The answer to a line, piece by piece; nothing for a command. An answer left early takes its turn back."""
        word, *rest = line.split(maxsplit=1)
        if not word.startswith("/"):
            yield from self._answer(line.strip())
        elif word == "/add" and rest:
            self.add(_words(rest[0]))
        elif word == "/undo" and not rest:
            self.chat.undo()
        else:
            known = ", ".join(f"{name} {what}".strip() for name, what in COMMANDS.items())
            raise InputError(f"A line that begins with / is one of {known}; got {line.strip()!r}.")

    def _answer(self, question: str) -> Iterator[str]:
        images = [file for kind, file in self._files if kind == "image"]
        videos = [file for kind, file in self._files if kind == "video"]
        yield from self.chat.ask(question, images, videos, stream=True)
        self._files.clear()


def _words(text: str) -> list[str]:
    """File names as a shell reads them, quotes and all."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"File names are written as in a shell; got {text!r}: {error}.") from error
