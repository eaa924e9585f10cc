"""The examination is drawn by other code than the training's world, in strata of equal size."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from tests.repo.source import ROOT
from training.nano import exam, exam_draw
from training.nano.evaluate import BINS, Mark, calibration, report, table, weakest, wilson

FOLDER = ROOT / "training" / "nano"
WORLD = {"world", "draw", "colors", "fonts", "arrange", "questions", "batches", "pairs"}


def test_it_imports_nothing_of_the_world() -> None:
    for name in ("exam", "exam_draw"):
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("training"):
                imported = {node.module.rsplit(".", 1)[-1], *(alias.name for alias in node.names)}
                assert not imported & WORLD, name
    loaded = "import sys, training.nano.exam as e; e.items(0, 0.01); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {f"training.nano.{name}" for name in WORLD} & set(modules.stdout.split())


@pytest.fixture(scope="module")
def questions() -> list[exam.Item]:
    return exam.items(1, 0.05)


def test_strata_are_complete_and_equal(questions: list[exam.Item]) -> None:
    strata: dict[str, Counter[str]] = defaultdict(Counter)
    for item in questions:
        strata[item.row][item.stratum] += 1
    assert set(strata["color"]) == {f"{a} on {b}" for a in exam_draw.COLORS for b in exam_draw.COLORS if a != b}
    for arrangement in ("row", "column", "free"):
        assert set(strata[f"count, {arrangement}"]) == {str(n) for n in range(7)}
    assert {s.split()[0] for s in strata["when, new rates"]} == {"3", "4", "6", "20"}
    assert set(strata["digit, printed"]) == set(exam_draw.FACES)
    by_answer = {"digit, handwritten", "digit, handwritten, turned", "digit color", "color among two"}
    for row in strata.keys() - by_answer - {"shape among two", "shape in a video"}:
        assert len(set(strata[row].values())) == 1, (row, strata[row])


def test_all_pairs_pass_the_contrast_rule() -> None:
    assert len(exam.color_pairs()) == 90


def test_the_same_seed_gives_the_same_questions(questions: list[exam.Item]) -> None:
    again = exam.items(1, 0.05)
    assert [(i.row, i.stratum, i.question, i.answer) for i in again] == [
        (i.row, i.stratum, i.question, i.answer) for i in questions
    ]
    assert all((a.images[0] == b.images[0]).all() for a, b in zip(again[:40], questions[:40], strict=True))


def test_the_color_that_is_asked_for_is_in_the_image(questions: list[exam.Item]) -> None:
    for item in questions:
        if item.row == "color":
            ink = tuple(int(exam_draw.COLORS[item.answer][i : i + 2], 16) for i in (1, 3, 5))
            assert (item.images[0] == ink).all(-1).sum() > 20, item.stratum


def test_wilson_intervals() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(45, 50) == pytest.approx((0.786, 0.957), abs=1e-3)
    assert wilson(50, 50)[1] == 1.0


def test_tables_say_rows_strata_and_confidence() -> None:
    items = [exam.Item("color", s, "What?", a) for s, a in (("x", "red"), ("x", "red"), ("y", "blue"), ("y", "red"))]
    right = [True, True, True, False]
    assert table(items, {"right": right, "blind": [False] * 4}, exam.chance(items)).splitlines()[2:] == [
        "| color | 4 | 75.0 | 30.1 to 95.4 | 0.0 | 75.0 |"
    ]
    assert weakest(items, right).splitlines()[2:] == ["| color | 2 | y (1 of 2) |"]
    marks = [Mark(hit, hit, 0.99 if hit else 0.3) for hit in right]
    rows = calibration(marks, [Mark(False, False, 1.0)]).splitlines()[2:]
    assert rows[0] == "| 0 to 0.5 | 1 | 0.0 | 0 |"
    assert rows[-1] == "| 0.99 to 1 | 3 | 100.0 | 1 |"
    assert len(rows) == len(BINS) - 1
    assert "## What was left out" in report(items, {"right": marks}, marks[:1])
