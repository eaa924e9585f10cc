"""Printed digits of the training: masks of 0 to 9 in every training font.

The faces come with matplotlib (the DejaVu families) and, where they are installed, from the small font packages of
`PACKAGES`. matplotlib's other faces and Pillow's built-in one are kept for the examination (`exam_draw`) and are never
loaded here.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

PACKAGES = (
    *("font_roboto", "font_source_sans_pro", "font_source_serif_pro", "font_caladea", "font_hanken_grotesk"),
    *("font_manrope", "font_lato", "font_fredoka_one", "font_amatic_sc", "font_intuitive"),
)
GLYPH = 48  # pixels a side of a mask
_DRAWN = 200  # points at which a face is drawn before it is brought to that side


def training_faces() -> list[Path]:
    """Files of the faces that are trained on."""
    faces: list[Path] = []
    for name in ("matplotlib", *PACKAGES):
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        pattern = "mpl-data/fonts/ttf/DejaVu*.ttf" if name == "matplotlib" else "**/*.[to]tf"
        faces += sorted(Path(spec.submodule_search_locations[0]).glob(pattern))
    return [path for path in faces if "Display" not in path.stem and "Awesome" not in path.stem]


def glyph(face: Path, digit: int) -> NDArray[np.float32]:
    """[GLYPH GLYPH] in [0, 1]: a digit that fills the height of its square, in the middle."""
    font = ImageFont.truetype(str(face), _DRAWN)
    canvas = Image.new("L", (2 * _DRAWN, 2 * _DRAWN))
    ImageDraw.Draw(canvas).text((_DRAWN // 2, _DRAWN // 2), str(digit), fill=255, font=font)
    inside = canvas.crop(canvas.getbbox())
    side = round(max(inside.size) * 1.12)
    square = Image.new("L", (side, side))
    square.paste(inside, ((side - inside.width) // 2, (side - inside.height) // 2))
    return (np.asarray(square.resize((GLYPH, GLYPH), Image.Resampling.BOX)) / 255).astype(np.float32)


@cache
def printed() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Masks [faces * 10, GLYPH, GLYPH] of every training face, and which digit each is."""
    faces = training_faces()
    masks = [glyph(face, digit) for face in faces for digit in range(10)]
    return np.stack(masks), np.tile(np.arange(10), len(faces))
