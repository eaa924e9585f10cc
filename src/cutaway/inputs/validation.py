"""Checks of single values that a settings file or a caller gave: whole numbers, floats, booleans, boxes, arrays.

Each function returns the value, or raises `error` with `key` as its name in the message. Use them before anything is
computed with a value. They do not know what a value is for; rules between two values stand with the settings.
"""

from __future__ import annotations

import math
import operator
import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import ConfigError, InputError

Error = type[InputError] | type[ConfigError]


def brief(value: Any) -> str:
    """Return a value's repr for a message, or its type where the repr is long, endless or raises."""
    describe = reprlib.Repr()
    describe.maxstring = describe.maxother = describe.maxlong = describe.maxdict = describe.maxlist = 70
    describe.maxlevel = 3
    try:
        text = describe.repr(value)
    except Exception:  # a value's own repr may raise anything
        text = ""
    return text if 0 < len(text) <= 70 else f"a {type(value).__name__}"


def positive_int(value: Any, key: str, error: Error) -> int:
    """Return a whole number above 0 as an int; 2.0 counts, True does not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**63 or value != int(value):
        raise error(f"{key} must be a whole number above 0, got {brief(value)}.")
    return int(value)


def integer(value: Any, key: str, error: Error) -> int:
    """Return a whole number of either sign as an int; numpy's and torch's integers count, True and 1.0 do not."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise error(f"{key} must be a whole number, got {brief(value)}.")


def positive_float(value: Any, key: str, error: Error) -> float:
    """Return a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error(f"{key} must be a number above 0, got {brief(value)}.")
    return value


def channels(value: Any, key: str, error: Error, *, positive: bool = False) -> tuple[float, float, float]:
    """Return three finite numbers, one per colour channel; a single one holds for all; with `positive` all above 0."""
    values = [value] * 3 if isinstance(value, int | float) else list(value) if isinstance(value, list | tuple) else []
    sound = len(values) == 3 and all(isinstance(v, int | float) and math.isfinite(v) for v in values)
    if not sound or (positive and min(values) <= 0):
        raise error(f"{key} must be three numbers{' above 0' if positive else ''}, got {brief(value)}.")
    return float(values[0]), float(values[1]), float(values[2])


def boolean(value: Any, key: str, error: Error) -> bool:
    """Return True or False; 0 and 1 do not count."""
    if not isinstance(value, bool):
        raise error(f"{key} must be True or False, got {brief(value)}.")
    return value


def box_sides(value: Any, key: str, error: Error) -> tuple[float, float, float, float]:
    """Return a box (left, top, right, bottom) in pixels; its area must be above 0."""
    try:
        sides = [float(side) for side in value] if isinstance(value, list | tuple | np.ndarray) else []
    except (TypeError, ValueError):
        sides = []
    if len(sides) != 4 or not (sides[0] < sides[2] and sides[1] < sides[3]):
        raise error(f"{key} is (left, top, right, bottom) in pixels, left < right, top < bottom; got {brief(value)}.")
    return sides[0], sides[1], sides[2], sides[3]


def array(value: Any, key: str, error: Error) -> np.ndarray:
    """Return an array of bool, or of numbers as float32, from a tensor on any device, an array, an image or lists."""
    try:
        values = value.detach().to("cpu", torch.float32).numpy() if isinstance(value, Tensor) else np.asarray(value)
        return values if values.dtype == bool else values.astype(np.float32)
    except (TypeError, ValueError) as cause:
        raise error(f"{key} must be an array of numbers, got a {type(value).__name__}: {cause}") from cause
