"""Draws the world's parts with numpy: anti-aliased shapes, real handwritten digits, grounds of many kinds.

Everything here is a mask or a picture; what is put where, and what is asked about it, is `world`'s business.
Masks are float32 in [0, 1], pictures uint8 [height width 3].
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Picture = NDArray[np.uint8]
Random = np.random.Generator

SHAPES = ("circle", "square", "triangle", "star", "cross")

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

HELD_OUT_DIGITS = 360
VALIDATION_DIGITS = 77
_OVER = 4  # supersampling of the shape masks
_DIGIT = 32  # side that a scan of 8 x 8 is brought to before it is warped


def ink(rng: Random, color: str, *, jitter: int = 10) -> Array:
    """[3] float32: one of the tones that go by this name, a little off."""
    tone = COLORS[color][rng.integers(len(COLORS[color]))]
    return np.clip(np.array(tone) + rng.integers(-jitter, jitter + 1, 3), 0, 255).astype(np.float32)


def _polygon(x: Array, y: Array, corners: list[tuple[float, float]]) -> NDArray[np.bool_]:
    inside = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        crosses = (ay > y) != (by > y)
        inside ^= crosses & (x < ax + (y - ay) * (bx - ax) / ((by - ay) or 1e-9))
    return inside


@lru_cache(maxsize=4096)
def shape_mask(shape: str, size: int, turn: int) -> Array:
    """[size size]: coverage of the shape that fills a square of `size` pixels, turned by `turn` degrees."""
    n = size * _OVER
    y, x = (np.mgrid[0:n, 0:n] + 0.5) / n * 2 - 1
    angle = np.deg2rad(turn)
    x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    if shape == "circle":
        hit = x * x + y * y < 1
    elif shape == "square":
        hit = np.maximum(abs(x), abs(y)) < 0.86
    elif shape == "triangle":
        hit = _polygon(x, y, [(0.0, -0.95), (0.95, 0.8), (-0.95, 0.8)])
    elif shape == "star":
        points = [(np.deg2rad(36 * k - 90), 1.0 if k % 2 == 0 else 0.42) for k in range(10)]
        hit = _polygon(x, y, [(r * np.cos(a), r * np.sin(a)) for a, r in points])
    else:
        hit = (np.minimum(abs(x), abs(y)) < 0.29) & (np.maximum(abs(x), abs(y)) < 0.95)
    return hit.reshape(size, _OVER, size, _OVER).mean((1, 3), dtype=np.float32)


@cache
def digits() -> dict[str, tuple[Array, NDArray[np.int64]]]:
    """`train`, `validation` and `test`: scans [n 32 32] in [0, 1], and which digit each is.

    scikit-learn's 1797 scans (UCI's optical recognition set). The last 360 are the test; they are never trained on.
    """
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    side = np.pad(scans.reshape(-1, 8, 8) / 16, ((0, 0), (1, 1), (1, 1)))
    zoomed = zoom(side, (1, _DIGIT / 10, _DIGIT / 10), order=3, grid_mode=True, mode="grid-constant")
    smooth = np.clip(np.asarray(zoomed, dtype=np.float32), 0, 1)
    a, b = len(smooth) - HELD_OUT_DIGITS - VALIDATION_DIGITS, len(smooth) - HELD_OUT_DIGITS
    parts = {"train": slice(0, a), "validation": slice(a, b), "test": slice(b, None)}
    return {name: (smooth[part], labels[part].astype(np.int64)) for name, part in parts.items()}


def _sample(scan: Array, x: Array, y: Array) -> Array:
    """Bilinear values of a scan at pixel coordinates; nothing outside it."""
    n = scan.shape[0]
    padded = np.pad(scan, 1)
    x, y = np.clip(x + 1, 0, n + 0.999), np.clip(y + 1, 0, n + 0.999)
    x0, y0 = x.astype(np.int32), y.astype(np.int32)
    fx, fy = x - x0, y - y0
    at = y0 * (n + 2) + x0
    flat = padded.ravel()
    top = flat[at] * (1 - fx) + flat[at + 1] * fx
    low = flat[at + n + 2] * (1 - fx) + flat[at + n + 3] * fx
    return (top * (1 - fy) + low * fy).astype(np.float32)


@cache
def _waves(cells: int) -> Array:
    """[2 cells cells 32 32] smooth bumps that an elastic warp is summed from."""
    grid = (np.arange(_DIGIT) + 0.5) / _DIGIT * (cells - 1)
    near = np.clip(1 - abs(grid[None] - np.arange(cells)[:, None]), 0, 1)
    near = near * near * (3 - 2 * near)
    return np.einsum("ay,bx->abyx", near, near).astype(np.float32)


def digit_mask(scan: Array, size: int, rng: Random, *, warp: float) -> Array:
    """[size size]: a scan drawn `size` pixels wide.

    `warp` 0 draws it as scanned. At 1 it is turned by up to 20 degrees, sheared, stretched, bent and made thicker or
    thinner, each by chance.
    """
    step = _DIGIT / size
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    x, y = (x + 0.5) * step - 0.5, (y + 0.5) * step - 0.5
    low, high = 0.25, 0.75
    if warp > 0:
        x, y = _warped(x, y, rng, warp)
        middle = 0.5 + warp * rng.uniform(-0.25, 0.2)
        soft = 0.25 + warp * rng.uniform(-0.15, 0.25)
        low, high = max(0.02, middle - soft), middle + soft  # above zero, or the scan's own square would show
    value = _sample(scan, x, y)
    return np.clip((value - low) / (high - low), 0, 1).astype(np.float32)


def _warped(x: Array, y: Array, rng: Random, warp: float) -> tuple[Array, Array]:
    """Where each pixel is read from: an affine map about the middle plus a smooth bend."""
    middle = (_DIGIT - 1) / 2
    angle, shear = warp * np.deg2rad(rng.uniform(-20, 20)), warp * rng.uniform(-0.3, 0.3)
    grow_x, grow_y = np.exp(warp * rng.uniform(-0.22, 0.16, 2))
    bend = _waves(4)
    push = rng.normal(0, warp * 1.1, (2, 4, 4)).astype(np.float32)
    field = np.tensordot(push, bend, axes=([1, 2], [0, 1]))
    row = np.clip(y.round().astype(np.int32), 0, _DIGIT - 1)
    column = np.clip(x.round().astype(np.int32), 0, _DIGIT - 1)
    dx, dy = (x - middle), (y - middle)
    turned_x = (np.cos(angle) * dx + np.sin(angle) * dy) / grow_x
    turned_y = (np.cos(angle) * dy - np.sin(angle) * dx) / grow_y
    turned_x = turned_x + shear * turned_y
    new_x = turned_x + middle + field[0][row, column] + warp * rng.uniform(-1.5, 1.5)
    new_y = turned_y + middle + field[1][row, column] + warp * rng.uniform(-1.5, 1.5)
    return new_x.astype(np.float32), new_y.astype(np.float32)


def ground(rng: Random, height: int, width: int, color: str, *, plain: bool) -> Array:
    """[height width 3] float32: a ground of one named colour; flat, shaded, striped, chequered or grainy."""
    base = ink(rng, color)
    kind = 0 if plain else rng.choice(5, p=[0.35, 0.2, 0.12, 0.08, 0.25])
    if kind == 0:
        return np.broadcast_to(base, (height, width, 3)).copy()
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    if kind == 4:
        pattern = rng.standard_normal((height, width, 1), dtype=np.float32) * rng.uniform(3, 14)
        return np.clip(base + pattern, 0, 255).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    along = np.cos(angle) * x + np.sin(angle) * y
    if kind == 1:
        pattern = (along - along.min()) / (np.ptp(along) or 1) - 0.5
    elif kind == 2:
        pattern = np.sign(np.sin(along * 2 * np.pi / rng.uniform(6, 30))) / 2
    else:
        cell = rng.integers(5, 20)
        pattern = ((x // cell + y // cell) % 2) - 0.5
    swing = rng.uniform(8, 34) * rng.choice([-1, 1])
    return np.clip(base + swing * pattern[..., None], 0, 255).astype(np.float32)


def paint(canvas: Array, mask: Array, top: int, left: int, color: Array) -> None:
    """Puts `color` through `mask` onto `canvas`, in place; what falls outside is cut."""
    a, b = max(0, -top), max(0, -left)
    mask = mask[a : max(a, canvas.shape[0] - top), b : max(b, canvas.shape[1] - left)]
    if mask.size == 0:
        return
    top, left = max(0, top), max(0, left)
    spot = canvas[top : top + mask.shape[0], left : left + mask.shape[1]]
    spot += mask[..., None] * (color - spot)
