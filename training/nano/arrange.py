"""Where the things of an image stand: in a row, a column, a grid, a cluster, or free.

Every arrangement gives the middle of each thing and one common scale for their sizes, without overlap, so that any
number of things is shown as often as it was drawn.
"""

from __future__ import annotations

import numpy as np

from training.nano.colors import Random

ARRANGEMENTS = ("free", "row", "column", "grid", "cluster")
Middles = list[tuple[float, float]]
GAP = 2.0  # pixels between two things, at least


def arrange(rng: Random, arrangement: str, sizes: list[int], height: int, width: int) -> tuple[Middles, list[int]]:
    """Middles (x, y) and sizes in pixels of things of about these `sizes`; smaller ones where there is no room."""
    if arrangement == "free" or len(sizes) < 2:
        return _free(rng, sizes, height, width)
    count = len(sizes)
    if arrangement == "cluster":
        side = max(sizes) * (1.2 + 0.62 * np.sqrt(count))
        part_h, part_w = min(height, side), min(width, side)
        middles, smaller = _free(rng, sizes, part_h, part_w)
        left, top = rng.uniform(0, width - part_w + 1e-6), rng.uniform(0, height - part_h + 1e-6)
        return [(x + left, y + top) for x, y in middles], smaller
    columns = {"row": count, "column": 1}.get(arrangement, -(-count // (2 if count < 5 else int(rng.choice([2, 3])))))
    rows = -(-count // columns)
    return _lines(rng, sizes, rows, columns, height, width)


def _lines(
    rng: Random, sizes: list[int], rows: int, columns: int, height: int, width: int
) -> tuple[Middles, list[int]]:
    """Things in `rows` lines of `columns`, evenly, a little off the line or exactly on it."""
    largest = min((width - 2) / columns - GAP, (height - 2) / rows - GAP)
    scale = min(1.0, largest / max(sizes))
    smaller = [max(8, int(size * scale)) for size in sizes]
    size = max(smaller)
    pitch = [
        size + GAP + rng.random() * ((side - size - 2) / (n - 1) - size - GAP) if n > 1 else 0.0
        for side, n in ((width, columns), (height, rows))
    ]
    left, top = (
        rng.uniform(size / 2 + 1, max(size / 2 + 1.001, side - 1 - size / 2 - p * (n - 1)))
        for side, p, n in ((width, pitch[0], columns), (height, pitch[1], rows))
    )
    wobble = 0.0 if rng.random() < 0.6 else 1.0
    middles = []
    for i in range(len(sizes)):
        slack = [
            wobble * max(0.0, (p - size - GAP) / 2 if n > 1 else 0.1 * size)
            for p, n in zip(pitch, (columns, rows), strict=True)
        ]
        x = left + pitch[0] * (i % columns) + rng.uniform(-1, 1) * slack[0]
        y = top + pitch[1] * (i // columns) + rng.uniform(-1, 1) * slack[1]
        middles.append((float(np.clip(x, size / 2, width - size / 2)), float(np.clip(y, size / 2, height - size / 2))))
    return middles, smaller


def _free(rng: Random, sizes: list[int], height: float, width: float) -> tuple[Middles, list[int]]:
    """Random middles; all things shrink by a tenth each time no room is left."""
    sizes = [max(8, int(min(size, height - 2, width - 2))) for size in sizes]
    while True:
        middles = _attempt(rng, sizes, height, width)
        if middles is not None:
            return middles, sizes
        sizes = [max(8, int(0.9 * size)) for size in sizes]


def _attempt(rng: Random, sizes: list[int], height: float, width: float) -> Middles | None:
    placed: Middles = []
    for size in sizes:
        tries = rng.random((30, 2)) * (width - size, height - size) + size / 2
        for x, y in tries.tolist():
            if all(max(abs(x - px), abs(y - py)) > (size + sizes[j]) / 2 + GAP for j, (px, py) in enumerate(placed)):
                placed.append((x, y))
                break
        else:
            return None
    return placed
