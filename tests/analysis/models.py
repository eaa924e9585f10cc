"""Small random models of every family, and images and videos to ask them about."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from cutaway.api import Model, random
from cutaway.checkpoint.families import FAMILIES

CHECKPOINTS = Path(__file__).parents[1] / "data" / "oracle" / "ckpt"

BUILT = tuple(FAMILIES)
"""The families that can be built."""


@cache
def small(family: str) -> Model:
    """A random model with the sizes of the family's reference checkpoint; a test must not change its weights."""
    return random(json.loads((CHECKPOINTS / family / "config.json").read_text()), seed=1)


def noise_image(seed: int, size: tuple[int, int] = (128, 96)) -> Image.Image:
    """Noise of a width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)
