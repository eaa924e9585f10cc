"""Cells: kept, resumed after a kill, refused for other work."""

from __future__ import annotations

import pytest

from cutaway.analysis.common.progress import Cells
from cutaway.errors import InputError

WORK = {"model": "nano", "layers": [0, 1]}


def test_cells_survive_and_resume(tmp_path) -> None:
    path, told = tmp_path / "cells.jsonl", []
    with Cells(path, WORK) as cells:
        assert cells.missing(["a", "b", "c"]) == ["a", "b", "c"]
        cells["a"] = 0.1
        cells.update({"b": [1, 2]})
    with Cells(path, WORK, on_progress=lambda done, total: told.append((done, total))) as again:
        assert again.missing(["a", "b", "c"]) == ["c"]
        assert (again["a"], again["b"], len(again), "c" in again) == (0.1, [1, 2], 2, False)
        again["c"] = None
    assert told == [(2, 3), (3, 3)]


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_torn_line_is_dropped(tmp_path, cut) -> None:
    path = tmp_path / "cells.jsonl"
    with Cells(path, WORK) as cells:
        cells["a"], cells["b"] = 1.0, 2.0
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Cells(path, WORK) as again:
        assert again.missing(["a", "b"]) == ["b"]
        again["b"] = 2.0
    assert path.read_bytes() == whole


def test_a_file_torn_in_its_first_line_begins_anew(tmp_path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text('{"settings": {"mod')
    with Cells(path, WORK) as cells:
        cells["a"] = 1
    with Cells(path, WORK) as again:
        assert again["a"] == 1


def test_cells_of_other_work_are_refused(tmp_path) -> None:
    path = tmp_path / "cells.jsonl"
    Cells(path, WORK).close()
    with pytest.raises(InputError, match="differs in layers"):
        Cells(path, {**WORK, "layers": [0]})


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]\n3\n", '{"a": 1}\n'])
def test_other_files_are_left_alone(tmp_path, text) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InputError):
        Cells(path, WORK)
    assert path.read_text() == text


def test_without_a_path_cells_are_in_memory() -> None:
    cells = Cells(None, WORK)
    cells["a"] = 1
    assert cells["a"] == 1


def test_a_place_that_cannot_be_written_is_an_error(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be kept"):
        Cells(tmp_path / "no" / "cells.jsonl", WORK)
