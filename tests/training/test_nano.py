"""The bundled model does what its table says: a part of the examination, on what it never saw.

The marks are those of the world that the bundled weights were trained on; what the examination has beyond it is for the
next weights (see training/nano/README.md).
"""

from __future__ import annotations

import pytest

from tests.repo.source import ROOT
from training.nano.evaluate import COLUMNS, RESULTS, answered, by, marks
from training.nano.exam import Item, chance, items

LEAST = {
    "color": 0.97,
    "shape, upright filled": 0.9,
    "position": 0.97,
    "size": 0.85,
    "exists": 0.9,
    "digit, handwritten": 0.93,
    "digit color": 0.95,
    "of a pair": 0.93,
    "shape in a video": 0.95,
    "color in a video": 0.95,
}
"""Least share of right answers in a part of the examination."""


@pytest.fixture(scope="module")
def questions() -> list[Item]:
    return items(seed=1, share=0.15, rows=tuple(LEAST))


def right(nano, questions: list[Item], column: tuple[str, ...] = ()) -> list[bool]:
    return [mark.right for mark in marks(nano, questions, column)]


def shares(questions: list[Item], hits: list[bool]) -> dict[str, float]:
    counts = by([item.row for item in questions], hits)
    return {row: good / total for row, (good, total) in counts.items()}


def test_answers(nano, questions: list[Item]) -> None:
    scores = shares(questions, right(nano, questions))
    short = {row: (scores[row], least) for row, least in LEAST.items() if scores[row] < least}
    assert not short, f"row: (share right, least) {short}"


def test_asking_says_what_the_forward_finds_likeliest(nano, questions: list[Item]) -> None:
    some = questions[::12]
    assert [answered(nano, item) for item in some] == right(nano, some)


def test_the_image_has_more_than_one_route_in(nano, questions: list[Item]) -> None:
    """Most answers survive without image_features; with DeepStack cut too there is nothing left to see."""
    images = [item for item in questions if item.row in ("color", "shape, upright filled", "digit, handwritten")]
    kept = right(nano, images, COLUMNS["without image_features"])
    assert sum(kept) / len(kept) >= 0.7
    blind = shares(images, right(nano, images, COLUMNS["without either"]))
    for row, guess in chance(images).items():
        assert blind[row] <= guess + 0.12, row


MARKS = {"color": 99, "shape": 99, "position": 97, "count": 97, "digit": 93} | dict.fromkeys(
    ("which image", "of a pair", "move", "when"), 95
)
"""Percent that the whole examination has to find right."""


def test_the_written_table_and_the_read_me_say_the_same_and_reach_the_marks() -> None:
    rows = {cells[0]: cells[2:] for line in RESULTS.read_text(encoding="utf-8").splitlines() if (cells := row(line))}
    for task, least in MARKS.items():
        assert float(rows[task][0]) >= least, task
        assert float(rows[task][1]) >= 70, task
    shown = [row(line) for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    shown = [cells for cells in shown if len(cells) == 6 and cells[1].replace(".", "").isdigit()]
    assert len(shown) >= len(MARKS)
    assert all(cells[1:] in rows.values() for cells in shown)


def row(line: str) -> list[str]:
    """The cells of a line of a table; none of any other line."""
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
