"""Numbers that come from outside, a settings file or a caller, checked before anything is computed with them.

Each function returns the value and raises `error` where it is not what it must be; `key` is its name in the message.
It does not know what a number is for.
"""

from __future__ import annotations

import math
from typing import Any

from cutaway.errors import ConfigError, InputError

Error = type[InputError] | type[ConfigError]


def count(value: Any, key: str, error: Error) -> int:
    """A whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value != int(value):
        raise error(f"{key} must be a whole number above 0, got {value!r}")
    return int(value)


def number(value: Any, key: str, error: Error) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error(f"{key} must be a number above 0, got {value!r}")
    return value


def channels(value: Any, key: str, error: Error, *, positive: bool = False) -> tuple[float, float, float]:
    """Three numbers, one a colour; a single one stands for all three. With `positive` each is above 0."""
    values = [value] * 3 if isinstance(value, int | float) else list(value) if isinstance(value, list | tuple) else []
    sound = len(values) == 3 and all(isinstance(v, int | float) and math.isfinite(v) for v in values)
    if not sound or (positive and min(values) <= 0):
        raise error(f"{key} must be three numbers{' above 0' if positive else ''}, got {value!r}")
    return float(values[0]), float(values[1]), float(values[2])


def switch(value: Any, key: str, error: Error) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise error(f"{key} must be True or False, got {value!r}")
    return value
