"""Examination questions for the bundled model, drawn by `exam_draw`: no code of the training's world is imported.

Every row of the result table is made of strata (each pair of colors, each count in each arrangement, each frame rate
...), and every stratum has equally many questions. Handwritten digits are the 360 scans kept out of the training, each
asked for once; printed digits are set in faces, and videos taken at frame rates, that were never trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from training.nano import exam_draw
from training.nano.exam_draw import COLORS, FACES, SHAPES, Pixels

Random = np.random.Generator
SIDES = ((96, 96), (96, 128), (128, 96), (128, 128), (128, 128))
POSITIONS = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1), "center": (0, 0)}
STYLES = ("upright filled", "turned filled", "upright outlined", "turned outlined")
TEXTURES = ("flat", "lines", "checks", "speckled", "shaded")
RATES = {"when": (2.0, 5.0, 10.0), "when, new rates": (3.0, 4.0, 6.0, 20.0)}
"""Frames a second of the videos: some that the training has, and all that are held out of it."""
CONTRAST = 20.0  # least ΔE*ab (CIE 1976) between ink and ground


@dataclass(frozen=True)
class Item:
    """One question with its images or its video. `row`, `stratum`: where in the result tables it counts.

    `rate`: the video's frames a second; all of its frames are seen.
    """

    row: str
    stratum: str
    question: str
    answer: str
    images: list[Pixels] = field(default_factory=list)
    video: Pixels | None = None
    rate: float = 2.0

    @property
    def media(self) -> dict[str, Any]:
        """`images`, or `videos` and their metadata, as the processor takes them."""
        if self.video is None:
            return {"images": self.images}
        count = len(self.video)
        metadata = {"fps": self.rate, "total_num_frames": count, "frames_indices": list(range(count))}
        return {"videos": [self.video], "video_metadata": [metadata], "do_sample_frames": False}


def color_pairs() -> list[tuple[str, str]]:
    """All pairs of ink and ground that the contrast rule allows."""
    from skimage.color import rgb2lab

    tones = {
        name: rgb2lab(np.array([[[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]]])) for name, c in COLORS.items()
    }
    pairs = [(a, b) for a, b in product(COLORS, COLORS) if a != b]
    return [(a, b) for a, b in pairs if float(np.linalg.norm(tones[a] - tones[b])) >= CONTRAST]


def pick(rng: Random, values: Any) -> Any:
    values = list(values)
    return values[rng.integers(len(values))]


def _ink(rng: Random, ground: str, *others: str) -> str:
    return pick(rng, [ink for ink, under in color_pairs() if under == ground and ink not in others])


def _style(rng: Random, style: str, radius: float) -> dict[str, float]:
    return {
        "turn": float(rng.uniform(0, 360)) if style.startswith("turned") else 0.0,
        "line": max(2.0, radius * rng.uniform(0.15, 0.25)) if style.endswith("outlined") else 0.0,
    }


def single(
    rng: Random, kind: str, ink: str, ground: str, style: str = STYLES[0], texture: str = "flat", position: str = ""
) -> Pixels:
    """An image of one shape, anywhere or at a position."""
    height, width = pick(rng, SIDES)
    canvas = exam_draw.ground(height, width, ground, texture, int(rng.integers(1 << 30)))
    radius = rng.uniform(0.15, 0.26 if position else 0.4) * min(height, width)
    if position:
        across, down = POSITIONS[position]
        x = width * (0.5 + across * rng.uniform(0.24, 0.3)) + rng.uniform(-2, 2)
        y = height * (0.5 + down * rng.uniform(0.24, 0.3)) + rng.uniform(-2, 2)
        radius = min(radius, 0.19 * min(height, width))
    else:
        x, y = (rng.uniform(radius, side - radius) for side in (width, height))
    exam_draw.shape(canvas, kind, ink, x, y, radius, **_style(rng, style, radius))
    return exam_draw.finished(canvas)


def _colors(rng: Random, n: int) -> list[Item]:
    items = []
    for (ink, ground), _ in product(color_pairs(), range(n)):
        kind = pick(rng, SHAPES)
        image = single(rng, kind, ink, ground)
        items.append(Item("color", f"{ink} on {ground}", f"What color is the {kind}?", ink, [image]))
    return items


def _shapes(rng: Random, n: int) -> list[Item]:
    items = []
    for style, kind, _ in product(STYLES, SHAPES, range(n)):
        ink, ground = pick(rng, color_pairs())
        image = single(rng, kind, ink, ground, style)
        items.append(Item(f"shape, {style}", kind, "What shape is this?", kind, [image]))
    return items


def _positions(rng: Random, n: int) -> list[Item]:
    items = []
    for position, _ in product(POSITIONS, range(n)):
        kind, (ink, ground) = pick(rng, SHAPES), pick(rng, color_pairs())
        image = single(rng, kind, ink, ground, position=position)
        items.append(Item("position", position, f"Where is the {kind}?", position, [image]))
    return items


def _backgrounds(rng: Random, n: int) -> list[Item]:
    items = []
    for texture, ground, _ in product(TEXTURES, COLORS, range(n)):
        image = single(rng, pick(rng, SHAPES), _ink(rng, ground), ground, texture=texture)
        row = "background" if texture == "flat" else "background, textured"
        items.append(Item(row, f"{ground}, {texture}", "What color is the background?", ground, [image]))
        kind, ink = pick(rng, SHAPES), _ink(rng, ground)
        image = single(rng, kind, ink, ground, texture=texture)
        if texture != "flat":
            items.append(Item("color on texture", texture, f"What color is the {kind}?", ink, [image]))
    return items


def _middles(rng: Random, arrangement: str, count: int, side: int, radius: float) -> list[tuple[float, float]]:
    step = side / max(count, 1)
    other = rng.uniform(radius + 1, side - radius - 1)
    if arrangement == "row":
        return [((i + 0.5) * step, other) for i in range(count)]
    if arrangement == "column":
        return [(other, (i + 0.5) * step) for i in range(count)]
    middles: list[tuple[float, float]] = []
    while len(middles) < count:
        x, y = rng.uniform(radius + 1, side - radius - 1, 2)
        if all(max(abs(x - a), abs(y - b)) > 2 * radius + 2 for a, b in middles):
            middles.append((float(x), float(y)))
        elif rng.random() < 0.02:
            middles.clear()
    return middles


def _counts(rng: Random, n: int) -> list[Item]:
    items = []
    for arrangement, count, _ in product(("row", "column", "free"), range(7), range(n)):
        side = 128
        radius = rng.uniform(8, min(16.0, 0.42 * side / max(count, 1)))
        ground = pick(rng, COLORS)
        canvas = exam_draw.ground(side, side, ground)
        alike, kind, ink = bool(rng.random() < 0.6), pick(rng, SHAPES), _ink(rng, ground)
        for x, y in _middles(rng, arrangement, count, side, radius):
            this, tone = (kind, ink) if alike else (pick(rng, SHAPES), _ink(rng, ground))
            exam_draw.shape(canvas, this, tone, x, y, radius)
        plural = f"{kind}es" if kind == "cross" else f"{kind}s"
        word = plural if alike and rng.random() < 0.5 else "shapes"
        question = f"How many {word} are there?"
        items.append(Item(f"count, {arrangement}", str(count), question, str(count), [exam_draw.finished(canvas)]))
    return items


def _sizes(rng: Random, n: int) -> list[Item]:
    items = []
    for answer, _ in product(("small", "large"), range(n)):
        kind, (ink, ground) = pick(rng, SHAPES), pick(rng, color_pairs())
        canvas = exam_draw.ground(128, 128, ground)
        radius = rng.uniform(10, 17) if answer == "small" else rng.uniform(33, 55)
        x, y = rng.uniform(radius, 128 - radius, 2)
        exam_draw.shape(canvas, kind, ink, float(x), float(y), radius)
        items.append(Item("size", answer, f"How big is the {kind}?", answer, [exam_draw.finished(canvas)]))
    return items


def _two(rng: Random) -> tuple[Pixels, list[tuple[str, str]]]:
    """An image of two shapes side by side, of two kinds and two colors, from left to right."""
    ground = pick(rng, COLORS)
    canvas = exam_draw.ground(96, 128, ground)
    kinds = rng.permutation(SHAPES)[:2].tolist()
    inks = [first := _ink(rng, ground), _ink(rng, ground, first)]
    for i, (kind, ink) in enumerate(zip(kinds, inks, strict=True)):
        y, radius = float(rng.uniform(30, 66)), float(rng.uniform(14, 26))
        exam_draw.shape(canvas, kind, ink, 32 + 64 * i, y, radius)
    return exam_draw.finished(canvas), list(zip(inks, kinds, strict=True))


def _presence(rng: Random, n: int) -> list[Item]:
    items = []
    for request, _ in product(("yes", "no: other color", "no: other shape", "no: swapped"), range(n)):
        image, (one, two) = _two(rng)
        others = [c for c in COLORS if c not in (one[0], two[0])]
        kinds = [k for k in SHAPES if k not in (one[1], two[1])]
        ink, kind = {
            "yes": one,
            "no: other color": (pick(rng, others), one[1]),
            "no: other shape": (one[0], pick(rng, kinds)),
            "no: swapped": (two[0], one[1]),
        }[request]
        items.append(Item("exists", request, f"Is there a {ink} {kind}?", request.split(":")[0], [image]))
        items.append(Item("absent", "color", f"What color is the {(absent := pick(rng, kinds))}?", "none", [image]))
        items.append(Item("absent", "position", f"Where is the {absent}?", "none", [image]))
        items.append(Item("absent", "color of a digit", "What color is the digit?", "none", [image]))
        items.append(
            Item("description", "two", "Describe the image.", f"a {' '.join(one)} and a {' '.join(two)}", [image])
        )
        items.append(Item("color among two", one[0], f"What color is the {one[1]}?", one[0], [image]))
        items.append(Item("shape among two", two[1], f"What shape is {two[0]}?", two[1], [image]))
        sentence = f"Say in a sentence what color the {one[1]} is."
        items.append(Item("sentence", "there", sentence, f"The {one[1]} is {one[0]}.", [image]))
        sentence = f"Say in a sentence what color the {absent} is."
        items.append(Item("sentence", "absent", sentence, f"There is no {absent}.", [image]))
        height, width = pick(rng, SIDES)
        blank = exam_draw.finished(exam_draw.ground(height, width, pick(rng, COLORS)))
        noisy = exam_draw.noise(rng, *pick(rng, SIDES))
        question = pick(rng, ("What shape is this?", "What do you see?", "What color is the object?"))
        items.append(Item("nothing", "empty", question, "nothing", [blank]))
        question = pick(rng, ("What shape is this?", "What do you see?", f"What color is the {kind}?"))
        items.append(Item("nothing", "noise", question, "nothing", [noisy]))
    return items


def _digits(rng: Random, n: int) -> list[Item]:
    items, indices = [], rng.permutation(exam_draw.HELD_OUT_SCANS)
    question = "What digit is this?"
    for row, turn in (("digit, handwritten", 0), ("digit, handwritten, turned", 45)):
        for index in indices[: max(1, round(len(indices) * n / 8))]:
            height, width = pick(rng, SIDES)
            ink, ground = pick(rng, color_pairs())
            canvas = exam_draw.ground(height, width, ground)
            size = rng.uniform(0.55, 0.9) * min(height, width)
            x, y = (rng.uniform(size / 2, side - size / 2) for side in (width, height))
            answer = exam_draw.handwritten(canvas, int(index), ink, x, y, size, turn=turn * pick(rng, (-1, 1)))
            image = exam_draw.finished(canvas)
            items.append(Item(row, answer, question, answer, [image]))
            if not turn:
                items.append(Item("digit color", ink, "What color is the digit?", ink, [image]))
    for face, digit, _ in product(FACES, range(10), range(max(1, n // 2))):
        items.append(Item("digit, printed", face, question, str(digit), [_printed(rng, str(digit), face)]))
    return items


def _printed(rng: Random, text: str, face: str) -> Pixels:
    height, width = pick(rng, SIDES)
    ink, ground = pick(rng, color_pairs())
    canvas = exam_draw.ground(height, width, ground)
    size = rng.uniform(0.4, 0.8) * min(height, width)
    x, y = (rng.uniform(size / 2, side - size / 2) for side in (width, height))
    exam_draw.printed(canvas, text, face, ink, x, y, size)
    return exam_draw.finished(canvas)


def _images_of_two(rng: Random, n: int) -> list[Item]:
    items = []
    for answer, _ in product(("first", "second", "both", "none"), range(2 * n)):
        one, two, three = rng.permutation(SHAPES)[:3].tolist()
        kinds = {"first": (one, two), "second": (two, one), "both": (one, one), "none": (two, three)}[answer]
        grounds = [pick(rng, COLORS) for _ in kinds]
        inks = [_ink(rng, ground) for ground in grounds]
        if answer == "both":
            shared = [c for c in COLORS if all((c, ground) in color_pairs() for ground in grounds)]
            inks = [pick(rng, shared)] * 2
        canvases = [exam_draw.ground(64, 96, ground) for ground in grounds]
        for canvas, kind, ink in zip(canvases, kinds, inks, strict=True):
            exam_draw.shape(canvas, kind, ink, rng.uniform(20, 76), rng.uniform(20, 44), rng.uniform(12, 19))
        images = [exam_draw.finished(canvas) for canvas in canvases]
        name = f"{inks[0]} {one}" if answer == "both" else one
        items.append(Item("which image", answer, f"Which image shows the {name}?", answer, images))
        word, i = pick(rng, (("first", 0), ("second", 1)))
        items.append(Item("of a pair", "shape", f"What shape is in the {word} image?", kinds[i], images))
        question = f"What color is the {kinds[i]} in the {word} image?"
        items.append(Item("of a pair", "color", question, inks[i], images))
    return items


def _frames(
    rng: Random,
    kind: str,
    inks: list[str],
    ground: str,
    start: tuple[float, float],
    end: tuple[float, float],
    side: int,
) -> Pixels:
    """[len(inks) side side 3]: a shape on its way from `start` to `end`, in the color of each frame."""
    frames, radius = [], rng.uniform(0.14, 0.2) * side
    for i, ink in enumerate(inks):
        canvas, part = exam_draw.ground(side, side, ground), i / (len(inks) - 1)
        x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
        exam_draw.shape(canvas, kind, ink, x, y, radius)
        frames.append(exam_draw.finished(canvas))
    return np.stack(frames)


def _videos(rng: Random, n: int) -> list[Item]:
    items = []
    for (row, rates), _ in product(RATES.items(), range(n)):
        for rate, grids in product(rates, (2, 3, 4)):
            kind, ground = pick(rng, SHAPES), pick(rng, COLORS)
            ink = _ink(rng, ground)
            new, change = _ink(rng, ground, ink), int(rng.integers(1, grids))
            inks = [ink] * (2 * change) + [new] * (2 * (grids - change))
            middle = float(rng.uniform(20, 44)), float(rng.uniform(20, 44))
            video = _frames(rng, kind, inks, ground, middle, middle, 64)
            seconds = f"{(2 * change / rate + (2 * change + 1) / rate) / 2:.1f} seconds"
            question = f"When does the {kind} turn {new}?"
            items.append(Item(row, f"{rate:g} a second, {2 * grids} frames", question, seconds, [], video, rate))
            items.append(Item("color in a video", "end", f"What color is the {kind} at the end?", new, [], video, rate))
    positions = {"left": (50, 14), "right": (14, 50), "up": (50, 14), "down": (14, 50), "none": (32, 32)}
    for (move, (a, b)), _ in product(positions.items(), range(2 * n)):
        kind, (ink, ground) = pick(rng, SHAPES), pick(rng, color_pairs())
        other, frames = float(rng.uniform(16, 48)), int(pick(rng, (4, 6, 8)))
        start, end = ((a, other), (b, other)) if move in ("left", "right", "none") else ((other, a), (other, b))
        video = _frames(rng, kind, [ink] * frames, ground, start, end, 64)
        items.append(Item("move", move, f"Which way does the {kind} move?", move, [], video))
        items.append(Item("shape in a video", kind, "What shape is in the video?", kind, [], video))
    return items


DRAWN: tuple[Callable[[Random, int], list[Item]], ...] = (
    *(_colors, _shapes, _positions, _sizes, _backgrounds, _counts, _presence, _digits, _images_of_two, _videos),
)
EACH = (4, 15, 40, 60, 3, 14, 30, 8, 25, 8)
"""How many questions a stratum of each of these has, about, in the whole examination."""


def items(seed: int, share: float = 1.0, rows: tuple[str, ...] | None = None) -> list[Item]:
    """The examination with `share` of the questions of each stratum (one at least): the same for the same seed."""
    questions: list[Item] = []
    for i, (draw, each) in enumerate(zip(DRAWN, EACH, strict=True)):
        questions += draw(np.random.default_rng([seed, i]), max(1, round(each * share)))
    return [item for item in questions if rows is None or item.row in rows]


def outside(seed: int, n: int = 60) -> list[Item]:
    """Questions about what the world does not have: there the answer is never among the model's words."""
    rng = np.random.default_rng([seed, 99])
    items = []
    for _ in range(n):
        ground = pick(rng, COLORS)
        image = single(rng, pick(rng, ("hexagon", "ellipse")), _ink(rng, ground), ground)
        items.append(Item("outside", "other shape", "What shape is this?", "", [image]))
        kind = pick(rng, SHAPES)
        image = single(rng, kind, pick(rng, exam_draw.OUTSIDE_COLORS), pick(rng, ("white", "black")))
        items.append(Item("outside", "other color", f"What color is the {kind}?", "", [image]))
        image = _printed(rng, pick(rng, "AEHKRT"), pick(rng, FACES))
        items.append(Item("outside", "letter", "What digit is this?", "", [image]))
    return items


def chance(items: list[Item]) -> dict[str, float]:
    """For each row, how often its commonest answer is right: what can be had without looking."""
    answers: dict[str, Counter[str]] = {}
    for item in items:
        answers.setdefault(item.row, Counter())[item.answer] += 1
    return {row: max(count.values()) / sum(count.values()) for row, count in answers.items()}
