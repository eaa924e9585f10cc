"""Examination questions about pictures, pairs and clips that were never trained on, one question each.

Handwritten digits are the 360 scans kept out of the training, each asked for once, drawn as they were scanned.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from training.nano import draw, questions, world
from training.nano.batches import CLIP_SIZES, PAIR_SIZES, SIZES
from training.nano.draw import Picture, Random
from training.nano.questions import Question
from training.nano.world import DIGIT, Source, Timing

COUNTS = {
    "color": 300,
    "color among several": 200,
    "shape": 300,
    "shape among several": 200,
    "position": 300,
    "position among several": 200,
    "count": 300,
    "size": 200,
    "background": 200,
    "exists": 200,
    "description": 200,
    "digit": draw.HELD_OUT_DIGITS,
    "digit color": 200,
    "which image": 300,
    "which image among several": 200,
    "of a pair": 200,
    "move": 300,
    "when": 300,
}
"""How many questions of each task; rows of the result table. "Among several" and "count": the picture shows two to
four things, or one of the two pictures does; in the other rows about where and which there is one in each picture.
"""

SEVERAL = " among several"

SOURCE = Source("test", 0.0)


@dataclass(frozen=True)
class Item:
    """One question with its pictures or its clip; `row` is the row of the result table that it counts for."""

    row: str
    question: Question
    pictures: list[Picture] = field(default_factory=list)
    clip: Picture | None = None
    timing: Timing | None = None

    @property
    def media(self) -> dict[str, Any]:
        """`images`, `videos` and the clip's metadata, as the processor takes them."""
        if self.clip is None or self.timing is None:
            return {"images": self.pictures}
        told = {
            "fps": self.timing.rate,
            "total_num_frames": self.timing.total,
            "frames_indices": list(self.timing.indices),
        }
        return {"videos": [self.clip], "video_metadata": [told], "do_sample_frames": False}


def _any(rng: Random, sizes: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    return sizes[rng.integers(len(sizes))]


def _candidates(rng: Random, task: str) -> list[Item]:
    """A random picture, pair or clip with everything that is asked about it."""
    if task in ("move", "when"):
        grids = int(rng.integers(2, 5))
        clip = world.clip(rng, grids, *_any(rng, CLIP_SIZES[grids]))
        return [Item(task, q, clip=clip.frames, timing=clip.timing) for q in questions.about_clip(rng, clip)]
    digits = 0.0 if task in ("shape", "color") else 1.0 if task == "digit color" else 0.4
    most = 1 if task in ("shape", "color", "position") else 4
    if task.removesuffix(SEVERAL) in ("which image", "of a pair"):
        most = 4 if task.endswith(SEVERAL) else 1
        pair = [world.scene(rng, *_any(rng, PAIR_SIZES), source=SOURCE, digit_share=digits, most=most) for _ in "12"]
        if most > 1 and all(len(scene.things) == 1 for scene in pair):
            return []
        return [Item(task, q, [s.picture for s in pair]) for q in questions.about_pair(rng, *pair)]
    scene = world.scene(rng, *_any(rng, SIZES), source=SOURCE, digit_share=digits, most=most)
    if (task == "count" or task.endswith(SEVERAL)) and len(scene.things) == 1:
        return []
    return [Item(task, q, [scene.picture]) for q in questions.about_scene(rng, scene)]


def _held_out_digit(rng: Random, index: int) -> Item:
    scene = world.scene(rng, *_any(rng, SIZES), source=replace(SOURCE, index=index), kinds=[DIGIT])
    return Item("digit", next(q for q in questions.about_scene(rng, scene) if q.task == "digit"), [scene.picture])


def items(seed: int, share: float = 1.0, tasks: tuple[str, ...] = tuple(COUNTS)) -> list[Item]:
    """`share` of the questions of each task, the same for the same seed."""
    found: list[Item] = []
    for task in tasks:
        rng = np.random.default_rng([seed, list(COUNTS).index(task)])
        wanted = round(COUNTS[task] * share)
        if task == "digit":
            scans = rng.permutation(draw.HELD_OUT_DIGITS)[:wanted]
            found += [_held_out_digit(rng, int(index)) for index in scans]
            continue
        while wanted:
            fitting = [item for item in _candidates(rng, task) if item.question.task == task.removesuffix(SEVERAL)]
            if fitting:
                found.append(fitting[rng.integers(len(fitting))])
                wanted -= 1
    return found


def chance(asked: list[Item]) -> dict[str, float]:
    """For each task, how often its commonest answer is right: what can be had without looking."""
    answers: dict[str, Counter[str]] = {}
    for item in asked:
        answers.setdefault(item.row, Counter())[item.question.answer] += 1
    return {task: max(count.values()) / sum(count.values()) for task, count in answers.items()}
