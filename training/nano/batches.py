"""Puts the world's images, videos and questions together into training batches, as plain numpy arrays.

All samples of a batch have one layout (the sizes of its images, or of its video), so that they stack. Several
questions about a sample follow each other as the turns of one chat: with one question an image the model learnt
colors and nothing else. This module does not know torch; `collate` makes the model's `Inputs` of what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.nano import questions, world
from training.nano.colors import NAMES, Random
from training.nano.questions import Question
from training.nano.world import CELL, KINDS, LABELS, Look, Mix, Timing

Ids = NDArray[np.int64]

SIZES = (
    *((64, 64), (64, 96), (96, 64), (96, 96), (96, 96), (96, 128), (128, 96), (128, 128), (128, 128), (128, 128)),
    *((64, 128), (128, 64), (96, 160), (160, 96)),
)
PAIR_SIZES = ((64, 64), (64, 64), (64, 64), (64, 96), (96, 64), (96, 96))
VIDEO_SIZES = {
    1: ((96, 96), (128, 128)),
    2: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96), (96, 128)),
    3: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96)),
    4: ((64, 64), (64, 64), (64, 96), (96, 64), (96, 96)),
    5: ((64, 64),),
    6: ((64, 64),),
}
"""Height and width of videos by their temporal grids."""
GRID_SHARES = {1: 0.03, 2: 0.15, 3: 0.2, 4: 0.52, 5: 0.06, 6: 0.04}


@dataclass(frozen=True)
class Layout:
    """The layout of all samples of a batch: `sizes` of its images in pixels, or of a video of `grids` grids."""

    sizes: tuple[tuple[int, int], ...]
    grids: int = 0

    @property
    def tokens(self) -> int:
        """Image tokens of one sample."""
        return sum(h * w for h, w in self.sizes) // CELL**2 * max(1, self.grids)


@dataclass
class Batch:
    """One batch of samples.

    - `ids` [batch seq]: tokens, padded on the right; `answers` [batch seq]: true at the tokens to be predicted.
    - `pixels`: per image of the layout [batch 1 height width 3], or for a video [batch frames height width 3], uint8.
    - `cells` [batch tokens LABELS]: the labels of each image token (`world.NAMED` and `world.PARTS`).
    - `questions`: those of each sample, in their order; `timings`: when its frames were taken (videos).
    """

    layout: Layout
    ids: Ids
    answers: NDArray[np.bool_]
    pixels: list[NDArray[np.uint8]]
    cells: Ids
    questions: list[list[Question]]
    timings: list[Timing | None]


@dataclass
class Views:
    """Images of one size without questions: `pixels` [batch 1 height width 3] uint8, `cells` [batch tokens LABELS]."""

    layout: Layout
    pixels: NDArray[np.uint8]
    cells: Ids


@dataclass(frozen=True)
class Recipe:
    """How batches are drawn.

    - `look`, `mix`: how things are drawn, and what images show.
    - `turns`: questions a sample; `tokens`: of a batch, about; `views`: image tokens of a batch without questions.
    - `pairs`, `videos`: shares of the batches.
    """

    look: Look = field(default_factory=Look)
    mix: Mix = field(default_factory=Mix)
    turns: int = 4
    tokens: int = 1800
    views: int = 300
    pairs: float = 0.2
    videos: float = 0.3


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

    def chat(self, visual: list[int], questions: list[Question]) -> tuple[list[int], list[bool]]:
        """Ids of the whole chat, and which of them are to be predicted: each answer and the end of its turn."""
        ids: list[int] = []
        targets: list[bool] = []
        newline = self.encode("\n")
        for turn, question in enumerate(questions):
            words = (
                [*self.encode("user\n"), *visual, *self.encode(question.text)]
                if turn == 0
                else self.encode(f"user\n{question.text}")
            )
            before = [self.start, *words, self.end, *newline, self.start, *self.encode("assistant\n")]
            answer = [*self.encode(question.answer), self.end]
            after = newline if turn + 1 < len(questions) else ()
            ids += [*before, *answer, *after]
            targets += [False] * len(before) + [True] * len(answer) + [False] * len(after)
        return ids, targets


def draw_layout(rng: Random, recipe: Recipe, ease: float) -> Layout:
    """What the next batch looks like; one small image while the task is easy."""
    kind = rng.random()
    late = max(0.0, 1 - 1.6 * ease)  # pairs and videos come in later
    if kind < recipe.pairs * late:
        return Layout(tuple(PAIR_SIZES[i] for i in rng.integers(len(PAIR_SIZES), size=2)))
    if kind < (recipe.pairs + recipe.videos) * late:
        grids = int(rng.choice(list(GRID_SHARES), p=list(GRID_SHARES.values())))
        sizes = VIDEO_SIZES[grids]
        return Layout((sizes[rng.integers(len(sizes))],), grids)
    if rng.random() < ease:
        return Layout((SIZES[0],))
    return Layout((SIZES[rng.integers(len(SIZES))],))


@dataclass
class _Sample:
    """Pixels of each image, or of the video; the labels of its tokens; everything that can be asked about it."""

    pixels: list[NDArray[np.uint8]]
    cells: Ids
    possible: list[Question]
    timing: Timing | None = None


def _sample(rng: Random, layout: Layout, recipe: Recipe, ease: float) -> _Sample:
    if layout.grids:
        video = world.video(rng, layout.grids, *layout.sizes[0], recipe.look, ease=ease)
        possible = questions.about_video(rng, video)
        return _Sample([video.frames], video.cells.reshape(-1, LABELS), possible, video.timing)
    if len(layout.sizes) == 2:
        scenes = list(_pair(rng, layout, recipe, ease))
        possible = questions.about_pair(rng, *scenes)
    else:
        scenes = [_scene(rng, layout.sizes[0], recipe, ease)]
        possible = questions.about_scene(rng, scenes[0])
    cells = np.concatenate([s.cells.reshape(-1, LABELS) for s in scenes])
    return _Sample([s.image[None] for s in scenes], cells, possible)


def _scene(rng: Random, size: tuple[int, int], recipe: Recipe, ease: float) -> world.Scene:
    return world.scene(rng, *size, world.contents(rng, recipe.mix, size, ease), recipe.look, ease)


def _pair(rng: Random, layout: Layout, recipe: Recipe, ease: float) -> tuple[world.Scene, world.Scene]:
    """Two images, mostly of one thing each; two times in three the second has the first one's kind, or its color."""
    most = 1 if rng.random() < 0.7 else 4
    mix = Mix(noise=0, empty=0, counted=0, digits=recipe.mix.digits)
    first, second = (world.contents(rng, mix, size, ease, most) for size in layout.sizes)
    one = world.scene(rng, *layout.sizes[0], first, recipe.look, ease)
    like, chance = one.things[0], rng.random()
    if chance < 0.3:
        second = replace(second, first=(like.kind, NAMES[rng.integers(len(NAMES))]))
    elif chance < 0.6:
        second = replace(second, first=(KINDS[rng.integers(len(KINDS))], like.color))
    elif chance < 0.66:
        second = replace(second, first=(like.kind, like.color))
    return one, world.scene(rng, *layout.sizes[1], second, recipe.look, ease)


def make(rng: Random, writer: Writer, recipe: Recipe, ease: float = 0.0, layout: Layout | None = None) -> Batch:
    """One batch, of as many samples as make about `recipe.tokens` tokens."""
    layout = layout or draw_layout(rng, recipe, ease)
    count = max(8, round(recipe.tokens / (1.6 * layout.tokens + 17 * recipe.turns + 8 + 8 * layout.grids)))
    chats, samples, selections = [], [], []
    while len(chats) < count:
        sample = _sample(rng, layout, recipe, ease)
        some = questions.choose(rng, sample.possible, recipe.turns, questions.WEIGHTS)
        if not some:  # a pair in which nothing can be told apart
            continue
        chats.append(writer.chat(writer.visual(layout, sample.timing.stamps if sample.timing else ()), some))
        samples.append(sample)
        selections.append(some)
    ids, answers = _pad(chats, writer.pad)
    pixels = [np.stack(images) for images in zip(*(s.pixels for s in samples), strict=True)]
    cells = np.stack([s.cells for s in samples])
    return Batch(layout, ids, answers, pixels, cells, selections, [s.timing for s in samples])


def make_views(rng: Random, recipe: Recipe, ease: float = 0.0) -> Views:
    """Images to be labelled only: many more for the same work than with questions."""
    small = rng.random() < max(ease, 0.5)  # what a digit is does not depend on the image around it
    sizes = SIZES[: 1 if rng.random() < max(ease, 0.6) else 3] if small else SIZES
    layout = Layout((sizes[rng.integers(len(sizes))],))
    scenes = [_scene(rng, layout.sizes[0], recipe, ease) for _ in range(round(recipe.views / layout.tokens))]
    pixels = np.stack([s.image[None] for s in scenes])
    return Views(layout, pixels, np.stack([s.cells.reshape(-1, LABELS) for s in scenes]))


def _pad(chats: list[tuple[list[int], list[bool]]], pad: int) -> tuple[Ids, NDArray[np.bool_]]:
    length = max(len(ids) for ids, _ in chats)
    ids = np.full((len(chats), length), pad, dtype=np.int64)
    answers = np.zeros((len(chats), length), dtype=bool)
    for row, (tokens, targets) in enumerate(chats):
        ids[row, : len(tokens)], answers[row, : len(tokens)] = tokens, targets
    return ids, answers
