"""Questions about an image, a pair of images or a video, with their answers: one word, a few, or a short sentence.

Only what has one right answer is asked: the color of "the circle" when there is one circle, the place of a thing that
stands clear of the borders between places, the size of a thing that is clearly small or large. What is not there is
asked about too: the answer is "none", on an empty ground or noise "nothing".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from training.nano.colors import NAMES, Random
from training.nano.world import DIGIT, KINDS, Scene, Thing, Video

MIDDLE, CLEAR = 0.06, 0.15  # parts of a side: so near the middle is in the center, so far from it is to one side
SMALL, LARGE = 0.3, 0.42  # parts of the shorter side: smaller is "small", larger "large"
NONE, NOTHING, BOTH = "none", "nothing", "both"


@dataclass(frozen=True)
class Question:
    """One question with its answer.

    `task`: the kind of question; `topic`: what it tells about, so that no two questions of a chat tell it twice.
    """

    task: str
    text: str
    answer: str
    topic: str = ""


WEIGHTS = {
    "digit": 5.0,
    "color": 2.5,
    "shape": 4.0,
    "position": 4.0,
    "count": 20.0,
    "size": 1.0,
    "exists": 2.5,
    "absent": 0.8,
    "background": 0.7,
    "description": 1.2,
    "digit color": 1.5,
    "sentence": 1.2,
    "which image": 3.0,
    "when": 4.0,
    "move": 2.0,
}
"""How often each task is drawn, beside the others that a sample allows."""

TELLING = ("which image", "count", "when")
"""Tasks that other questions about the sample give away: asked once a sample, and mostly before the others."""

COLOR = (
    "What color is the {0}?",
    "What color is the {0}?",
    "Which color is the {0}?",
    "What is the color of the {0}?",
)
_IT = ("What color is it?", "What color is this?", "What is the color?", "What color is the object?")
_COLORS = ("What color are the {0}?", "Which color are the {0}?", "What is the color of the {0}?")
_SHAPE = ("What shape is this?", "What shape is it?", "Which shape is this?", "What shape is shown?", "Name the shape.")
_SHAPE_OF = ("What shape is {0}?", "Which shape is {0}?", "What is the {0} shape?")
_DIGIT = (
    "What digit is this?",
    "What digit is this?",
    "Which digit is this?",
    "What digit is shown?",
    "What number is this?",
    "Which number is it?",
    "Read the digit.",
)
_DIGIT_OF = ("What digit is {0}?", "Which digit is {0}?", "What is the {0} digit?")
_WHERE = ("Where is the {0}?", "Where is the {0}?", "Where do you see the {0}?", "On which side is the {0}?")
_GROUND = ("What color is the background?", "Which color is the background?", "What is the color of the background?")
_THERE = ("Is there a {0}?", "Do you see a {0}?", "Is there a {0} in the image?")
_TELL = ("Describe the image.", "Describe the picture.", "What is in the image?", "What do you see?", "What is this?")
_MANY = ("How many {0} are there?", "How many {0} do you see?", "How many {0} are in the image?", "Count the {0}.")
_BIG = ("How big is the {0}?", "What size is the {0}?", "Is the {0} small or large?")
_SENTENCE = (
    "Say in a sentence what color the {0} is.",
    "Answer in a sentence: what color is the {0}?",
    "What color is the {0}? Answer in a sentence.",
)
_WHICH = (
    "Which image shows the {0}?",
    "Which image shows the {0}?",
    "Which picture shows the {0}?",
    "Which image has the {0}?",
    "In which image is the {0}?",
)
_MOVE = ("Which way does the {0} move?", "Where does the {0} move?", "In which direction does the {0} move?")
_WHEN = ("When does it turn {0}?", "When does the {1} turn {0}?", "When does the {1} become {0}?")


def position(thing: Thing, height: int, width: int) -> str | None:
    """Where a thing is: "left", "right", "top", "bottom" or "center"; None when that is not clear, as in a corner."""
    right, down = thing.x / width - 0.5, thing.y / height - 0.5
    if max(abs(right), abs(down)) < MIDDLE:
        return "center"
    if max(abs(right), abs(down)) < CLEAR or max(abs(right), abs(down)) < 1.6 * min(abs(right), abs(down)):
        return None
    if abs(right) > abs(down):
        return "right" if right > 0 else "left"
    return "bottom" if down > 0 else "top"


def plural(kind: str) -> str:
    return "crosses" if kind == "cross" else f"{kind}s"


def one(rng: Random, texts: tuple[str, ...], *names: str) -> str:
    """One of the wordings, with these names in it."""
    return texts[rng.integers(len(texts))].format(*names)


def phrase(thing: Thing) -> str:
    """The thing in words, such as "red circle" or "blue 7"."""
    return f"{thing.color} {thing.content}"


def _names(things: list[Thing], thing: Thing) -> list[str]:
    """Phrases that mean this thing alone."""
    kinds, pairs = Counter(t.kind for t in things), Counter((t.kind, t.color) for t in things)
    names = [thing.kind] if kinds[thing.kind] == 1 else []
    if pairs[thing.kind, thing.color] == 1:
        names.append(f"{thing.color} {thing.kind}")
    return names


def about_scene(rng: Random, scene: Scene) -> list[Question]:
    """Everything that can be asked about one image."""
    if not scene.things:
        return _about_nothing(rng, scene)
    height, width = scene.image.shape[:2]
    things = scene.things
    questions = [Question("background", one(rng, _GROUND), str(scene.ground))]
    if len(things) > 1 or rng.random() < 0.25:
        questions += _counts(rng, things)
    questions += [*_existence(rng, things), *_absent(rng, things)]
    order = sorted(things, key=lambda t: t.x)
    if all(b.x - a.x > 0.1 * width for a, b in pairwise(order)) and len(things) <= 2:
        questions.append(Question("description", one(rng, _TELL), " and ".join(f"a {phrase(t)}" for t in order)))
    for thing in things:
        questions += _about_thing(rng, things, thing, height, width)
    for kind, count in Counter(t.kind for t in things).items():
        colors = {t.color for t in things if t.kind == kind}
        if count > 1 and len(colors) == 1:
            questions.append(Question("color", one(rng, _COLORS, plural(kind)), *colors))
    return questions


def _about_thing(rng: Random, things: list[Thing], thing: Thing, height: int, width: int) -> list[Question]:
    questions: list[Question] = []
    alone, only_color = len(things) == 1, sum(t.color == thing.color for t in things) == 1
    names = _names(things, thing)
    if thing.kind in names:
        text = one(rng, _IT) if alone and rng.random() < 0.3 else one(rng, COLOR, thing.kind)
        questions.append(Question("digit color" if thing.kind == DIGIT else "color", text, thing.color))
        sentence = one(rng, _SENTENCE, thing.kind)
        questions.append(Question("sentence", sentence, f"The {thing.kind} is {thing.color}."))
    if thing.digit is not None:
        if DIGIT in names:
            questions.append(Question("digit", one(rng, _DIGIT), str(thing.digit)))
        elif only_color:
            questions.append(Question("digit", one(rng, _DIGIT_OF, thing.color), str(thing.digit)))
    elif alone:
        questions.append(Question("shape", one(rng, _SHAPE), thing.kind))
    elif only_color:
        questions.append(Question("shape", one(rng, _SHAPE_OF, thing.color), thing.kind))
    if names:
        name = names[rng.integers(len(names))]
        where = position(thing, height, width)
        if where is not None:
            questions.append(Question("position", one(rng, _WHERE, name), where))
        part = thing.size / min(height, width)
        if part < SMALL or part > LARGE:
            questions.append(Question("size", one(rng, _BIG, name), "small" if part < SMALL else "large"))
    return questions


def _about_nothing(rng: Random, scene: Scene) -> list[Question]:
    """About an empty ground, or noise: there everything that is named is "nothing" too."""
    kind = KINDS[rng.integers(len(KINDS))]
    word = NOTHING if scene.ground is None else NONE
    texts = [_IT, _SHAPE, _DIGIT, _TELL]
    questions = [Question("nothing", one(rng, texts[i]), NOTHING) for i in rng.permutation(len(texts))[:2]]
    questions += [Question("nothing", _about_absent(rng, kind, NAMES[rng.integers(len(NAMES))]), word, kind)]
    questions.append(Question("count", one(rng, _MANY, ("things", "shapes", plural(kind))[rng.integers(3)]), "0"))
    questions.append(Question("exists", one(rng, _THERE, f"{NAMES[rng.integers(len(NAMES))]} {kind}"), "no", kind))
    if scene.ground is not None:
        questions.append(Question("background", one(rng, _GROUND), scene.ground))
        questions.append(Question("sentence", one(rng, _SENTENCE, kind), f"There is no {kind}.", kind))
    return questions


def _about_absent(rng: Random, kind: str, color: str) -> str:
    """A question that takes for granted that there is such a thing."""
    texts = [
        one(rng, COLOR, kind),
        one(rng, _WHERE, (kind, f"{color} {kind}")[rng.integers(2)]),
        one(rng, _BIG, kind),
        one(rng, _DIGIT_OF if kind == DIGIT else _SHAPE_OF, color),
    ]
    return texts[rng.choice(4, p=[0.45, 0.3, 0.05, 0.2])]


def _absent(rng: Random, things: list[Thing]) -> list[Question]:
    """About a kind that is not there, or not in this color."""
    kinds, colors = {t.kind for t in things}, {t.color for t in things}
    missing = [kind for kind in KINDS if kind not in kinds]
    kind = missing[rng.integers(len(missing))]
    others = [color for color in NAMES if color not in colors]
    there = sorted(colors)[rng.integers(len(colors))]
    color = others[rng.integers(len(others))]
    texts = [
        one(rng, COLOR, kind),
        one(rng, _WHERE, (kind, f"{there} {kind}")[rng.integers(2)]),
        one(rng, _BIG, kind),
        one(rng, _DIGIT_OF if DIGIT in kinds and rng.random() < 0.5 else _SHAPE_OF, color),
    ]
    questions = [Question("absent", texts[rng.choice(4, p=[0.45, 0.3, 0.05, 0.2])], NONE, kind)]
    thing = things[rng.integers(len(things))]
    questions.append(Question("absent", one(rng, _WHERE, f"{color} {thing.kind}"), NONE, thing.kind))
    if DIGIT not in kinds and rng.random() < 0.5:
        questions.append(Question("absent", one(rng, _DIGIT), NONE, DIGIT))
    if rng.random() < 0.3:
        questions.append(Question("sentence", one(rng, _SENTENCE, kind), f"There is no {kind}.", kind))
    return questions


def _counts(rng: Random, things: list[Thing]) -> list[Question]:
    total, chance = len(things), rng.random()
    if chance < 0.45:
        shapes = all(t.kind != DIGIT for t in things) and rng.random() < 0.6
        return [
            Question(
                "count", one(rng, _MANY, "shapes" if shapes else ("things", "objects")[rng.integers(2)]), str(total)
            )
        ]
    kind = things[rng.integers(total)].kind if rng.random() < 0.88 else KINDS[rng.integers(len(KINDS))]
    color = things[rng.integers(total)].color if rng.random() < 0.88 else NAMES[rng.integers(len(NAMES))]
    if chance < 0.8:
        return [Question("count", one(rng, _MANY, plural(kind)), str(sum(t.kind == kind for t in things)))]
    if chance < 0.92:
        return [Question("count", one(rng, _MANY, f"{color} things"), str(sum(t.color == color for t in things)))]
    number = sum((t.kind, t.color) == (kind, color) for t in things)
    return [Question("count", one(rng, _MANY, f"{color} {plural(kind)}"), str(number))]


def _existence(rng: Random, things: list[Thing]) -> list[Question]:
    thing = things[rng.integers(len(things))]
    kind, color = thing.kind, thing.color
    if rng.random() < 0.55:
        chance, others = rng.random(), [t.color for t in things if t.color != color]
        if others and chance < 0.35:  # what is there, but in the color of another thing
            color = others[rng.integers(len(others))]
        elif chance < 0.7:
            color = NAMES[rng.integers(len(NAMES))]
        else:
            kind = KINDS[rng.integers(len(KINDS))]
    there = any((t.kind, t.color) == (kind, color) for t in things)
    return [Question("exists", one(rng, _THERE, f"{color} {kind}"), "yes" if there else "no", kind)]


def about_pair(rng: Random, first: Scene, second: Scene) -> list[Question]:
    """What can be asked about two images together."""
    questions: list[Question] = []
    for word, mine, other in (("first", first, second), ("second", second, first)):
        for thing in mine.things:
            names = [f"{thing.color} {thing.kind}"]
            if all(t.kind != thing.kind for t in other.things):
                names.append(thing.kind)
            if thing.digit is not None and all(t.digit != thing.digit for t in other.things):
                names = [str(thing.digit), f"digit {thing.digit}"]
            name = names[rng.integers(len(names))]
            if name != names[0] or all((t.kind, t.color) != (thing.kind, thing.color) for t in other.things):
                questions.append(Question("which image", one(rng, _WHICH, name), word))
            elif thing.digit is None:
                questions.append(Question("which image", one(rng, _WHICH, name), BOTH))
        if len(mine.things) == 1:
            questions.append(_about_one_of_pair(rng, mine.things[0], word))
    missing = [kind for kind in KINDS if all(t.kind != kind for t in [*first.things, *second.things])]
    if missing and rng.random() < 0.4:
        kind = missing[rng.integers(len(missing))]
        questions.append(Question("which image", one(rng, _WHICH, kind), NONE))
    return questions


def _about_one_of_pair(rng: Random, thing: Thing, word: str) -> Question:
    if rng.random() < 0.4:
        return Question("of a pair", f"What color is the {thing.kind} in the {word} image?", thing.color)
    if thing.digit is not None:
        return Question("of a pair", f"What digit is in the {word} image?", str(thing.digit))
    return Question("of a pair", f"What shape is in the {word} image?", thing.kind)


def about_video(rng: Random, video: Video) -> list[Question]:
    """What can be asked about a video."""
    kind = video.thing.kind
    questions = [
        Question("shape", "What shape is in the video?", kind),
        Question("move", one(rng, _MOVE, kind), video.move or NONE, "move"),
        Question("exists", f"Does the {kind} move?", "yes" if video.move else "no", "move"),
    ]
    absent = [k for k in KINDS if k != kind][rng.integers(len(KINDS) - 1)]
    questions.append(Question("absent", one(rng, COLOR, absent), NONE, absent))
    shown = {video.thing.color, video.new_color}
    others = [color for color in NAMES if color not in shown]
    if video.change is None or video.new_color is None:
        questions.append(Question("color", one(rng, COLOR, kind), video.thing.color))
        if rng.random() < 0.12:
            never = others[rng.integers(len(others))]
            questions.append(Question("when", one(rng, _WHEN, never, kind), NONE))
        return questions
    stamps = video.timing.stamps
    seconds = f"{stamps[video.change]} seconds"
    if rng.random() < 0.93:
        questions.append(Question("when", one(rng, _WHEN, video.new_color, kind), seconds))
    else:
        questions.append(Question("when", one(rng, _WHEN, others[rng.integers(len(others))], kind), NONE))
    questions.append(Question("color", f"What color is the {kind} at the start?", video.thing.color))
    questions.append(Question("color", f"What color is the {kind} at the end?", video.new_color))
    for grid in rng.permutation(len(stamps))[:2]:  # without these "when" is not learnt
        now = video.new_color if grid >= video.change else video.thing.color
        text = f"What color is {('it', f'the {kind}')[rng.integers(2)]} at {stamps[grid]} seconds?"
        questions.append(Question("color", text, now))
    return questions


def choose(rng: Random, possible: list[Question], count: int, weights: dict[str, float]) -> list[Question]:
    """`count` of the questions, drawn by their tasks' weights, in random order; fewer when there are fewer.

    An answer may not be had from the turns before it, or it is never learnt to be seen: see `TELLING` and `topic`.
    """
    keys = [rng.random() ** (1 / weights.get(q.task, 1.0)) for q in possible]
    selection: list[Question] = []
    for i in sorted(range(len(possible)), key=lambda i: -keys[i]):
        question = possible[i]
        once = question.task in TELLING and any(q.task == question.task for q in selection)
        repeated = question.topic and any(q.topic == question.topic for q in selection)
        if len(selection) < count and not once and not repeated:
            selection.append(question)
    mixed = [selection[i] for i in rng.permutation(len(selection))]
    return sorted(mixed, key=lambda q: q.task not in TELLING) if rng.random() < 0.75 else mixed
