"""Draws the examination's images with Pillow, by code of its own: nothing here comes from the training's world.

Shapes are polygons of other proportions than the training's, drawn four times too large and brought down; colors are
plain CSS tones; printed digits are set in faces that were never trained on. Images are uint8 [height width 3].
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
Point = tuple[float, float]

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLORS = {
    "red": "#e60000",
    "orange": "#ff8c00",
    "yellow": "#ffee00",
    "green": "#008f00",
    "blue": "#1030e0",
    "purple": "#800080",
    "pink": "#ff9ec4",
    "black": "#080808",
    "white": "#fafafa",
    "gray": "#858585",
}
OUTSIDE_COLORS = {"brown": "#6b4423", "cyan": "#00d0d0", "olive": "#808000", "navy": "#000060", "beige": "#e8dcc0"}
FACES = ("cmr10", "cmss10", "cmtt10", "cmb10", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "Pillow")
"""Faces of the printed digits: matplotlib's that the training does not have, and Pillow's built-in one."""
HELD_OUT_SCANS = 360
_OVER = 4


def ground(height: int, width: int, color: str, texture: str = "flat", seed: int = 0) -> Image.Image:
    """A ground at the drawing size: "flat", "lines" or "checks" in two near tones, "speckled", or "shaded"."""
    base = np.array(Image.new("RGB", (1, 1), {**COLORS, **OUTSIDE_COLORS}[color]))[0, 0].astype(float)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    swing = 12.0 if base.mean() < 128 else -12.0
    if texture == "lines":
        offset = swing * ((x + 2 * y) // 7 % 2)
    elif texture == "checks":
        offset = swing * ((x // 9 + y // 9) % 2)
    elif texture == "shaded":
        offset = swing * (x / width + y / height)
    elif texture == "speckled":
        offset = rng.normal(0, 7, (height, width))
    else:
        offset = np.zeros((height, width))
    pixels = np.clip(base + offset[..., None], 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize((width * _OVER, height * _OVER), Image.Resampling.NEAREST)


def finished(canvas: Image.Image) -> Pixels:
    """The image at its own size."""
    return np.array(canvas.resize((canvas.width // _OVER, canvas.height // _OVER), Image.Resampling.BOX))


def _ring(corners: int, radii: tuple[float, ...], turn: float) -> list[Point]:
    points = []
    for k in range(corners):
        angle, radius = math.radians(turn - 90 + 360 * k / corners), radii[k % len(radii)]
        points.append((radius * math.cos(angle), radius * math.sin(angle)))
    return points


def _corners(shape: str, turn: float) -> list[Point]:
    """Corners about the middle, within a radius of one."""
    if shape == "square":
        return _ring(4, (1.0,), turn + 45)
    if shape == "triangle":
        return _ring(3, (1.0,), turn)
    if shape == "star":
        return _ring(10, (1.0, 0.45), turn)
    if shape == "hexagon":
        return _ring(6, (1.0,), turn)
    arm, end = 0.3, 0.93
    quarter = [(-arm, -end), (arm, -end), (arm, -arm)]
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    points = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return [(cos * x - sin * y, sin * x + cos * y) for x, y in points]


def shape(
    canvas: Image.Image, kind: str, color: str, x: float, y: float, radius: float, *, turn: float = 0, line: float = 0
) -> None:
    """Draws a shape about (x, y), in pixels of the finished image; `line`: its outline's width, 0 fills it."""
    draw, ink = ImageDraw.Draw(canvas), {**COLORS, **OUTSIDE_COLORS}[color]
    x, y, radius, width = x * _OVER, y * _OVER, radius * _OVER, round(line * _OVER)
    if kind in ("circle", "ellipse"):
        flat = 0.55 if kind == "ellipse" else 1.0
        box = (x - radius, y - flat * radius, x + radius, y + flat * radius)
        draw.ellipse(box, fill=None if line else ink, outline=ink, width=width or 1)
        return
    points = [(x + radius * px, y + radius * py) for px, py in _corners(kind, turn)]
    if line:
        inside = Image.new("1", canvas.size)
        ImageDraw.Draw(inside).polygon(points, fill=1)
        stroke = Image.new("1", canvas.size)
        ImageDraw.Draw(stroke).line([*points, points[0], points[1]], fill=1, width=2 * width, joint="curve")
        both = Image.fromarray(np.asarray(inside) & np.asarray(stroke))
        canvas.paste(ink, mask=both)
    else:
        draw.polygon(points, fill=ink)


@cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if face == "Pillow":
        return ImageFont.load_default(size)
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"), size)


def _paste(canvas: Image.Image, mask: Image.Image, color: str, x: float, y: float, turn: float) -> None:
    if turn:
        mask = mask.rotate(-turn, Image.Resampling.BICUBIC, expand=True)
    corner = round(x * _OVER - mask.width / 2), round(y * _OVER - mask.height / 2)
    canvas.paste({**COLORS, **OUTSIDE_COLORS}[color], (*corner, corner[0] + mask.width, corner[1] + mask.height), mask)


def printed(
    canvas: Image.Image, text: str, face: str, color: str, x: float, y: float, height: float, *, turn: float = 0
) -> None:
    """Prints a digit, or a letter, `height` pixels high about (x, y)."""
    font = _font(face, 240)
    large = Image.new("L", (600, 600))
    ImageDraw.Draw(large).text((150, 150), text, fill=255, font=font)
    glyph = large.crop(large.getbbox())
    scale = height * _OVER / glyph.height
    glyph = glyph.resize((max(1, round(glyph.width * scale)), round(glyph.height * scale)), Image.Resampling.BICUBIC)
    _paste(canvas, glyph, color, x, y, turn)


@cache
def scans() -> tuple[NDArray, NDArray]:
    """The handwritten digits [360 8 8] in [0, 1] that are kept out of the training, and which digit each is."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images[-HELD_OUT_SCANS:].reshape(-1, 8, 8) / 16, labels[-HELD_OUT_SCANS:]


def handwritten(
    canvas: Image.Image, index: int, color: str, x: float, y: float, size: float, *, turn: float = 0
) -> str:
    """Draws a held-out scan `size` pixels wide about (x, y); returns which digit it is."""
    images, labels = scans()
    padded = np.pad(images[index], 1)
    side = round(size * _OVER)
    smooth = Image.fromarray((padded * 255).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    sharp = np.clip((np.asarray(smooth, dtype=float) / 255 - 0.3) / 0.4, 0, 1)
    _paste(canvas, Image.fromarray((255 * sharp).astype(np.uint8)), color, x, y, turn)
    return str(labels[index])


def noise(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Noise of single pixels, in color or in gray."""
    channels = int(rng.choice([1, 3]))
    values = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return np.repeat(values, 3 // channels, axis=2)
