"""Results are written whole by the one writer: full disks, two writers, files that are none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from cutaway.analysis.common.result import Array, Result
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class Written(Result, technique="written"):
    """A result for these tests."""

    numbers: Array


def made(number: float, count: int = 3) -> Written:
    return Written(Array.of(np.full(count, number), "layer"))


def test_two_writers_of_one_file_leave_one_of_the_results_whole(tmp_path) -> None:
    path = tmp_path / "result.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: made(float(n), 2000).save(path), range(40)))
    values = Result.load(path).numbers.values
    assert len(set(values.tolist())) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_the_old_result_and_nothing_else(tmp_path, monkeypatch) -> None:
    path = made(1.0).save(tmp_path / "result.json")

    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"result\.json cannot be written .*No space left"):
        made(2.0).save(path)
    assert Result.load(path).numbers.values.tolist() == [1.0] * 3
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"cutaway": 1}', "\0"])
def test_other_files_are_no_results(tmp_path, text) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(InputError):
        Result.load(tmp_path / "other.json")


def test_missing_files_and_folders_are_no_results(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(InputError):
            Result.load(path)
    with pytest.raises(InputError, match="cannot be written"):
        made(1.0).save(tmp_path / "no" / "folder.json")
