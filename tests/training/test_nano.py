"""The bundled model does what its table says: a part of the examination, on what it never saw."""

from __future__ import annotations

import pytest

from training.nano.evaluate import COLUMNS, RESULTS, answered, by_task, chance, kinds, likeliest, table
from training.nano.exam import COUNTS, Item, items

LEAST = {
    "color": 0.95,
    "shape": 0.95,
    "position": 0.93,
    "count": 0.85,
    "digit": 0.9,
    "digit color": 0.95,
    "of a pair": 0.9,
    "which image": 0.9,
    "move": 0.93,
    "when": 0.87,
}
"""A little under the table's numbers, since a part of the questions is asked."""


@pytest.fixture(scope="module")
def asked() -> list[Item]:
    return [item for kind in kinds(items(seed=1, share=0.12, tasks=tuple(LEAST))) for item in kind]


def right(nano, asked: list[Item], column: tuple[str, ...]) -> list[bool]:
    return [hit for kind in kinds(asked) for hit in likeliest(nano, kind, column)]


def test_answers(nano, asked: list[Item]) -> None:
    scores = by_task(asked, right(nano, asked, ()))
    short = {task: (scores[task], least) for task, least in LEAST.items() if scores[task] < least}
    assert not short, f"task: (part right, least) {short}"


def test_asking_says_what_the_forward_finds_likeliest(nano, asked: list[Item]) -> None:
    some = [item for kind in kinds(asked[::12]) for item in kind]
    assert [answered(nano, item) for item in some] == right(nano, some, ())


def test_the_picture_has_more_than_one_way_in(nano, asked: list[Item]) -> None:
    """Most answers survive without image_features; with DeepStack cut too there is nothing left to see."""
    pictures = [item for item in asked if item.clip is None and item.row in ("color", "shape", "digit")]
    kept = right(nano, pictures, COLUMNS["without image_features"])
    assert sum(kept) / len(kept) >= 0.7
    blind = by_task(pictures, right(nano, pictures, COLUMNS["without either"]))
    for task, guess in chance(pictures).items():
        assert blind[task] <= guess + 0.12, task


def test_the_written_table_has_every_task() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    assert [task for task in COUNTS if f"| {task} | {COUNTS[task]} |" in text] == list(COUNTS)


def test_the_table_counts_and_formats() -> None:
    asked = items(seed=0, share=0.01, tasks=("color", "shape"))
    lines = table(asked, {"right": {"color": 1.0, "shape": 0.5}}).splitlines()
    assert lines[2:] == ["| color | 3 | 100.0 |", "| shape | 3 | 50.0 |"]
