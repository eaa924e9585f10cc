"""Color names, and which colors a person tells apart.

Each of the ten names stands for several tones. A color is measured in CIE L*a*b* (D65), where the distance between two
colors (ΔE*ab, 1976) is about how different they look: about 2 is just visible.

**Contrast rule**: a thing is drawn in a tone at least `CONTRAST` away from the tone of the ground. Every one of the 90
pairs of two names has tones that pass, so no pair is left out; only too similar tones of the two names are.

Near-miss colors are tones off the list that still have one name: the nearest listed tone is at most `NEAREST` away, and
the nearest tone of any other name at least `CLEAR` times as far; black, white and gray have a chroma of at most `DULL`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Random = np.random.Generator

COLORS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (222, 20, 30), (200, 5, 5)),
    "orange": ((255, 165, 0), (255, 140, 0), (245, 130, 20)),
    "yellow": ((255, 255, 0), (250, 232, 30), (240, 222, 0)),
    "green": ((0, 128, 0), (0, 200, 0), (0, 255, 0), (30, 150, 60), (50, 205, 50)),
    "blue": ((0, 0, 255), (30, 80, 220), (0, 0, 180), (30, 144, 255)),
    "purple": ((128, 0, 128), (150, 40, 200), (110, 20, 140)),
    "pink": ((255, 192, 203), (255, 105, 180), (255, 150, 190)),
    "black": ((0, 0, 0), (22, 22, 22)),
    "white": ((255, 255, 255), (243, 243, 243)),
    "gray": ((128, 128, 128), (150, 150, 150), (110, 110, 110), (169, 169, 169)),
}
NAMES = tuple(COLORS)
CONTRAST, NEAREST, CLEAR = 20.0, 20.0, 1.8
NEUTRAL, DULL = ("black", "white", "gray"), 8.0
NEAR_MISS = 0.35  # share of the tones that are not on the list
_JITTER = 10
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(rgb: NDArray) -> NDArray[np.float64]:
    """sRGB in 0 to 255, [... 3], as CIE L*a*b*."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = linear @ _TO_XYZ.T / _WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


def distance(one: NDArray, other: NDArray) -> float:
    """ΔE*ab between two sRGB colors."""
    return float(np.linalg.norm(lab(one) - lab(other)))


@cache
def near_misses() -> dict[str, Array]:
    """By name, sRGB tones [n 3] off the list that still have this one name."""
    axis = np.arange(0, 256, 8.5)
    cube = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    points = lab(cube)
    nearest = np.stack(
        [np.linalg.norm(points[:, None] - lab(np.array(tones))[None], axis=-1).min(1) for tones in COLORS.values()]
    )  # [names cube]
    ordered = np.sort(nearest, 0)
    clear = (ordered[0] <= NEAREST) & (ordered[1] >= CLEAR * np.maximum(ordered[0], 8.0))
    name = nearest.argmin(0)
    neutral = np.isin(name, [NAMES.index(color) for color in NEUTRAL])
    clear &= ~neutral | (np.hypot(points[:, 1], points[:, 2]) <= DULL)
    return {color: cube[clear & (name == i)].astype(np.float32) for i, color in enumerate(NAMES)}


def tone(rng: Random, color: str, *, near_miss: float = NEAR_MISS) -> Array:
    """[3] float32 sRGB: a tone of this name, listed or (by the chance `near_miss`) not, a little off."""
    if rng.random() < near_miss:
        others = near_misses()[color]
        if len(others):
            return np.clip(others[rng.integers(len(others))] + rng.integers(-5, 6, 3), 0, 255).astype(np.float32)
    listed = COLORS[color][rng.integers(len(COLORS[color]))]
    return np.clip(np.array(listed) + rng.integers(-_JITTER, _JITTER + 1, 3), 0, 255).astype(np.float32)


def tone_on(rng: Random, color: str, ground: Array) -> Array | None:
    """A tone of this name that the contrast rule allows on a ground of this tone; None where none was drawn."""
    for attempt in range(12):
        drawn = tone(rng, color, near_miss=NEAR_MISS if attempt < 6 else 0.0)
        if distance(drawn, ground) >= CONTRAST:
            return drawn
    return None
