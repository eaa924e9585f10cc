"""Cutaway: the Qwen-VL models with the insides showing.

The public names, loaded when first used so that ``import cutaway`` stays quick. This module holds no code of its own.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which type checkers know and which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from cutaway.api import Model as Model
    from cutaway.api import load as load
    from cutaway.api import random as random
    from cutaway.batch import Inputs as Inputs
    from cutaway.config import Config as Config
    from cutaway.errors import CheckpointError as CheckpointError
    from cutaway.errors import ConfigError as ConfigError
    from cutaway.errors import CutawayError as CutawayError
    from cutaway.errors import EditError as EditError
    from cutaway.errors import InputError as InputError
    from cutaway.errors import LimitError as LimitError
    from cutaway.errors import NoRunError as NoRunError
    from cutaway.errors import NotReachedError as NotReachedError
    from cutaway.errors import OutOfOrderError as OutOfOrderError
    from cutaway.errors import TraceError as TraceError
    from cutaway.errors import Unavailable as Unavailable
    from cutaway.errors import UnknownValue as UnknownValue

_HOMES = {
    "load": "api",
    "random": "api",
    "Model": "api",
    "Inputs": "batch",
    "Config": "config",
    "CutawayError": "errors",
    "InputError": "errors",
    "LimitError": "errors",
    "ConfigError": "errors",
    "CheckpointError": "errors",
    "TraceError": "errors",
    "OutOfOrderError": "errors",
    "Unavailable": "errors",
    "NotReachedError": "errors",
    "NoRunError": "errors",
    "UnknownValue": "errors",
    "EditError": "errors",
}

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "CutawayError",
    "EditError",
    "InputError",
    "Inputs",
    "LimitError",
    "Model",
    "NoRunError",
    "NotReachedError",
    "OutOfOrderError",
    "TraceError",
    "Unavailable",
    "UnknownValue",
    "load",
    "random",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow to import, and hardly ever asked for

        return version("cutaway")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    from importlib import import_module

    return getattr(import_module(f"cutaway.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
