"""The world that the bundled model is trained on: images of shapes and digits, and short videos of one shape.

A `Scene` is an image with the facts about it; a `Video` the same over time. What can be asked about them is in
`questions`. `ease` runs from 1 (one large thing on a flat ground) to 0 (everything the world has).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.nano import draw
from training.nano.arrange import ARRANGEMENTS, arrange
from training.nano.colors import NAMES, Array, Random, tone_on
from training.nano.draw import SHAPES, Image

CELL = 32  # pixels a side of one image token
DIGIT = "digit"
KINDS = (*SHAPES, DIGIT)
CONTENTS = (*SHAPES, *(str(d) for d in range(10)))
"""What a thing can be, as the dense labels count it; the index after the last is "nothing"."""
NINTHS = 9  # thirds of the height times thirds of the width
MOST = 6  # things in one image
LEAST = 12  # pixels that a thing is wide, at least
MIDDLES = 4  # how many things have their middle in a token: none, one, two, or more
NAMED = len(CONTENTS) + 1, len(NAMES) + 1, NINTHS + 1, MIDDLES
"""How many values the first labels of an image token have; of the first three the last value is "nothing"."""
PARTS, PART_VALUES = len(KINDS) + len(NAMES), 3
"""The other labels: of how many things of each kind and of each color the middle is in the token (none, one, more)."""
LABELS = len(NAMED) + PARTS
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
FRAME_RATE = 2.0
HELD_OUT_RATES = 3.0, 4.0, 6.0, 20.0
"""Frames a second that no training video has, nor any within a tenth of them; they are kept for the examination."""


@dataclass(frozen=True)
class Thing:
    """One shape or digit. `x`, `y`: its middle, `size`: its width, `outline`: its line's width (0: filled), in pixels;
    `turn`: degrees.
    """

    kind: str
    color: str
    x: float
    y: float
    size: int
    digit: int | None = None
    turn: int = 0
    outline: int = 0

    @property
    def content(self) -> str:
        """What it is: a shape's name, or the digit."""
        return self.kind if self.digit is None else str(self.digit)


@dataclass
class Scene:
    """One image and its facts. `ground`: the color's name, None for an image of noise; `cells` [rows columns LABELS]
    int64: the labels of each image token (`NAMED`, then `PARTS`).
    """

    image: Image
    things: list[Thing]
    ground: str | None
    cells: NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """Which frames of a longer video were sampled: their `indices`, the video's `rate` and `total` frames.

    `stamps`: the seconds of each temporal grid, as the prompt gives them.
    """

    rate: float
    total: int
    indices: tuple[int, ...]
    stamps: tuple[str, ...]


@dataclass
class Video:
    """Sampled frames with what happens in them.

    `frames` [n height width 3]; `change`: the index of the first temporal grid that shows the new color; `cells`
    [grids rows columns LABELS].
    """

    frames: Image
    timing: Timing
    thing: Thing
    ground: str
    cells: NDArray[np.int64]
    move: str | None = None
    change: int | None = None
    new_color: str | None = None


@dataclass(frozen=True)
class Look:
    """How things are drawn: which scans digits come from (`part`), the chance that a digit is `printed`, how far
    digits are warped, and the chances that a thing is `turned` to any angle and a shape `outlined`.
    """

    part: str = "train"
    printed: float = 0.4
    warp: float = 0.75
    turned: float = 0.45
    outlined: float = 0.25


@dataclass(frozen=True)
class Contents:
    """What an image shows: the `kinds` of its things, their `arrangement`, and of how many colors they are at most;
    `first`: the kind and color of the first thing; `noise`: an image of noise.
    """

    kinds: list[str]
    arrangement: str = "free"
    palette: int = MOST
    first: tuple[str, str] | None = None
    noise: bool = False


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of images: noise, an empty ground, `counted` shapes (0 to `MOST`), and of the
    rest `single` things; others show two to four. `digits`: share of digits among the things that are not counted.
    """

    noise: float = 0.05
    empty: float = 0.03
    counted: float = 0.42
    single: float = 0.6
    digits: float = 0.45


def contents(rng: Random, mix: Mix, size: tuple[int, int], ease: float, most: int = MOST) -> Contents:
    """Draws what the next image of this size (height, width) shows: at most `most` things, fewer in a small image."""
    most = most if max(size) >= 96 else min(most, 4)
    chance = rng.random()
    if chance < mix.noise * (1 - ease):
        return Contents([], noise=True)
    if chance < (mix.noise + mix.empty) * (1 - ease):
        return Contents([])
    if most > 1 and chance < mix.noise + mix.empty + mix.counted * (1 - ease):
        return _counted(rng, most, size)
    count = 1 if rng.random() < mix.single + ease or most == 1 else int(rng.integers(2, min(most, 4) + 1))
    kinds = [DIGIT if rng.random() < mix.digits else SHAPES[rng.integers(len(SHAPES))] for _ in range(count)]
    while kinds.count(DIGIT) > 2:  # digits are large: there is room for two
        kinds[kinds.index(DIGIT)] = SHAPES[rng.integers(len(SHAPES))]
    return Contents(kinds, "free" if rng.random() < 0.7 else _arrangement(rng, count, size))


def _arrangement(rng: Random, count: int, size: tuple[int, int]) -> str:
    """Any arrangement in which so many things are not smaller than `LEAST` pixels."""
    row, column = size[1] >= count * (LEAST + 3), size[0] >= count * (LEAST + 3)
    fitting = [a for a in ARRANGEMENTS if (a != "row" or row) and (a != "column" or column)]
    return fitting[rng.integers(len(fitting))]


def _counted(rng: Random, most: int, size: tuple[int, int]) -> Contents:
    """Zero to `most` shapes of one kind, of two, or of any; of one color, of two, or of any; in any arrangement."""
    share = np.array([0.7, *np.linspace(0.8, 1.4, most)])  # large numbers are seen in part as smaller ones of a kind
    count = int(rng.choice(most + 1, p=share / share.sum()))
    kinds = [SHAPES[i] for i in rng.permutation(len(SHAPES))[: int(rng.choice([1, 2, 5], p=[0.5, 0.32, 0.18]))]]
    palette = int(rng.choice([1, 2, MOST], p=[0.4, 0.3, 0.3]))
    selection = [kinds[rng.integers(len(kinds))] for _ in range(count)]
    return Contents(selection, _arrangement(rng, count, size), palette)


def _sizes(rng: Random, kinds: list[str], height: int, width: int, ease: float) -> list[int]:
    """A width in pixels for each thing: large while the task is easy, and smaller the more there are."""
    short, long = min(height, width), max(height, width)
    room = [0.9, 0.5, 0.42, 0.38, 0.33, 0.3][len(kinds) - 1] * min(short * (1 if len(kinds) == 1 else 1.15), long)
    digit, shape = max(32.0, 0.4 * short), 15.0 if len(kinds) > 1 else max(15.0, 0.18 * short)
    lows = [max(digit if kind == DIGIT else shape, ease * 0.7 * room) for kind in kinds]
    if rng.random() < 0.5:  # all of about one size, as in a drawn row
        size = rng.uniform(min(max(lows), room), room)
        return [round(size) for _ in kinds]
    return [round(rng.uniform(min(low, room), max(low, room))) for low in lows]


def label(cells: NDArray[np.int64], shape: tuple[int, ...], thing: Thing, mask: Array) -> None:
    """Labels the image tokens that the thing covers enough of, and the one with its middle, in place."""
    cover = np.zeros((*shape[:2], 1), dtype=np.float32)
    draw.paint(cover, mask, *corner(thing), np.ones(1, dtype=np.float32))
    rows, columns = cells.shape[:2]
    share = cover.reshape(rows, CELL, columns, CELL).mean((1, 3))
    hit = share > min(0.12, 0.4 * float(share.max()))
    row, column = min(int(3 * thing.y / shape[0]), 2), min(int(3 * thing.x / shape[1]), 2)
    cells[hit, :3] = CONTENTS.index(thing.content), NAMES.index(thing.color), 3 * row + column
    middle = cells[min(int(thing.y / CELL), rows - 1), min(int(thing.x / CELL), columns - 1)]
    middle[3] = min(middle[3] + 1, MIDDLES - 1)
    for part in (KINDS.index(thing.kind), len(KINDS) + NAMES.index(thing.color)):
        middle[len(NAMED) + part] = min(middle[len(NAMED) + part] + 1, PART_VALUES - 1)


def corner(thing: Thing) -> tuple[int, int]:
    """Top and left pixel of the square that the thing is drawn in."""
    return round(thing.y - thing.size / 2), round(thing.x - thing.size / 2)


def no_labels(*shape: int) -> NDArray[np.int64]:
    """[*shape LABELS]: labels of tokens that show the ground alone."""
    cells = np.zeros((*shape, LABELS), dtype=np.int64)
    cells[..., :3] = len(CONTENTS), len(NAMES), NINTHS
    return cells


def scene(rng: Random, height: int, width: int, what: Contents, look: Look, ease: float = 0.0) -> Scene:
    """Draws an image of these contents."""
    cells = no_labels(height // CELL, width // CELL)
    if what.noise:
        return Scene(draw.noise(rng, height, width), [], None, cells)
    under, canvas, tones = ground(rng, height, width, what, ease)
    kinds = what.kinds if what.first is None else [what.first[0], *what.kinds[1:]]
    sizes = _sizes(rng, kinds, height, width, ease) if kinds else []
    middles, sizes = arrange(rng, what.arrangement, sizes, height, width)
    things: list[Thing] = []
    for i, kind in enumerate(kinds):
        color = what.first[1] if what.first is not None and i == 0 else list(tones)[rng.integers(len(tones))]
        thing, mask = _thing(rng, kind, color, middles[i], sizes[i], look, ease)
        draw.paint(canvas, mask, *corner(thing), tones[color])
        label(cells, canvas.shape, thing, mask)
        things.append(thing)
    return Scene(canvas.round().astype(np.uint8), things, under, cells)


def _thing(
    rng: Random, kind: str, color: str, middle: tuple[float, float], size: int, look: Look, ease: float
) -> tuple[Thing, Array]:
    """A thing and its mask."""
    turned = rng.random() < look.turned * (1 - ease)
    if kind == DIGIT:
        turn = int(rng.uniform(-50, 50)) if turned else 0
        digit, scan = draw.digit(rng, look.part, look.printed)
        mask = draw.digit_mask(scan, size, rng, warp=look.warp * (1 - 0.7 * ease), turn=turn)
        return Thing(kind, color, *middle, size, digit, turn), mask
    turn = 5 * int(rng.integers(72)) if turned else 0
    outlined = size >= 16 and rng.random() < look.outlined * (1 - ease)
    outline = max(2, round(size * rng.uniform(0.06, 0.16))) if outlined else 0
    return Thing(kind, color, *middle, size, None, turn, outline), draw.shape_mask(kind, size, turn, outline)


def ground(
    rng: Random, height: int, width: int, what: Contents, ease: float = 0.0
) -> tuple[str, Array, dict[str, Array]]:
    """The ground's color name, the ground itself, and the tones by name that things on it are drawn in."""
    while True:
        under = _ground_color(rng, ease)
        if what.first is not None and under == what.first[1]:
            continue
        canvas, base = draw.ground(rng, height, width, under, plain=rng.random() < 0.5 + ease)
        names = [NAMES[i] for i in rng.permutation(len(NAMES)) if NAMES[i] != under]
        drawn = {name: tone_on(rng, name, base) for name in names[: what.palette]}
        tones = {name: drawn_tone for name, drawn_tone in drawn.items() if drawn_tone is not None}
        if what.first is not None and what.first[1] not in tones:
            first = tone_on(rng, what.first[1], base)
            if first is None:
                continue
            tones[what.first[1]] = first
        if tones:
            return under, canvas, tones


def _ground_color(rng: Random, ease: float) -> str:
    if rng.random() < 0.2 + 0.75 * ease:
        return ("white", "white", "black")[rng.integers(3)]
    return NAMES[rng.integers(len(NAMES))]


def stamp(first: float, second: float, rate: float) -> str:
    """The seconds between two frame indices, as the prompt gives them."""
    return f"{(first / rate + second / rate) / 2:.1f}"


def timing(rng: Random, grids: int) -> Timing:
    """A video of some length and frame rate, of which `2 * grids` frames are seen.

    Either sampled by the published rule (two a second, four at least, eight at most), or every frame, or every n-th,
    at any rate from 0.5 to 30 a second and from any start; the held-out rates never occur.
    """
    count = 2 * grids
    while True:
        if grids in (2, 3, 4) and rng.random() < 0.35:
            rate = float(rng.choice([2, 5, 8, 10, 12, 15, 24, 25, 30]))
            total = round({2: rng.uniform(0.8, 2.4), 3: rng.uniform(3, 3.5), 4: rng.uniform(4, 12)}[grids] * rate)
            if min(max(int(total / rate * FRAME_RATE), 4), 8, total) != count:
                continue
            indices = np.linspace(0, total - 1, count).round().astype(int)
        else:
            rate = float(np.round(np.exp(rng.uniform(np.log(0.5), np.log(30))), int(rng.integers(3))))
            every = 1 if rate < 6 else int(rng.integers(1, 1 + int(rate / 2)))
            start = 0 if rng.random() < 0.6 else int(rng.integers(0, 1 + int(8 * rate)))
            indices = start + every * np.arange(count)
            total = int(indices[-1]) + 1
        if rate <= 0 or any(abs(rate / kept_rate - 1) < 0.1 for kept_rate in _effective(rate, indices)):
            continue
        stamps = tuple(stamp(indices[i], indices[i + 1], rate) for i in range(0, count, 2))
        if len(set(stamps)) == grids and float(stamps[-1]) < 30:
            return Timing(rate, total, tuple(int(i) for i in indices), stamps)


def _effective(rate: float, indices: NDArray) -> list[float]:
    """Held-out rates, and those whose time stamps the frames would have by leaving frames out."""
    step = max(1.0, float(indices[1] - indices[0]))
    return [kept * step for kept in HELD_OUT_RATES] + list(HELD_OUT_RATES)


def video(rng: Random, grids: int, height: int, width: int, look: Look, *, ease: float = 0.0) -> Video:
    """A shape that moves, or changes its color at some moment, or both, or neither, over `2 * grids` frames."""
    count, short = 2 * grids, min(height, width)
    moves, changes = [(True, False), (False, True), (True, True), (False, False)][
        rng.choice(4, p=[0.33, 0.37, 0.2, 0.1])
    ]
    changes = changes and grids > 1
    size = round(rng.uniform(max(16, (0.22 + 0.18 * ease) * short), 0.5 * short))
    under, canvas, tones = ground(rng, height, width, Contents([SHAPES[0]]), ease)
    while len(tones) < 2:
        under, canvas, tones = ground(rng, height, width, Contents([SHAPES[0]]), ease)
    color, new = (list(tones)[i] for i in rng.choice(len(tones), 2, replace=False))
    start, end, move = _path(rng, height, width, size, moves)
    first, mask = _thing(rng, SHAPES[rng.integers(len(SHAPES))], color, (0.0, 0.0), size, look, ease)
    # as a temporal grid begins: the time stamps tell no more than that
    change_frame = 2 * int(rng.integers(1, grids)) if changes else count
    cells = no_labels(grids, height // CELL, width // CELL)
    frames = np.empty((count, height, width, 3), dtype=np.uint8)
    things: list[Thing] = []
    for f in range(count):
        x, y = start + (end - start) * (f / (count - 1))
        now = new if f >= change_frame else color
        things.append(Thing(first.kind, now, float(x), float(y), size, None, first.turn, first.outline))
        frame = canvas.copy()
        draw.paint(frame, mask, *corner(things[-1]), tones[now])
        frames[f] = frame.round().astype(np.uint8)
        if f % 2 == 1:
            label(cells[f // 2], frame.shape, things[-1], mask)
    change = change_frame // 2 if changes else None
    return Video(frames, timing(rng, grids), things[0], under, cells, move, change, new if changes else None)


def _path(rng: Random, height: int, width: int, size: int, moves: bool) -> tuple[NDArray, NDArray, str | None]:
    """Where a thing starts and ends, and which way that is; None when it stays."""
    low, high = np.full(2, size / 2), np.array([width, height]) - size / 2
    start = rng.uniform(low, high)
    if not moves:
        return start, start, None
    move = list(DIRECTIONS)[rng.integers(4)]
    step = np.array(DIRECTIONS[move], dtype=float)
    axis = int(step[0] == 0)
    way = rng.uniform(0.4, 1.0) * (high[axis] - low[axis])
    if step[axis] > 0:
        start[axis] = rng.uniform(low[axis], high[axis] - way)
    else:
        start[axis] = rng.uniform(low[axis] + way, high[axis])
    return start, start + step * way, move
