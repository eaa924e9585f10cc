"""The line under a figure's title that says which model and which prompt a result is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutaway.analysis.common.token_selection import geometry, token_groups
from cutaway.api import Model
from cutaway.batch import Inputs


def model_name(model: Model) -> str:
    """The name of the checkpoint's folder; of a model with random weights its family."""
    return Path(model.folder).name if model.folder is not None else f"random {model.config.family}"


def caption(model: Model, inputs: Inputs, sample: int = 0) -> str:
    """The model's name, the question, and how many images and videos the sample has: ``nano, 'What?', 1 image``."""
    result = token_groups(model, inputs, sample)
    request = result["question"] if "question" in result else result["all"][:0]
    text = model.tokenizer.decode(inputs.input_ids[sample, request.to(inputs.input_ids.device)].tolist()).strip()
    parts = [model_name(model), repr(text if len(text) <= 60 else f"{text[:59]}…")]
    known = geometry(inputs)
    for kind, items in (("image", known.images), ("video", known.videos)):
        count = sum(item.sample == sample for item in items)
        if count:
            parts.append(f"{count} {kind}{'s' if count > 1 else ''}")
    return ", ".join(parts)


def caption_of_many(model: Model, prompts: Sequence[Inputs]) -> str:
    """The caption of several prompts: the first one's, and how many there are."""
    count = len(prompts)
    return caption(model, prompts[0]) + (f", the first of n = {count} prompts" if count > 1 else ", n = 1 prompt")
