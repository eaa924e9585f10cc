"""Examines a model on images and videos that it never saw, and writes RESULTS.md::

    python -m training.nano.evaluate --model nano --write

The questions come from `exam`. An answer counts when each of its tokens is the likeliest one after those before it,
which is what greedy generation says. The other columns cut routes from the image into the text model: `image_features`
alone, the DeepStack terms alone, all of them. Calibration compares the probability of the likeliest first token with
how often it is right.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import cutaway
from cutaway.batch import Inputs
from cutaway.observe import observer
from training.nano.exam import Item, chance, items, outside
from training.nano.routes import FEATURES, TERM, Cut

COLUMNS = {
    "without image_features": FEATURES,
    "without DeepStack": (TERM,),
    "without either": (*FEATURES, TERM),
}
END = "<|im_end|>"
RESULTS = Path(__file__).parent / "RESULTS.md"
BINS = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0001)


@dataclass(frozen=True)
class Mark:
    """How one question went: `right` in every token; the `first` token right; the `confidence` of the likeliest one."""

    right: bool
    first: bool
    confidence: float


def answered(model: cutaway.Model, item: Item) -> bool:
    """Whether the model, asked as a user asks it, gives the answer."""
    answer = model.ask(item.question, **item.media, max_new_tokens=12, temperature=0)
    return answer == item.answer


@contextlib.contextmanager
def without(names: tuple[str, ...]) -> Iterator[None]:
    """Zeroes these values in every forward inside."""
    token = observer.set(Cut(names))
    try:
        yield
    finally:
        observer.reset(token)


def prepared(model: cutaway.Model, batch: list[Item]) -> tuple[Inputs, torch.Tensor]:
    """The chats with their answers, and how many tokens at the end of each sample are the answer."""
    media: dict[str, Any] = defaultdict(list)
    texts, lengths = [], []
    for item in batch:
        prompt = model.prompt(item.question, images=len(item.images), videos=int(item.video is not None))
        texts.append(str(prompt) + item.answer + END)
        lengths.append(len(model.tokenizer.encode(item.answer)) + 1)
        for key, value in item.media.items():
            media[key] = value if isinstance(value, bool) else media[key] + value
    return model.processor(text=texts, **media, padding_side="left"), torch.tensor(lengths)


@torch.inference_mode()
def marks(model: cutaway.Model, questions: list[Item], names: tuple[str, ...] = (), size: int = 24) -> list[Mark]:
    """How each question goes with these values zeroed; questions about images and about videos may be mixed."""
    results: dict[int, Mark] = {}
    videos = [[i for i, item in enumerate(questions) if (item.video is not None) is kind] for kind in (False, True)]
    for indices in videos:
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            inputs, lengths = prepared(model, [questions[i] for i in batch])
            with without(names):
                logits = model.root(inputs)[:, :-1].float()
            hit = logits.argmax(-1) == inputs.input_ids[:, 1:]
            width = hit.shape[1]
            answer = torch.arange(width)[None] >= width - lengths[:, None]
            right = (hit | ~answer).all(-1)
            for sample, i in enumerate(batch):
                first = width - int(lengths[sample])
                confidence = float(logits[sample, first].softmax(-1).max())
                results[i] = Mark(bool(right[sample]), bool(hit[sample, first]), confidence)
    return [results[i] for i in range(len(questions))]


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, shrink = right / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / shrink
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / shrink
    return max(0.0, middle - half), min(1.0, middle + half)


def by(keys: list[Any], right: list[bool]) -> dict[Any, tuple[int, int]]:
    """For each key, in order of first appearance, how many are right and how many there are."""
    counts: dict[Any, tuple[int, int]] = {}
    for key, hit in zip(keys, right, strict=True):
        good, total = counts.get(key, (0, 0))
        counts[key] = good + hit, total + 1
    return counts


def table(questions: list[Item], columns: dict[str, list[bool]], guess: dict[str, float]) -> str:
    """The columns by row as a Markdown table, in percent; the first one with its interval."""
    rows = [item.row for item in questions]
    scores = [by(rows, right) for right in columns.values()]
    head = ["task", "questions", next(iter(columns)), "95 % interval", *list(columns)[1:], "commonest answer"]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row, (right, total) in scores[0].items():
        low, high = wilson(right, total)
        cells = [f"{100 * right / total:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"]
        cells += [f"{100 * score[row][0] / total:.1f}" for score in scores[1:]]
        lines.append(f"| {row} | {total} | " + " | ".join([*cells, f"{100 * guess[row]:.1f}"]) + " |")
    return "\n".join(lines) + "\n"


def weakest(questions: list[Item], right: list[bool], most: int = 3) -> str:
    """For each row the strata with the fewest right answers, as a Markdown table."""
    strata = by([(item.row, item.stratum) for item in questions], right)
    lines = ["| task | strata | weakest strata (right of asked) |", "| --- | ---: | --- |"]
    for row in dict.fromkeys(item.row for item in questions):
        mine = sorted((good / total, name, good, total) for (r, name), (good, total) in strata.items() if r == row)
        short = [f"{name} ({good} of {total})" for share, name, good, total in mine[:most] if share < 1]
        lines.append(f"| {row} | {len(mine)} | {', '.join(short) or 'none below 100 %'} |")
    return "\n".join(lines) + "\n"


def calibration(inside: list[Mark], out: list[Mark]) -> str:
    """By confidence, how many questions there are and how often the first token is right, as a Markdown table."""
    lines = ["| confidence | inside: questions | right | outside: questions |", "| --- | ---: | ---: | ---: |"]
    for low, high in pairwise(BINS):
        within = [mark.first for mark in inside if low <= mark.confidence < high]
        beyond = sum(low <= mark.confidence < high for mark in out)
        share = f"{100 * sum(within) / len(within):.1f}" if within else "-"
        lines.append(f"| {low:g} to {min(high, 1):g} | {len(within)} | {share} | {beyond} |")
    return "\n".join(lines) + "\n"


HEAD = """\
# What nano can do

Written by `python -m training.nano.evaluate --write`. Percent right on images and videos that `exam_draw` drew for this
table; it shares no drawing code with the training. Handwritten digits are the 360 scans that were never trained on,
printed ones are set in faces, and the rates of "when, new rates" are ones, that the training never had. "Commonest
answer" is what one gets without looking. For "when" a blind guess is better than that, since the prompt has the time
stamps: see "without either".

"""
LEFT_OUT = """\
## What was left out

- Pairs of ink and ground less than ΔE*ab 20 apart (none of the ten names' tones here), colors other than the ten names,
  and tones between two names.
- Things that overlap, touch or leave the image; more than six things; things smaller than 12 pixels in 128 x 128.
- Places that are not clear: corners, and the belt between the center and a side. Sizes between small and large.
- Digits turned by more than 50 degrees, of more than one figure, or smaller than a third of the image.
- More than two images, more than one thing in a video, changes within a temporal grid of two frames, videos above
  twelve frames.
- Any shape, word or question that is not in `questions.py`, and photographs.
"""


def report(questions: list[Item], columns: dict[str, list[Mark]], out: list[Mark]) -> str:
    """The whole of RESULTS.md after its head."""
    right = {name: [mark.right for mark in results] for name, results in columns.items()}
    normal = next(iter(columns))
    return "\n".join(
        [
            table(questions, right, chance(questions)),
            "## Where it is weakest\n\nWithin a task every stratum has equally many questions, but where it is the"
            " answer of a scan or of chance.\n",
            weakest(questions, right[normal]),
            "## Calibration\n\nThe probability of the likeliest first token, in the world and outside it (hexagons,"
            "\nellipses, brown, cyan and other colors, letters asked for as digits: there no answer is right).\n",
            calibration(columns[normal], out),
            LEFT_OUT,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Examines the bundled model.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--share", type=float, default=1.0, help="part of the questions to ask")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, help=f"write a file, {RESULTS.name} by default")
    options = parser.parse_args()
    model = cutaway.load(options.model)
    questions = items(options.seed, options.share)
    columns = {"right": marks(model, questions)}
    columns |= {name: marks(model, questions, names) for name, names in COLUMNS.items()}
    text = report(questions, columns, marks(model, outside(options.seed)))
    print(text)
    if options.write:
        options.write.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
