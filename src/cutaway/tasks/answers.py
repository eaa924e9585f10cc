"""What an analysis asked from the command line measures: prompts of files, and the answers that are compared.

It knows files and words. It does not know techniques.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.metrics import answer_logits
from cutaway.analysis.common.prompts import from_spec
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.inputs.kinds import kind_of

NEAREST = 64
"""Among how many of the likeliest tokens a runner-up that is another word is looked for."""


def prompt_spec(question: str, files: Sequence[str | Path] = ()) -> dict[str, Any]:
    """A prompt as experiments have it; images and videos are told apart by content."""
    kinds = [kind_of(file) for file in files]
    found: dict[str, Any] = {"question": question}
    for kind, name in (("image", "images"), ("video", "videos")):
        media = [str(Path(file).resolve()) for file, is_kind in zip(files, kinds, strict=True) if is_kind == kind]
        if media:
            found[name] = media
    return found


def metric_spec(
    model: Model, prompts: Sequence[dict[str, Any]], answer: str | None = None, foil: str | None = None
) -> dict[str, Any]:
    """What is measured, as experiments have it.

    `answer` against `foil` is their logit difference, `answer` alone the log-probability of it as a whole. Without
    either, what the model would say first to the first prompt, against what it would say to the second; to one prompt,
    against its runner-up.
    """
    if answer is None and foil is not None:
        raise InputError("`foil` is what the answer is compared with: say the answer too.")
    if answer is None:
        if len(prompts) == 1:
            best, second = rivals(model, prompts[0])
            return {"name": "logit_difference", "answer": best, "foil": second}
        said = [spoken(model, prompt) for prompt in prompts[:2]]
        if said[0] == said[1]:
            word = model.tokenizer.strings(said[:1])[0]
            raise InputError(
                f"The model begins the same answer to both prompts, {word!r}, so there is no difference to follow. "
                f"Choose prompts that it answers differently, or say which answers to compare."
            )
        return {"name": "logit_difference", "answer": said[0], "foil": said[1]}
    if foil is None:
        return {"name": "log_probability", "answer": answer}
    return {"name": "logit_difference", "answer": answer, "foil": foil}


def rivals(model: Model, prompt: dict[str, Any]) -> tuple[int, int]:
    """The ids of the likeliest first token to a prompt and of its runner-up, the next that is another word.

    ``' red'`` and ``'Red'`` are ``'red'`` spelled otherwise: a difference of the two says nothing about the answer.
    """
    ids = answer_logits(model, from_spec(model, prompt))[0, -1].argsort(descending=True)
    ids = ids[ids < len(model.tokenizer)][:NEAREST].tolist()
    words = [word.strip().casefold() for word in model.tokenizer.strings(ids)]
    return ids[0], next((id for id, word in zip(ids, words, strict=True) if word and word != words[0]), ids[1])


def spoken(model: Model, prompt: dict[str, Any]) -> int:
    """The id of the first token that the model would say to a prompt."""
    return int(answer_logits(model, from_spec(model, prompt))[0, -1].argmax())
