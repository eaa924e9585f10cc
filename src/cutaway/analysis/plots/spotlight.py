"""Images in their own colours, veiled where a value is low: for values whose images must be seen to be understood.

It knows images and numbers; what the value is, the caller says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.analysis.plots.figures import new, overlay
from cutaway.inputs.geometry.overlay import upsample
from cutaway.inputs.image.open import read_image

VEIL, DEEPEST = 0.45, 0.85
"""The veil's grey, and how much of the image it hides where the value is zero."""


@dataclass(frozen=True)
class Spot:
    """An image (or None), its values [rows columns], the box to outline in pixels, a title."""

    background: Any
    cells: np.ndarray
    box: tuple[float, float, float, float]
    title: str


def spotlights(spots: Sequence[Spot], *, title: str, columns: int) -> Any:
    """Images side by side, clear where the value is as high as in any of them, veiled where it is zero."""
    rows = -(-len(spots) // columns)
    figure, places = new(2.2 * columns + 0.4, 2.4 * rows + 0.4, len(spots), columns)
    most = max(float(np.nanmax(spot.cells)) for spot in spots) or 1.0
    for axes, spot in zip(places, spots, strict=True):
        if spot.background is None:
            overlay(axes, None, spot.cells, title=spot.title, limits=(0.0, most))
            continue
        pixels = read_image(spot.background).permute(1, 2, 0).numpy() / 255
        share = np.clip(np.nan_to_num(spot.cells) / most, 0, 1).astype(np.float32)
        hidden = DEEPEST * (1 - upsample(share, (pixels.shape[0], pixels.shape[1])))[..., None]
        axes.imshow(pixels * (1 - hidden) + VEIL * hidden)
        left, top, right, bottom = spot.box
        axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color="black", linewidth=1.5)
        axes.set_title(spot.title, fontsize=10)
        axes.set_axis_off()
    figure.suptitle(f"{title}; clear where strong, outlined where strongest", fontsize=10)
    return figure
