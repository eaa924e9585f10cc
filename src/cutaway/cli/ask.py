"""`cutaway ask`: a question about images and videos, answered on the terminal as it is written."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.options import ModelName, Words
from cutaway.cli.results import loaded
from cutaway.cli.show import as_json


def ask(
    words: Words,
    model: ModelName = "nano",
    system: Annotated[str | None, typer.Option(help="A system message before the question.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the answer may have.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Randomness; 0 always takes the most probable token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes a random answer repeatable.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print token ids and probabilities too, as JSON.")] = False,
) -> None:
    """Ask a question about images and videos, or about none.

    Images and videos are recognised by their content. The answer is printed as it is written, or with --json at the
    end, with every token's id and its probability under the model.
    """
    from cutaway.tasks.ask import ask as answer

    result = answer(
        loaded(model),
        words[-1],
        words[:-1],
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        on_text=None if json else lambda piece: print(piece, end="", flush=True),
    )
    if json:
        as_json(result)
    else:
        print()
