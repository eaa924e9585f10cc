"""The published sizes: the `config.json` of every release, without its weights.

`sizes.json` holds what the releases of a family share, and per size what it adds; this module lays one over the other.
It does not read configs or build anything.
"""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from cutaway.errors import ConfigError

_ENDINGS = ("-instruct", "-thinking", "-hf")


def names() -> list[str]:
    """Every size that is known here, such as ``"Qwen3-VL-2B"``, family by family and small to large."""
    return list(_table()["sizes"])


def known(name: str) -> bool:
    """Whether `published` has this size."""
    return _plain(name) in {size.lower() for size in names()}


def published(name: str) -> dict[str, Any]:
    """The mapping of the release's `config.json`, a fresh copy.

    The owner (``Qwen/``), ``-Instruct``, ``-Thinking`` and upper or lower case make no difference. Raises `ConfigError`
    with the nearest names for one that is not known.
    """
    table, plain = _table(), {size.lower(): size for size in names()}
    result = plain.get(_plain(name))
    if result is None:
        nearest = [plain[near] for near in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.3)]
        raise ConfigError(
            f"There is no published size {name!r} here. Nearest: {', '.join(nearest or names())}. "
            f"`cutaway.checkpoint.published_sizes.names()` lists all; a folder or a hub id brings its own config.json."
        )
    size = table["sizes"][result]
    config = json.loads(json.dumps(table["families"][size["family"]]))
    config.update(size["top"])
    config.get("text_config", {}).update(size.get("text", {}))
    config["vision_config"].update(size["vision"])
    return config


def _plain(name: str) -> str:
    plain = name.lower().rsplit("/", 1)[-1]
    for ending in _ENDINGS:
        plain = plain.removesuffix(ending)
    return plain


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return json.loads(files("cutaway.checkpoint").joinpath("sizes.json").read_text(encoding="utf-8"))
