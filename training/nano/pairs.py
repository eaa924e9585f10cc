"""Counterfactual pairs: two images that differ in one property, with a question whose answer that property decides.

Use them for activation patching, attribution or probing, where a clean and a corrupt run should differ in one thing
alone::

    from training.nano.pairs import pairs

    for pair in pairs(seed=0, n=8, change="color"):
        clean = model.prompt(pair.question, images=1)  # pair.clean and pair.corrupt have one size, so tokens line up

Works from a clone of the repository. Everything but the changed property (ground, texture, tones, sizes, other things)
is the same to the pixel; `box` bounds the pixels that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from training.nano import draw, questions, world
from training.nano.arrange import arrange
from training.nano.colors import Array, Random
from training.nano.draw import SHAPES, Image
from training.nano.world import DIGIT, Contents, Thing

SIZE = 128
POSITIONS = {"left": (0.2, 0.5), "right": (0.8, 0.5), "top": (0.5, 0.2), "bottom": (0.5, 0.8), "center": (0.5, 0.5)}
Drawn = list[tuple[Thing, Array]]  # things with their masks


@dataclass(frozen=True)
class Pair:
    """`clean` and `corrupt` [height width 3] uint8; `answer` is right for the clean image, `foil` for the corrupt one.

    `box`: left, top, right and bottom of the pixels that differ.
    """

    change: str
    clean: Image
    corrupt: Image
    question: str
    answer: str
    foil: str
    box: tuple[int, int, int, int]


def _shape(rng: Random, color: str, x: float, y: float, size: int, kind: str | None = None) -> tuple[Thing, Array]:
    kind = kind or SHAPES[rng.integers(len(SHAPES))]
    return Thing(kind, color, x, y, size), draw.shape_mask(kind, size)


def _middle(rng: Random, size: int) -> tuple[float, float]:
    x, y = rng.uniform(size / 2, SIZE - size / 2, 2)
    return float(x), float(y)


def _color(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    size = int(rng.integers(24, 64))
    thing, mask = _shape(rng, colors[0], *_middle(rng, size), size)
    question = questions.one(rng, questions.COLOR, thing.kind)
    return [(thing, mask)], [(replace(thing, color=colors[1]), mask)], question, colors[0], colors[1]


def _kind(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    size = int(rng.integers(24, 64))
    one, other = (SHAPES[i] for i in rng.permutation(len(SHAPES))[:2])
    middle = _middle(rng, size)
    drawn = [[_shape(rng, colors[0], *middle, size, kind)] for kind in (one, other)]
    return drawn[0], drawn[1], "What shape is this?", one, other


def _position(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    size = int(rng.integers(20, 40))
    one, other = (list(POSITIONS)[i] for i in rng.permutation(len(POSITIONS))[:2])
    thing, mask = _shape(rng, colors[0], SIZE * POSITIONS[one][0], SIZE * POSITIONS[one][1], size)
    moved = replace(thing, x=SIZE * POSITIONS[other][0], y=SIZE * POSITIONS[other][1])
    return [(thing, mask)], [(moved, mask)], f"Where is the {thing.kind}?", one, other


def _count(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    count, size = int(rng.integers(2, world.MOST + 1)), int(rng.integers(16, 28))
    middles, sizes = arrange(rng, "free", [size] * count, SIZE, SIZE)
    kind = SHAPES[rng.integers(len(SHAPES))]
    all_of_them = [_shape(rng, colors[0], x, y, s, kind) for (x, y), s in zip(middles, sizes, strict=True)]
    question = f"How many {questions.plural(kind)} are there?"
    return all_of_them, all_of_them[:-1], question, str(count), str(count - 1)


def _presence(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    size = int(rng.integers(24, 44))
    middles, sizes = arrange(rng, "free", [size, size], SIZE, SIZE)
    kinds = (SHAPES[i] for i in rng.permutation(len(SHAPES))[:2])
    both = [_shape(rng, c, *m, s, kind) for c, m, s, kind in zip(colors, middles, sizes, kinds, strict=False)]
    question = f"Is there a {both[1][0].color} {both[1][0].kind}?"
    return both, both[:1], question, "yes", "no"


def _digit(rng: Random, colors: list[str]) -> tuple[Drawn, Drawn, str, str, str]:
    size = int(rng.integers(56, 100))
    middle, drawn = _middle(rng, size), []
    while len(drawn) < 2:
        digit, scan = draw.digit(rng, "test", printed=0.0)
        if not drawn or drawn[0][0].digit != digit:
            mask = draw.digit_mask(scan, size, rng, warp=0.0)
            drawn.append((Thing(DIGIT, colors[0], *middle, size, digit), mask))
    answers = [str(thing.digit) for thing, _ in drawn]
    return drawn[:1], drawn[1:], "What digit is this?", answers[0], answers[1]


CHANGES: dict[str, Callable[[Random, list[str]], tuple[Drawn, Drawn, str, str, str]]] = {
    "color": _color,
    "shape": _kind,
    "place": _position,
    "count": _count,
    "presence": _presence,
    "digit": _digit,
}
"""The property that a pair differs in, and how things, question, answer and foil are drawn."""


def pairs(seed: int, n: int, change: str = "color") -> Iterator[Pair]:
    """Yields `n` pairs that differ in this property (a key of `CHANGES`): the same ones for the same seed."""
    if change not in CHANGES:
        raise ValueError(f"`change` names a property that a pair differs in; got {change!r}. One of {list(CHANGES)}")
    rng = np.random.default_rng([seed, list(CHANGES).index(change)])
    for _ in range(n):
        _, ground, tones = world.ground(rng, SIZE, SIZE, Contents([]))
        while len(tones) < 2:
            _, ground, tones = world.ground(rng, SIZE, SIZE, Contents([]))
        clean, corrupt, question, answer, foil = CHANGES[change](rng, list(tones))
        images = []
        for things in (clean, corrupt):
            canvas = ground.copy()
            for thing, mask in things:
                draw.paint(canvas, mask, *world.corner(thing), tones[thing.color])
            images.append(canvas.round().astype(np.uint8))
        yield Pair(change, images[0], images[1], question, answer, foil, _box(*images))


def _box(one: Image, other: Image) -> tuple[int, int, int, int]:
    y, x = np.nonzero((one != other).any(-1))
    return int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1
