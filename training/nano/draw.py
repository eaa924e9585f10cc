"""Draws the parts of the training world with numpy: anti-aliased shapes, digits, grounds of many kinds.

Everything here is a mask or an image; what is put where, and what is asked about it, is for `world` and `questions`.
Masks are float32 in [0, 1], images uint8 [height width 3].
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from training.nano import fonts
from training.nano.colors import Array, Random, tone

Image = NDArray[np.uint8]

SHAPES = ("circle", "square", "triangle", "star", "cross")
HELD_OUT_DIGITS = 360
VALIDATION_DIGITS = 77
_SCAN = 32  # side that a scan of 8 x 8 is brought to before it is warped


def _star() -> list[tuple[float, float]]:
    points = [(np.deg2rad(36 * k - 90), 1.0 if k % 2 == 0 else 0.42) for k in range(10)]
    return [(r * np.cos(a), r * np.sin(a)) for a, r in points]


_ARM, _END = 0.29, 0.95
CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)],
    "triangle": [(0.0, -0.95), (0.95, 0.8), (-0.95, 0.8)],
    "star": _star(),
    "cross": [
        *((-_ARM, -_END), (_ARM, -_END), (_ARM, -_ARM), (_END, -_ARM), (_END, _ARM), (_ARM, _ARM)),
        *((_ARM, _END), (-_ARM, _END), (-_ARM, _ARM), (-_END, _ARM), (-_END, -_ARM), (-_ARM, -_ARM)),
    ],
}
"""Corners of each shape in a square from -1 to 1; turned about its middle they stay within a radius of about 1.2."""


def _signed_distance(x: Array, y: Array, corners: list[tuple[float, float]]) -> Array:
    """Distance to a polygon's edge, below zero inside it."""
    nearest = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        ex, ey, px, py = bx - ax, by - ay, x - ax, y - ay
        along = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
        nearest = np.minimum(nearest, (px - along * ex) ** 2 + (py - along * ey) ** 2)
        crosses = (ay > y) != (by > y)
        inside ^= crosses & (x < ax + (y - ay) * ex / (ey or 1e-9))
    return np.where(inside, -1, 1) * np.sqrt(nearest)


@lru_cache(maxsize=20000)
def shape_mask(shape: str, size: int, turn: int = 0, outline: int = 0) -> Array:
    """[size size]: coverage of a shape in a square of `size` pixels, turned by `turn` degrees.

    `outline`: width of its line in pixels; 0 fills the shape. A turned shape is made smaller where it would leave the
    square.
    """
    half = size / 2
    y, x = ((np.mgrid[0:size, 0:size] + 0.5) / half - 1).astype(np.float32)
    angle = np.deg2rad(turn)
    x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    if shape == "circle":
        away = np.sqrt(x * x + y * y) - 1
    else:
        corners = np.array(CORNERS[shape])
        turned = corners @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        shrink = min(1.0, 1.0 / float(abs(turned).max()))
        away = _signed_distance(x, y, [(shrink * a, shrink * b) for a, b in CORNERS[shape]])
    away = away * half
    if outline:
        away = np.abs(away + outline / 2) - outline / 2
    return np.clip(0.5 - away, 0, 1).astype(np.float32)


@cache
def digits() -> dict[str, tuple[Array, NDArray[np.int64]]]:
    """`train`, `validation` and `test`: handwritten scans [n 32 32] in [0, 1], and which digit each is.

    scikit-learn's 1797 scans (UCI's optical recognition set). The last 360 are the test; they are never trained on.
    """
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    side = np.pad(scans.reshape(-1, 8, 8) / 16, ((0, 0), (1, 1), (1, 1)))
    zoomed = zoom(side, (1, _SCAN / 10, _SCAN / 10), order=3, grid_mode=True, mode="grid-constant")
    smooth = np.clip(np.asarray(zoomed, dtype=np.float32), 0, 1)
    a, b = len(smooth) - HELD_OUT_DIGITS - VALIDATION_DIGITS, len(smooth) - HELD_OUT_DIGITS
    parts = {"train": slice(0, a), "validation": slice(a, b), "test": slice(b, None)}
    return {name: (smooth[part], labels[part].astype(np.int64)) for name, part in parts.items()}


def digit(rng: Random, part: str, printed: float) -> tuple[int, Array]:
    """A digit and its mask: with the chance `printed` from a font, else a handwritten scan of this part."""
    masks, labels = fonts.printed() if rng.random() < printed else digits()[part]
    index = int(rng.integers(len(masks)))
    return int(labels[index]), masks[index]


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
    """[cells cells 32 32]: smooth bumps that an elastic warp is summed from."""
    grid = (np.arange(_SCAN) + 0.5) / _SCAN * (cells - 1)
    near = np.clip(1 - abs(grid[None] - np.arange(cells)[:, None]), 0, 1)
    near = near * near * (3 - 2 * near)
    return np.einsum("ay,bx->abyx", near, near).astype(np.float32)


def digit_mask(scan: Array, size: int, rng: Random, *, warp: float, turn: float = 0.0) -> Array:
    """[size size]: a scan or a printed digit drawn `size` pixels wide, turned by `turn` degrees.

    `warp` 0 draws it as it is. At 1 it is also turned by up to 20 degrees, sheared, stretched, bent and made thicker or
    thinner, each by chance.
    """
    step = _SCAN / size
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    x, y = (x + 0.5) * step - 0.5, (y + 0.5) * step - 0.5
    low, high = 0.25, 0.75
    if warp > 0 or turn:
        x, y = _warped(x, y, rng, warp, turn)
    if warp > 0:
        middle = 0.5 + warp * rng.uniform(-0.25, 0.2)
        soft = 0.25 + warp * rng.uniform(-0.15, 0.25)
        low, high = max(0.02, middle - soft), middle + soft  # above zero, or the scan's own square would show
    grow = scan.shape[0] / _SCAN
    value = _sample(scan, (x + 0.5) * grow - 0.5, (y + 0.5) * grow - 0.5)
    return np.clip((value - low) / (high - low), 0, 1).astype(np.float32)


def _warped(x: Array, y: Array, rng: Random, warp: float, turn: float) -> tuple[Array, Array]:
    """Where each pixel is read from: an affine map about the middle plus a smooth bend."""
    middle = (_SCAN - 1) / 2
    angle, shear = np.deg2rad(turn + warp * rng.uniform(-20, 20)), warp * rng.uniform(-0.3, 0.3)
    shrink = 1 - 0.25 * min(1.0, abs(turn) / 45)  # a turned digit stays within its square
    grow_x, grow_y = shrink * np.exp(warp * rng.uniform(-0.22, 0.16, 2))
    push = rng.normal(0, warp * 1.1, (2, 4, 4)).astype(np.float32)
    field = np.tensordot(push, _waves(4), axes=([1, 2], [0, 1]))
    row = np.clip(y.round().astype(np.int32), 0, _SCAN - 1)
    column = np.clip(x.round().astype(np.int32), 0, _SCAN - 1)
    dx, dy = (x - middle), (y - middle)
    turned_x = (np.cos(angle) * dx + np.sin(angle) * dy) / grow_x
    turned_y = (np.cos(angle) * dy - np.sin(angle) * dx) / grow_y
    turned_x = turned_x + shear * turned_y
    new_x = turned_x + middle + field[0][row, column] + warp * rng.uniform(-1.5, 1.5)
    new_y = turned_y + middle + field[1][row, column] + warp * rng.uniform(-1.5, 1.5)
    return new_x.astype(np.float32), new_y.astype(np.float32)


TEXTURES = ("shaded", "striped", "checkered", "grainy", "blotched", "dotted")


def ground(rng: Random, height: int, width: int, color: str, *, plain: bool) -> tuple[Array, Array]:
    """A ground of one named color, [height width 3] float32, flat or textured; and the tone that it varies about."""
    base = tone(rng, color)
    if plain:
        return np.broadcast_to(base, (height, width, 3)).copy(), base
    texture = TEXTURES[rng.integers(len(TEXTURES))]
    pattern = _texture(rng, height, width, texture)
    swing = rng.uniform(8, 34) * rng.choice([-1, 1])
    return np.clip(base + swing * pattern[..., None], 0, 255).astype(np.float32), base


def _texture(rng: Random, height: int, width: int, texture: str) -> Array:
    """[height width], about -0.5 to 0.5."""
    if texture == "grainy":
        return rng.standard_normal((height, width), dtype=np.float32) * 0.4
    if texture == "blotched":
        cells = rng.uniform(-0.5, 0.5, (2 + height // 24, 2 + width // 24)).astype(np.float32)
        rows, columns = (np.linspace(0, n - 1.001, s) for n, s in zip(cells.shape, (height, width), strict=True))
        a, b = rows.astype(int), columns.astype(int)
        fa, fb = (rows - a)[:, None], (columns - b)[None]
        upper = cells[a][:, b] * (1 - fb) + cells[a][:, b + 1] * fb
        lower = cells[a + 1][:, b] * (1 - fb) + cells[a + 1][:, b + 1] * fb
        return upper * (1 - fa) + lower * fa
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    if texture == "dotted":
        pitch = rng.uniform(5, 14)
        return (np.hypot(x % pitch - pitch / 2, y % pitch - pitch / 2) < 0.3 * pitch) - np.float32(0.5)
    if texture == "checkered":
        cell = rng.integers(5, 20)
        return ((x // cell + y // cell) % 2) - np.float32(0.5)
    angle = rng.uniform(0, 2 * np.pi)
    along = np.cos(angle) * x + np.sin(angle) * y
    if texture == "shaded":
        return (along - along.min()) / (np.ptp(along) or 1) - 0.5
    return np.sign(np.sin(along * 2 * np.pi / rng.uniform(6, 30))) / 2


def noise(rng: Random, height: int, width: int) -> Image:
    """[height width 3] noise that shows nothing: of single pixels or coarser, in color or gray, of any brightness."""
    cell, channels = int(rng.choice([1, 1, 1, 2, 3, 4])), int(rng.choice([1, 3, 3]))
    shape = (-(-height // cell), -(-width // cell), channels)
    if rng.random() < 0.5:
        values = rng.integers(0, 256, shape).astype(np.float32)
    else:
        values = rng.uniform(80, 175) + rng.standard_normal(shape, dtype=np.float32) * rng.uniform(40, 90)
    values = np.repeat(np.repeat(values, cell, 0), cell, 1)[:height, :width]
    return np.broadcast_to(np.clip(values, 0, 255), (height, width, 3)).astype(np.uint8)


def paint(canvas: Array, mask: Array, top: int, left: int, color: Array) -> None:
    """Puts `color` through `mask` onto `canvas`, in place; what falls outside is cut."""
    a, b = max(0, -top), max(0, -left)
    mask = mask[a : max(a, canvas.shape[0] - top), b : max(b, canvas.shape[1] - left)]
    if mask.size == 0:
        return
    top, left = max(0, top), max(0, left)
    under = canvas[top : top + mask.shape[0], left : left + mask.shape[1]]
    under += mask[..., None] * (color - under)
