"""What is asked about a picture, a pair of pictures or a clip, and the answers: one word, or a few.

Only what has one right answer is asked: the colour of "the circle" when there is one circle, the place of a thing that
stands clear of the borders between places, the size of a thing that is clearly small or large.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from training.nano.draw import SHAPES, Random
from training.nano.world import DIGIT, TONES, Clip, Scene, Thing

MIDDLE, CLEAR = 0.06, 0.15  # parts of a side: so near the middle is in the center, so far from it is to one side


@dataclass(frozen=True)
class Question:
    """One question with its answer; `task` is the row of the result table it belongs to."""

    task: str
    text: str
    answer: str


WEIGHTS = {
    "digit": 4.0,
    "color": 2.0,
    "shape": 3.0,
    "position": 5.0,
    "count": 20.0,
    "size": 1.0,
    "exists": 4.0,
    "background": 0.7,
    "description": 1.2,
    "digit color": 1.5,
    "which image": 3.0,
    "when": 3.0,
    "move": 2.0,
}

TOLD = ("which image", "count", "when")
"""Tasks that other questions about the sample give away: asked once a sample, and mostly before the others."""

_COLOR = (
    "What color is the {0}?",
    "What color is the {0}?",
    "Which color is the {0}?",
    "What is the color of the {0}?",
)
_IT = ("What color is it?", "What color is this?", "What is the color?", "What color is the object?")
_SHAPE = ("What shape is this?", "What shape is it?", "Which shape is this?", "What shape is shown?", "Name the shape.")
_DIGIT = (
    "What digit is this?",
    "What digit is this?",
    "Which digit is this?",
    "What digit is shown?",
    "What number is this?",
    "Which number is it?",
    "Read the digit.",
)
_OWN_DIGIT = ("What digit is {0}?", "Which digit is {0}?", "What is the {0} digit?")
_WHERE = ("Where is the {0}?", "Where is the {0}?", "Where do you see the {0}?", "On which side is the {0}?")
_GROUND = ("What color is the background?", "Which color is the background?", "What is the color of the background?")
_THERE = ("Is there a {0}?", "Do you see a {0}?", "Is there a {0} in the image?")
_TELL = ("Describe the image.", "Describe the picture.", "What is in the image?", "What do you see?", "What is this?")
_MANY = ("How many {0} are there?", "How many {0} do you see?", "How many {0} are in the image?", "Count the {0}.")
_BIG = ("How big is the {0}?", "What size is the {0}?", "Is the {0} small or large?")
_WHICH = (
    "Which image shows the {0}?",
    "Which image shows the {0}?",
    "Which picture shows the {0}?",
    "Which image has the {0}?",
    "In which image is the {0}?",
)
_MOVE = ("Which way does the {0} move?", "Where does the {0} move?", "In which direction does the {0} move?")
_WHEN = ("When does it turn {0}?", "When does the {1} turn {0}?", "When does the {1} become {0}?")


def place(thing: Thing, height: int, width: int) -> str | None:
    """Where a thing is: "left", "right", "top", "bottom" or "center"; None when that is not clear, as in a corner."""
    right, down = thing.x / width - 0.5, thing.y / height - 0.5
    if max(abs(right), abs(down)) < MIDDLE:
        return "center"
    if max(abs(right), abs(down)) < CLEAR or max(abs(right), abs(down)) < 1.6 * min(abs(right), abs(down)):
        return None
    if abs(right) > abs(down):
        return "right" if right > 0 else "left"
    return "bottom" if down > 0 else "top"


def _one(rng: Random, texts: tuple[str, ...], *names: str) -> str:
    return texts[rng.integers(len(texts))].format(*names)


def _names(things: list[Thing], thing: Thing) -> list[str]:
    """Phrases that mean this thing alone."""
    kinds, pairs = Counter(t.kind for t in things), Counter((t.kind, t.color) for t in things)
    found = [thing.kind] if kinds[thing.kind] == 1 else []
    if pairs[thing.kind, thing.color] == 1:
        found.append(f"{thing.color} {thing.kind}")
    return found


def phrase(thing: Thing) -> str:
    """The thing in words, such as "red circle" or "blue 7"."""
    return f"{thing.color} {thing.content}"


def about_scene(rng: Random, scene: Scene) -> list[Question]:
    """Everything that can be asked about one picture."""
    height, width = scene.picture.shape[:2]
    things = scene.things
    asked = [Question("background", _one(rng, _GROUND), scene.ground)]
    if len(things) > 1 or rng.random() < 0.25:
        asked += _counts(rng, things)
    asked += _existence(rng, things)
    order = sorted(things, key=lambda t: t.x)
    if all(b.x - a.x > 0.1 * width for a, b in pairwise(order)) and len(things) <= 2:
        asked.append(Question("description", _one(rng, _TELL), " and ".join(f"a {phrase(t)}" for t in order)))
    for thing in things:
        asked += _about_thing(rng, things, thing, height, width)
    return asked


def _about_thing(rng: Random, things: list[Thing], thing: Thing, height: int, width: int) -> list[Question]:
    asked: list[Question] = []
    alone, only_color = len(things) == 1, sum(t.color == thing.color for t in things) == 1
    names = _names(things, thing)
    if thing.kind in names:
        text = _one(rng, _IT) if alone and rng.random() < 0.3 else _one(rng, _COLOR, thing.kind)
        asked.append(Question("digit color" if thing.kind == DIGIT else "color", text, thing.color))
    if thing.digit is not None:
        if DIGIT in names:
            asked.append(Question("digit", _one(rng, _DIGIT), str(thing.digit)))
        elif only_color:
            asked.append(Question("digit", _one(rng, _OWN_DIGIT, thing.color), str(thing.digit)))
    elif alone:
        asked.append(Question("shape", _one(rng, _SHAPE), thing.kind))
    elif only_color:
        asked.append(Question("shape", f"What shape is {thing.color}?", thing.kind))
    if names:
        name = names[rng.integers(len(names))]
        where = place(thing, height, width)
        if where is not None:
            asked.append(Question("position", _one(rng, _WHERE, name), where))
        part = thing.size / min(height, width)
        if part < 0.3 or part > 0.42:
            asked.append(Question("size", _one(rng, _BIG, name), "small" if part < 0.3 else "large"))
    return asked


def _counts(rng: Random, things: list[Thing]) -> list[Question]:
    asked = []
    if all(t.kind != DIGIT for t in things):
        asked.append(Question("count", _one(rng, _MANY, "shapes"), str(len(things))))
    asked.append(Question("count", _one(rng, _MANY, ("things", "objects")[rng.integers(2)]), str(len(things))))
    kind = things[rng.integers(len(things))].kind if rng.random() < 0.7 else SHAPES[rng.integers(len(SHAPES))]
    many = {"cross": "crosses"}.get(kind, f"{kind}s")
    asked.append(Question("count", _one(rng, _MANY, many), str(sum(t.kind == kind for t in things))))
    return asked


def _existence(rng: Random, things: list[Thing]) -> list[Question]:
    thing = things[rng.integers(len(things))]
    kind, color = thing.kind, thing.color
    if rng.random() < 0.5:
        chance, others = rng.random(), [t.color for t in things if t.color != color]
        if others and chance < 0.35:  # what is there, but in the colour of another thing
            color = others[rng.integers(len(others))]
        elif chance < 0.7:
            color = TONES[rng.integers(len(TONES))]
        else:
            kind = (*SHAPES, DIGIT)[rng.integers(len(SHAPES) + 1)]
    there = any((t.kind, t.color) == (kind, color) for t in things)
    return [Question("exists", _one(rng, _THERE, f"{color} {kind}"), "yes" if there else "no")]


def about_pair(rng: Random, first: Scene, second: Scene) -> list[Question]:
    """What can be asked about two pictures together."""
    asked: list[Question] = []
    for word, mine, other in (("first", first, second), ("second", second, first)):
        for thing in mine.things:
            names = [f"{thing.color} {thing.kind}"]
            if all(t.kind != thing.kind for t in other.things):
                names.append(thing.kind)
            if thing.digit is not None and all(t.digit != thing.digit for t in other.things):
                names = [str(thing.digit), f"digit {thing.digit}"]
            name = names[rng.integers(len(names))]
            if name != names[0] or all((t.kind, t.color) != (thing.kind, thing.color) for t in other.things):
                asked.append(Question("which image", _one(rng, _WHICH, name), word))
        if len(mine.things) == 1:
            asked.append(_about_one_of_pair(rng, mine.things[0], word))
    return asked


def _about_one_of_pair(rng: Random, thing: Thing, word: str) -> Question:
    if rng.random() < 0.4:
        return Question("of a pair", f"What color is the {thing.kind} in the {word} image?", thing.color)
    if thing.digit is not None:
        return Question("of a pair", f"What digit is in the {word} image?", str(thing.digit))
    return Question("of a pair", f"What shape is in the {word} image?", thing.kind)


def about_clip(rng: Random, clip: Clip) -> list[Question]:
    """What can be asked about a clip."""
    kind = clip.thing.kind
    asked = [Question("shape", "What shape is in the video?", kind)]
    if clip.move is not None:
        asked.append(Question("move", _one(rng, _MOVE, kind), clip.move))
    asked.append(Question("exists", f"Does the {kind} move?", "yes" if clip.move else "no"))
    if clip.turn is None or clip.new_color is None:
        asked.append(Question("color", _one(rng, _COLOR, kind), clip.thing.color))
    else:
        asked.append(
            Question("when", _one(rng, _WHEN, clip.new_color, kind), f"{clip.timing.stamps[clip.turn]} seconds")
        )
        asked.append(Question("color", f"What color is the {kind} at the start?", clip.thing.color))
        asked.append(Question("color", f"What color is the {kind} at the end?", clip.new_color))
        for grid in rng.permutation(len(clip.timing.stamps))[:2]:  # without these "when" is not learnt
            now = clip.new_color if grid >= clip.turn else clip.thing.color
            text = f"What color is {('it', f'the {kind}')[rng.integers(2)]} at {clip.timing.stamps[grid]} seconds?"
            asked.append(Question("color", text, now))
    return asked


def choose(rng: Random, asked: list[Question], count: int, weights: dict[str, float]) -> list[Question]:
    """`count` of the questions, drawn by their tasks' weights, in random order; fewer when there are fewer.

    An answer may not be had from the turns before it, or it is never learnt to be seen: see `TOLD`.
    """
    keys = [rng.random() ** (1 / weights.get(q.task, 1.0)) for q in asked]
    chosen: list[Question] = []
    for i in sorted(range(len(asked)), key=lambda i: -keys[i]):
        once = asked[i].task in TOLD and any(q.task == asked[i].task for q in chosen)
        if len(chosen) < count and not once:
            chosen.append(asked[i])
    mixed = [chosen[i] for i in rng.permutation(len(chosen))]
    return sorted(mixed, key=lambda q: q.task not in TOLD) if rng.random() < 0.75 else mixed
