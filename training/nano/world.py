"""The world that the bundled model knows: pictures of shapes and handwritten digits, and short clips of one shape.

A `Scene` is a picture with the facts about it; a `Clip` the same over time. What can be asked about them is
`questions`' business. `ease` runs from 1 (one large thing on a flat ground) to 0 (everything the world has).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.nano import draw
from training.nano.draw import Picture, Random

CELL = 32  # pixels a side of one picture token
DIGIT = "digit"
CONTENTS = (*draw.SHAPES, *(str(d) for d in range(10)))
"""What a thing can be, as the dense labels count it; the index after the last is "nothing"."""
TONES = tuple(draw.COLORS)
PLACES = 9  # thirds of the height times thirds of the width
MIDDLES = 3  # none, one, or more things have their middle in a token
LABELS = len(CONTENTS) + 1, len(TONES) + 1, PLACES + 1, MIDDLES
"""How many values each label of a picture token has; of the first three the last one is "nothing"."""
CLOSE = (
    *({"orange", "yellow"}, {"orange", "red"}, {"orange", "pink"}, {"pink", "white"}, {"gray", "white"}),
    *({"purple", "blue"}, {"purple", "black"}, {"blue", "black"}),
)
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
FRAME_RATE = 2.0


@dataclass(frozen=True)
class Thing:
    """One shape or digit. `x`, `y`: its middle, `size`: its width, in pixels."""

    kind: str
    color: str
    x: float
    y: float
    size: int
    digit: int | None = None

    @property
    def content(self) -> str:
        """What it is: a shape's name, or the digit."""
        return self.kind if self.digit is None else str(self.digit)


@dataclass
class Scene:
    """One picture and its facts. `cells`: [rows columns 4] int64, at each picture token what thing it shows, in which
    colour, in which of the picture's nine places the thing is, and how many things have their middle in the token.
    """

    picture: Picture
    things: list[Thing]
    ground: str
    cells: NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """Which frames of a longer clip were sampled: their `indices`, the source's `rate` and `total` frames.

    `stamps`: the seconds of each temporal grid, as the prompt gives them.
    """

    rate: float
    total: int
    indices: tuple[int, ...]
    stamps: tuple[str, ...]


@dataclass
class Clip:
    """Sampled frames with what happens in them.

    `frames`: [n height width 3]; `turn`: the index of the first temporal grid that shows the new colour; `cells`
    [grids rows columns 4].
    """

    frames: Picture
    timing: Timing
    thing: Thing
    ground: str
    cells: NDArray[np.int64]
    move: str | None = None
    turn: int | None = None
    new_color: str | None = None


@dataclass(frozen=True)
class Source:
    """Which scans digits come from, and how far they are warped; `index` fixes the scan."""

    part: str = "train"
    warp: float = 0.75
    index: int | None = None


def far(a: str, b: str) -> bool:
    """Whether two colours can be told apart as ink on ground."""
    return a != b and {a, b} not in CLOSE


def _kind(rng: Random, digit_share: float) -> str:
    return DIGIT if rng.random() < digit_share else draw.SHAPES[rng.integers(len(draw.SHAPES))]


def _mask(thing: Thing, scan: NDArray | None, rng: Random, source: Source, ease: float) -> draw.Array:
    if scan is not None:
        return draw.digit_mask(scan, thing.size, rng, warp=source.warp * (1 - 0.7 * ease))
    turn = 0 if source.warp == 0 or rng.random() < 0.6 + ease / 2 else int(rng.integers(-2, 3)) * 5
    return draw.shape_mask(thing.kind, thing.size, turn)


def _sizes(rng: Random, kinds: list[str], height: int, width: int, ease: float) -> list[int]:
    """A width in pixels for each thing: large while the task is easy, and smaller the more there are."""
    short, long = min(height, width), max(height, width)
    room = [0.88, 0.5, 0.42, 0.38][len(kinds) - 1] * min(short * (1 if len(kinds) == 1 else 1.15), long)
    least = {True: max(40.0, 0.5 * short), False: max(15.0, 0.2 * short)}
    sizes = []
    for kind in kinds:
        low = max(least[kind == DIGIT], ease * 0.7 * room)
        sizes.append(round(rng.uniform(min(low, room), room)))
    return sizes


def _places(rng: Random, sizes: list[int], height: int, width: int) -> list[tuple[float, float]] | None:
    """Middles without overlap, or None when there was no room."""
    placed: list[tuple[float, float]] = []
    for i, size in enumerate(sizes):
        for _ in range(30):
            x = rng.uniform(size / 2, max(size / 2 + 1e-3, width - size / 2))
            y = rng.uniform(size / 2, max(size / 2 + 1e-3, height - size / 2))
            apart = (max(abs(x - px), abs(y - py)) - (size + sizes[j]) / 2 for j, (px, py) in enumerate(placed[:i]))
            if all(gap > 1 for gap in apart):
                placed.append((x, y))
                break
        else:
            return None
    return placed


def label(cells: NDArray[np.int64], canvas_shape: tuple[int, ...], thing: Thing, mask: draw.Array) -> None:
    """Marks the picture tokens that the thing covers enough of, in place."""
    cover = np.zeros((*canvas_shape[:2], 1), dtype=np.float32)
    draw.paint(cover, mask, *corner(thing), np.ones(1, dtype=np.float32))
    rows, columns = cells.shape[:2]
    share = cover.reshape(rows, CELL, columns, CELL).mean((1, 3))
    hit = share > min(0.12, 0.4 * float(share.max()))
    row, column = int(3 * thing.y / canvas_shape[0]), int(3 * thing.x / canvas_shape[1])
    cells[hit, :3] = (CONTENTS.index(thing.content), TONES.index(thing.color), 3 * min(row, 2) + min(column, 2))
    middle = cells[min(int(thing.y / CELL), rows - 1), min(int(thing.x / CELL), columns - 1)]
    middle[3] = min(middle[3] + 1, MIDDLES - 1)


def corner(thing: Thing) -> tuple[int, int]:
    """Top and left pixel of the square that the thing is drawn in."""
    return round(thing.y - thing.size / 2), round(thing.x - thing.size / 2)


def nothing(*shape: int) -> NDArray[np.int64]:
    """Labels of tokens that show the ground alone."""
    cells = np.empty((*shape, len(LABELS)), dtype=np.int64)
    cells[:] = len(CONTENTS), len(TONES), PLACES, 0
    return cells


def scene(
    rng: Random,
    height: int,
    width: int,
    *,
    source: Source,
    ease: float = 0.0,
    digit_share: float = 0.5,
    kinds: list[str] | None = None,
    first: tuple[str, str] | None = None,
    most: int = 4,
    crowded: float = 0.0,
    alike: float = 0.25,
    few: float = 0.0,
) -> Scene:
    """A random picture. `kinds` fixes what is in it; `first` the kind and colour of the first thing; `most` is how many
    things there are at most, `crowded` how often so many, or one less, are tried, `alike` how often all shapes are of
    one kind, `few` how often of the rest they are of two.
    """
    if kinds is None:
        most = min(most, 1 if ease > 0.8 else (2 if min(height, width) <= 64 else 4))
        count = 1 if rng.random() < 0.45 + ease / 2 else int(rng.integers(1, most + 1))
        if rng.random() < crowded:  # digits are large: of these there is room for two
            count, digit_share = int(rng.integers(max(1, most - 1), most + 1)), 0.4 * digit_share
        kinds = [_kind(rng, digit_share) for _ in range(count)]
        if kinds.count(DIGIT) > 2:
            kinds = kinds[:2]
        if kinds[0] != DIGIT and rng.random() < alike:  # several of one kind, to be counted
            kinds = [kinds[0] if k != DIGIT else k for k in kinds]
        elif few and rng.random() < few:  # "how many circles", beside others
            two = [draw.SHAPES[n] for n in rng.choice(len(draw.SHAPES), 2, replace=False)]
            kinds = [two[rng.integers(2)] if k != DIGIT else k for k in kinds]
    if first is not None:
        kinds = [first[0], *kinds[1:]]
    places, sizes = None, []
    while places is None:
        sizes = _sizes(rng, kinds, height, width, ease)
        places = _places(rng, sizes, height, width)
        kinds = kinds if places is not None else (kinds[:-1] or kinds)
    return _draw(rng, height, width, kinds, sizes, places, source, ease, first)


def _draw(
    rng: Random,
    height: int,
    width: int,
    kinds: list[str],
    sizes: list[int],
    places: list[tuple[float, float]],
    source: Source,
    ease: float,
    first: tuple[str, str] | None,
) -> Scene:
    under = _ground_color(rng, ease)
    while first is not None and not far(first[1], under):
        under = _ground_color(rng, ease)
    canvas = draw.ground(rng, height, width, under, plain=rng.random() < 0.55 + ease)
    inks = [c for c in TONES if far(c, under)]
    cells = nothing(height // CELL, width // CELL)
    things: list[Thing] = []
    for i, kind in enumerate(kinds):
        color = first[1] if first is not None and i == 0 else inks[rng.integers(len(inks))]
        digit, scan = _scan(rng, source) if kind == DIGIT else (None, None)
        thing = Thing(kind, color, places[i][0], places[i][1], sizes[i], digit)
        mask = _mask(thing, scan, rng, source, ease)
        draw.paint(canvas, mask, *corner(thing), draw.ink(rng, color))
        label(cells, canvas.shape, thing, mask)
        things.append(thing)
    return Scene(canvas.round().astype(np.uint8), things, under, cells)


def _ground_color(rng: Random, ease: float) -> str:
    if rng.random() < 0.25 + 0.7 * ease:
        return ("white", "white", "black")[rng.integers(3)]
    return TONES[rng.integers(len(TONES))]


def _scan(rng: Random, source: Source) -> tuple[int, NDArray]:
    scans, labels = draw.digits()[source.part]
    index = int(rng.integers(len(scans))) if source.index is None else source.index
    return int(labels[index]), scans[index]


def timing(rng: Random, grids: int) -> Timing:
    """A source of some length and frame rate, sampled down to `2 * grids` frames.

    Frames are sampled by the published rule: two a second, four at least, here eight at most.
    """
    while True:
        rate = float(rng.choice([2, 5, 8, 10, 12, 15, 24, 25, 30]))
        seconds = {2: rng.uniform(0.8, 2.4), 3: rng.uniform(3, 3.5), 4: rng.uniform(4, 9)}[grids]
        total = round(seconds * rate)
        count = min(max(int(total / rate * FRAME_RATE), 4), 8, total)
        if count != 2 * grids:
            continue
        indices = np.linspace(0, total - 1, count).round().astype(int)
        at = indices / rate
        stamps = tuple(f"{(at[i] + at[i + 1]) / 2:.1f}" for i in range(0, count, 2))
        if len(set(stamps)) == grids and len(stamps[-1]) == 3:
            return Timing(rate, total, tuple(indices.tolist()), stamps)


def clip(rng: Random, grids: int, height: int, width: int, *, ease: float = 0.0) -> Clip:
    """A shape that moves, or turns to another colour at some moment, or both, over `2 * grids` frames."""
    count, short = 2 * grids, min(height, width)
    moves, turns = [(True, False), (False, True), (True, True)][rng.choice(3, p=[0.4, 0.4, 0.2])]
    size = round(rng.uniform(max(14, (0.25 + 0.15 * ease) * short), 0.5 * short))
    under = _ground_color(rng, ease)
    inks = [c for c in TONES if far(c, under)]
    color, new = (inks[i] for i in rng.choice(len(inks), 2, replace=False))
    kind = draw.SHAPES[rng.integers(len(draw.SHAPES))]
    start, end, move = _path(rng, height, width, size, moves)
    turn_frame = count
    if turns:  # as a temporal grid begins: the time stamps tell no more than that
        turn_frame = 2 * int(rng.integers(1, grids))
    canvas = draw.ground(rng, height, width, under, plain=rng.random() < 0.5 + ease)
    inked = {name: draw.ink(rng, name) for name in (color, new)}
    mask = draw.shape_mask(kind, size, 0)
    cells = nothing(grids, height // CELL, width // CELL)
    frames = np.empty((count, height, width, 3), dtype=np.uint8)
    for f in range(count):
        x, y = start + (end - start) * (f / (count - 1))
        now = new if f >= turn_frame else color
        thing = Thing(kind, now, float(x), float(y), size)
        frame = canvas.copy()
        draw.paint(frame, mask, *corner(thing), inked[now])
        frames[f] = frame.round().astype(np.uint8)
        if f % 2 == 1:
            label(cells[f // 2], frame.shape, thing, mask)
    first = Thing(kind, color, float(start[0]), float(start[1]), size)
    turn = turn_frame // 2 if turns else None
    return Clip(frames, timing(rng, grids), first, under, cells, move, turn, new if turns else None)


def _path(rng: Random, height: int, width: int, size: int, moves: bool) -> tuple[NDArray, NDArray, str | None]:
    """Where a thing starts and ends, and which way that is; None when it stays."""
    low, high = np.full(2, size / 2), np.array([width, height]) - size / 2
    start = rng.uniform(low, high)
    if not moves:
        return start, start, None
    move = list(DIRECTIONS)[rng.integers(4)]
    step = np.array(DIRECTIONS[move], dtype=float)
    axis = int(step[0] == 0)
    room = high[axis] - low[axis]
    way = rng.uniform(0.55, 1.0) * room
    if step[axis] > 0:
        start[axis] = rng.uniform(low[axis], high[axis] - way)
    else:
        start[axis] = rng.uniform(low[axis] + way, high[axis])
    return start, start + step * way, move
