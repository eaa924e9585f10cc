"""Checks of arguments that analyses share: the prompt, its sample, layers, counts and choices.

Every function of an analysis calls these before it runs the model, so that a wrong argument is one `InputError` that
says the rule, what came and what to do. What an argument is used for is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutaway.analysis.common.token_selection import geometry
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError


def describe(value: Any) -> str:
    """A short text that names a wrong argument in an error message."""
    written = repr(value) if isinstance(value, str | int | float | bool | tuple | list | None) else ""
    written = written if len(written) <= 60 else f"{written[:57]}…"
    return written if written and not isinstance(value, list | tuple) else f"a {type(value).__name__} {written}".strip()


def check_model(model: Any, analysis: str) -> None:
    """Raises `InputError` unless `model` is a model, and `Unavailable` when it has no weights."""
    if not isinstance(model, Model):
        raise InputError(f"{analysis} takes a model first, as `cutaway.load` returns it; got {describe(model)}.")
    model.require_weights(analysis)


def sample_index(inputs: Any, sample: int | None = None) -> int:
    """The index of the sample that is meant; None is the only sample of a batch of one.

    Raises `InputError` for anything but prepared inputs, for a batch of several without a `sample`, and for an index
    that the batch does not have.
    """
    if not isinstance(inputs, Inputs):
        raise InputError(
            "A prompt must be prepared inputs: use `cutaway.analysis.question(model, text, images=…)` or "
            f"`model.prepare(…)`; got {describe(inputs)}."
        )
    count = len(inputs.input_ids)
    if sample is None:
        if count != 1:
            raise InputError(f"This batch has {count} samples: say which one with `sample=`, from 0 to {count - 1}.")
        return 0
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 <= sample < count:
        raise InputError(f"`sample` must be a whole number from 0 to {count - 1}; got {describe(sample)}.")
    return sample


def check_batch_of_one(inputs: Any, name: str = "A prompt") -> None:
    """Raises `InputError` unless `inputs` are prepared inputs with one sample."""
    if not isinstance(inputs, Inputs):
        sample_index(inputs)
    if len(inputs.input_ids) != 1:
        raise InputError(
            f"{name} must be a batch of one sample; got {len(inputs.input_ids)}. Prepare each prompt by itself."
        )


def layer_numbers(layers: Any, every: Sequence[int], count: int) -> tuple[int, ...]:
    """Layer numbers, ascending, each once; None means all of `every`, negative numbers count from the last layer.

    Raises `InputError` for no layer, a number out of range, or what is no whole number.
    """
    if layers is None:
        return tuple(every)
    listed: Any = [layers] if isinstance(layers, int) else layers
    fits = isinstance(listed, Sequence) and not isinstance(listed, str) and len(listed) > 0
    if not fits or any(isinstance(n, bool) or not isinstance(n, int) or not -count <= n < count for n in listed):
        raise InputError(
            f"`layers` must be a whole number from 0 to {count - 1}, or a list of at least one; got {describe(layers)}."
        )
    return tuple(sorted({int(n) % count for n in listed}))


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises `InputError` unless `value` is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise InputError(f"`{name}` must be one of {listed}; got {describe(value)}.")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises `InputError` unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"`{name}` must be a whole number of at least {least}; got {describe(value)}.")


def check_number(name: str, value: Any, low: float, high: float, *, rule: str) -> None:
    """Raises `InputError`, saying the `rule`, unless `value` is a number from `low` to below `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
        raise InputError(f"`{name}` must be {rule}; got {describe(value)}.")


def item_index(inputs: Inputs, image: int | None, video: int | None) -> dict[str, int]:
    """The one image or video that is meant, as ``{"image": 0}`` or ``{"video": 0}``, numbered in the batch.

    With neither it is the only one of the prompt. Raises `InputError` where there is none, or several.
    """
    if image is not None and video is not None:
        raise InputError(f"Give `image` or `video`, one of the two; got image={image} and video={video}.")
    known = geometry(inputs)
    if image is not None or video is not None:
        named = {"video": video} if image is None else {"image": image}
        item = known.item(**named)
        return {item.kind: item.index}
    items = [*known.images, *known.videos]
    if len(items) != 1:
        raise InputError(
            f"This prompt has {len(known.images)} images and {len(known.videos)} videos: "
            + ("give it one." if not items else "say which one with `image=` or `video=`, numbered from 0.")
        )
    return {items[0].kind: items[0].index}
