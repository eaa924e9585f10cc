"""Puts the world's pictures, clips and questions together into training batches, as plain numpy arrays.

All samples of a batch have one layout (the sizes of its pictures, or of its clip), so that they stack. Several
questions about a sample follow each other as the turns of one chat: with one question a picture the model learnt
colours and nothing else. This module does not know torch; `collate` makes the model's `Inputs` of what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.nano import questions, world
from training.nano.draw import Random
from training.nano.questions import Question
from training.nano.world import CELL, Source, Timing

Ids = NDArray[np.int64]

SIZES = (
    *((64, 64), (64, 96), (96, 64), (96, 96), (96, 96), (96, 96), (96, 128), (128, 96), (128, 128), (128, 128)),
    *((64, 128), (128, 64), (96, 160), (160, 96)),
)
PAIR_SIZES = ((64, 64), (64, 64), (64, 64), (64, 96), (96, 64), (96, 96))
CLIP_SIZES = {
    2: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96), (96, 128)),
    3: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96)),
    4: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96)),
}


@dataclass(frozen=True)
class Layout:
    """What every sample of a batch looks like: `sizes` of its pictures in pixels, or of a clip of `grids` grids."""

    sizes: tuple[tuple[int, int], ...]
    grids: int = 0

    @property
    def tokens(self) -> int:
        """Picture tokens of one sample."""
        return sum(h * w for h, w in self.sizes) // CELL**2 * max(1, self.grids)


@dataclass
class Batch:
    """One batch of samples.

    - `ids` [batch seq]: tokens, padded on the right; `answers` [batch seq]: true at the tokens to be predicted.
    - `pixels`: per picture of the layout [batch 1 height width 3], or for a clip [batch frames height width 3], uint8.
    - `cells` [batch tokens 4]: of each picture token content, colour, place and middles (`world.LABELS`).
    - `asked`: the questions of each sample, in their order; `timings`: when its frames were taken (clips).
    """

    layout: Layout
    ids: Ids
    answers: NDArray[np.bool_]
    pixels: list[NDArray[np.uint8]]
    cells: Ids
    asked: list[list[Question]]
    timings: list[Timing | None]


@dataclass
class Views:
    """Pictures of one size without questions: `pixels` [batch 1 height width 3] uint8, `cells` [batch tokens 4]."""

    layout: Layout
    pixels: NDArray[np.uint8]
    cells: Ids


@dataclass(frozen=True)
class Recipe:
    """How batches are drawn.

    - `source`: where digits come from; `turns`: questions a sample; `tokens`: of a batch, about.
    - `views`: picture tokens of a batch without questions.
    - `pairs`, `clips`: part of the batches; `digit_share`: part of the things that are digits.
    - `crowded`, `alike`, `few`: of the pictures outside pairs, how many show much, shapes of one kind, or of two.
    """

    source: Source = field(default_factory=Source)
    turns: int = 4
    tokens: int = 2400
    views: int = 400
    pairs: float = 0.22
    clips: float = 0.3
    digit_share: float = 0.55
    crowded: float = 0.6
    alike: float = 0.3
    few: float = 0.5


class Writer:
    """Writes chats as token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        token = tokenizer.get_vocab().__getitem__
        self.start, self.end, self.pad = token("<|im_start|>"), token("<|im_end|>"), token("<|endoftext|>")
        self.vision = token("<|vision_start|>"), token("<|vision_end|>")
        self.image, self.video = token("<|image_pad|>"), token("<|video_pad|>")
        self._tokenizer = tokenizer
        self.encode = lru_cache(maxsize=65536)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)

    def visual(self, layout: Layout, stamps: Sequence[str]) -> list[int]:
        """The placeholders that come before the first question."""
        start, end = self.vision
        if not layout.grids:
            return [i for h, w in layout.sizes for i in (start, *[self.image] * (h * w // CELL**2), end)]
        (height, width), ids = layout.sizes[0], []
        for stamp in stamps:
            ids += [*self.encode(f"<{stamp} seconds>"), start, *[self.video] * (height * width // CELL**2), end]
        return ids

    def chat(self, visual: list[int], asked: list[Question]) -> tuple[list[int], list[bool]]:
        """Ids of the whole chat, and which of them are to be predicted: each answer and the end of its turn."""
        ids: list[int] = []
        targets: list[bool] = []
        newline = self.encode("\n")
        for turn, question in enumerate(asked):
            words = (
                [*self.encode("user\n"), *visual, *self.encode(question.text)]
                if turn == 0
                else self.encode(f"user\n{question.text}")
            )
            before = [self.start, *words, self.end, *newline, self.start, *self.encode("assistant\n")]
            answer = [*self.encode(question.answer), self.end]
            after = newline if turn + 1 < len(asked) else ()
            ids += [*before, *answer, *after]
            targets += [False] * len(before) + [True] * len(answer) + [False] * len(after)
        return ids, targets


def draw_layout(rng: Random, recipe: Recipe, ease: float) -> Layout:
    """What the next batch looks like; one small picture while the task is easy."""
    kind = rng.random()
    late = max(0.0, 1 - 1.6 * ease)  # pairs and clips come in as the first third ends
    if kind < recipe.pairs * late:
        return Layout(tuple(PAIR_SIZES[i] for i in rng.integers(len(PAIR_SIZES), size=2)))
    if kind < (recipe.pairs + recipe.clips) * late:
        grids = int(rng.choice([2, 3, 4], p=[0.12, 0.2, 0.68]))
        sizes = CLIP_SIZES[grids]
        return Layout((sizes[rng.integers(len(sizes))],), grids)
    if rng.random() < ease:
        return Layout((SIZES[0],))
    return Layout((SIZES[rng.integers(len(SIZES))],))


@dataclass
class _Sample:
    """Pixels of each picture, or of the clip; the labels of its tokens; everything that can be asked about it."""

    pixels: list[NDArray[np.uint8]]
    cells: Ids
    possible: list[Question]
    timing: Timing | None = None


def _sample(rng: Random, layout: Layout, recipe: Recipe, ease: float) -> _Sample:
    if layout.grids:
        clip = world.clip(rng, layout.grids, *layout.sizes[0], ease=ease)
        return _Sample(
            [clip.frames], clip.cells.reshape(-1, len(world.LABELS)), questions.about_clip(rng, clip), clip.timing
        )
    share: dict[str, Any] = {"source": recipe.source, "ease": ease, "digit_share": recipe.digit_share}
    pair = len(layout.sizes) == 2
    if pair and rng.random() < 0.7:  # mostly one thing in each picture of a pair
        share["most"] = 1
    if not pair:
        share |= {"crowded": recipe.crowded, "alike": recipe.alike, "few": recipe.few}
    scenes = [world.scene(rng, *layout.sizes[0], **share)]
    if pair:
        scenes.append(_second(rng, scenes[0], layout.sizes[1], share))
        asked = questions.about_pair(rng, *scenes)
    else:
        asked = questions.about_scene(rng, scenes[0])
    cells = np.concatenate([s.cells.reshape(-1, len(world.LABELS)) for s in scenes])
    return _Sample([s.picture[None] for s in scenes], cells, asked)


def _second(rng: Random, first: world.Scene, size: tuple[int, int], share: dict[str, Any]) -> world.Scene:
    """The second picture of a pair; every other time with something of the first one's kind, or of its colour."""
    like = first.things[0]
    kind, color = like.kind, like.color
    chance = rng.random()
    if chance < 0.3:
        color = world.TONES[rng.integers(len(world.TONES))]
    elif chance < 0.6:
        kind = (*world.draw.SHAPES, world.DIGIT)[rng.integers(len(world.draw.SHAPES) + 1)]
    else:
        return world.scene(rng, *size, **share)
    return world.scene(rng, *size, first=(kind, color), **share)


def make(rng: Random, writer: Writer, recipe: Recipe, ease: float = 0.0, layout: Layout | None = None) -> Batch:
    """One batch, of as many samples as make about `recipe.tokens` tokens."""
    layout = layout or draw_layout(rng, recipe, ease)
    count = max(8, round(recipe.tokens / (1.6 * layout.tokens + 17 * recipe.turns + 8 + 8 * layout.grids)))
    chats, samples, asked = [], [], []
    while len(chats) < count:
        sample = _sample(rng, layout, recipe, ease)
        chosen = questions.choose(rng, sample.possible, recipe.turns, questions.WEIGHTS)
        if not chosen:  # a pair in which nothing can be told apart
            continue
        chats.append(writer.chat(writer.visual(layout, sample.timing.stamps if sample.timing else ()), chosen))
        samples.append(sample)
        asked.append(chosen)
    ids, answers = _pad(chats, writer.pad)
    pixels = [np.stack(pictures) for pictures in zip(*(s.pixels for s in samples), strict=True)]
    return Batch(layout, ids, answers, pixels, np.stack([s.cells for s in samples]), asked, [s.timing for s in samples])


def make_views(rng: Random, recipe: Recipe, ease: float = 0.0) -> Views:
    """Pictures to be named only: many more for the same work than with questions."""
    small = rng.random() < max(ease, 0.65)  # what a digit is does not depend on the picture around it
    sizes = SIZES[: 1 if rng.random() < max(ease, 0.7) else 3] if small else SIZES
    layout = Layout((sizes[rng.integers(len(sizes))],))
    share: dict[str, Any] = {"source": recipe.source, "ease": ease, "digit_share": recipe.digit_share}
    scenes = [world.scene(rng, *layout.sizes[0], **share) for _ in range(round(recipe.views / layout.tokens))]
    pixels = np.stack([s.picture[None] for s in scenes])
    return Views(layout, pixels, np.stack([s.cells.reshape(-1, len(world.LABELS)) for s in scenes]))


def _pad(chats: list[tuple[list[int], list[bool]]], pad: int) -> tuple[Ids, NDArray[np.bool_]]:
    length = max(len(ids) for ids, _ in chats)
    ids = np.full((len(chats), length), pad, dtype=np.int64)
    answers = np.zeros((len(chats), length), dtype=bool)
    for row, (tokens, targets) in enumerate(chats):
        ids[row, : len(tokens)], answers[row, : len(tokens)] = tokens, targets
    return ids, answers
