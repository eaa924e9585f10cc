"""Examines a model on held-out pictures and clips, and writes the table that the README shows::

    python -m training.nano.evaluate --model nano --write

Answers are generated greedily by the real pipeline, pictures as arrays in, words out. The other columns cut ways from
the picture into the text model: `image_features` alone, the DeepStack terms alone, all of them. There an answer counts
when each of its tokens is the likeliest one after those before it, which is what greedy generation would say.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cutaway
from cutaway.batch import Inputs
from cutaway.observe import observer
from training.nano.exam import Item, chance, items
from training.nano.ways import FEATURES, TERM, Cut

COLUMNS = {
    "without image_features": FEATURES,
    "without DeepStack": (TERM,),
    "without either": (*FEATURES, TERM),
}
END = "<|im_end|>"
RESULTS = Path(__file__).parent / "RESULTS.md"


def answered(model: cutaway.Model, item: Item) -> bool:
    """Whether the model, asked as a user asks it, gives the answer."""
    said = model.ask(item.question.text, **item.media, max_new_tokens=12, temperature=0)
    return said == item.question.answer


@contextlib.contextmanager
def without(names: tuple[str, ...]) -> Iterator[None]:
    """Zeroes these values in every forward inside."""
    token = observer.set(Cut(names))
    try:
        yield
    finally:
        observer.reset(token)


def prepared(model: cutaway.Model, batch: list[Item]) -> tuple[Inputs, torch.Tensor]:
    """The chats with their answers, and how many tokens at the end of each row are the answer."""
    media: dict[str, Any] = defaultdict(list)
    texts, lengths = [], []
    for item in batch:
        prompt = model.prompt(item.question.text, images=len(item.pictures), videos=int(item.clip is not None))
        texts.append(str(prompt) + item.question.answer + END)
        lengths.append(len(model.tokenizer.encode(item.question.answer)) + 1)
        for key, value in item.media.items():
            media[key] = value if isinstance(value, bool) else media[key] + value
    return model.processor(text=texts, **media, padding_side="left"), torch.tensor(lengths)


@torch.inference_mode()
def likeliest(model: cutaway.Model, asked: list[Item], names: tuple[str, ...], size: int = 24) -> list[bool]:
    """For each question whether every token of its answer is the likeliest, with these values zeroed."""
    right: list[bool] = []
    for start in range(0, len(asked), size):
        inputs, lengths = prepared(model, asked[start : start + size])
        with without(names):
            best = model.root(inputs)[:, :-1].argmax(-1)
        target = inputs.input_ids[:, 1:]
        width = target.shape[1]
        answer = torch.arange(width)[None] >= width - lengths[:, None]
        right += ((best == target) | ~answer).all(-1).tolist()
    return right


def by_task(asked: list[Item], right: list[bool]) -> dict[str, float]:
    """Part of right answers of each task, in order of first appearance."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for item, hit in zip(asked, right, strict=True):
        hits[item.row].append(hit)
    return {task: float(np.mean(values)) for task, values in hits.items()}


def kinds(asked: list[Item]) -> Iterator[list[Item]]:
    """The questions about pictures and those about clips: a batch holds one kind."""
    yield [item for item in asked if item.clip is None]
    yield [item for item in asked if item.clip is not None]


def examine(model: cutaway.Model, asked: list[Item]) -> dict[str, dict[str, float]]:
    """Columns of the table: name -> task -> part right."""
    asked = [item for kind in kinds(asked) for item in kind]
    columns = {"right": by_task(asked, [answered(model, item) for item in asked])}
    for name, names in COLUMNS.items():
        right = [hit for kind in kinds(asked) for hit in likeliest(model, kind, names)]
        columns[name] = by_task(asked, right)
    return {**columns, "commonest answer": chance(asked)}


def table(asked: list[Item], columns: dict[str, dict[str, float]]) -> str:
    """The columns as a Markdown table, in percent."""
    counts: dict[str, int] = defaultdict(int)
    for item in asked:
        counts[item.row] += 1
    lines = ["| task | questions | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) + 1)]
    for task, count in counts.items():
        cells = " | ".join(f"{100 * column[task]:.1f}" for column in columns.values())
        lines.append(f"| {task} | {count} | {cells} |")
    return "\n".join(lines) + "\n"


HEAD = """\
# What nano can do

Written by `python -m training.nano.evaluate --write`. Percent right, on pictures, pairs and clips drawn for this table;
the handwritten digits are the 360 scans that were never trained on. "Commonest answer" is what one gets without
looking. For "when" a blind guess is better than that, since the prompt has the time stamps: see "without either".

"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Examines the bundled model.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--share", type=float, default=1.0, help="part of the questions to ask")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    model = cutaway.load(options.model)
    asked = items(options.seed, options.share)
    text = table(asked, examine(model, asked))
    print(text)
    if options.write:
        RESULTS.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
