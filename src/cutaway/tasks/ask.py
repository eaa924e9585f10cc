"""Ask a question about files: the answer as text while it is written, and every token with its probability."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.api import Model, load
from cutaway.errors import InputError
from cutaway.generate.loop import Generation, stream
from cutaway.inputs.media import kind_of
from cutaway.tasks.tokens import content

__all__ = ["TextAnswer", "Token", "ask", "load"]


@dataclass(frozen=True)
class Token:
    """A generated token: its id, its text alone, its probability under the model before temperature and filters."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class TextAnswer:
    """An answer, why it ended (``eos``, ``stop``, ``length``), its tokens, and how long the prompt was."""

    text: str
    finish_reason: str | None
    tokens: tuple[Token, ...]
    prompt_tokens: int


def ask(
    model: Model,
    question: str,
    files: Sequence[str | Path] = (),
    *,
    system: str | None = None,
    on_text: Callable[[str], Any] | None = None,
    **options: Any,
) -> TextAnswer:
    """Ask `question` about images and videos, sorted by content, in their order.

    `on_text` is called with each piece of the answer as soon as it is safe to print. `options` are those of generation;
    None stands for the checkpoint's default. Raises `InputError` for files or options that cannot be used.
    """
    if os.path.isfile(question):  # unlike Path.is_file, False for a question too long to be a path
        raise InputError(
            f"The last argument is the question; got {question!r}, which is a file. Put the question after it."
        )
    messages = [{"role": "system", "content": system}] if system is not None else []
    items = content(files, [kind_of(file) for file in files], question)
    inputs = model.prepare([*messages, {"role": "user", "content": items}])
    settings = model.settings(**{name: value for name, value in options.items() if value is not None})
    generation = Generation(model.root, inputs, settings, tokenizer=model.tokenizer)
    for piece in stream(model.root, generation):
        if on_text is not None:
            on_text(piece)
    return answer(generation, model, inputs.input_ids.shape[1])


def answer(generation: Generation, model: Model, prompt_tokens: int) -> TextAnswer:
    """Return the answer of a finished generation of one sample."""
    result = generation.result
    ids, logprobs = result.ids[0], result.logprobs[0]
    names = model.tokenizer.strings(ids)
    tokens = [Token(id, name, math.exp(p)) for id, name, p in zip(ids, names, logprobs, strict=True)]
    return TextAnswer(result.text, result.finish_reasons[0], tuple(tokens), prompt_tokens)
