"""Results: named axes, JSON there and back, tables."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cutaway.analysis.common.result import Array, Result, table
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class Finding(Result, technique="a test's finding"):
    grid: Array
    parts: dict[str, Array]
    names: tuple[str, ...]
    pairs: tuple[tuple[int, float], ...]
    count: int
    note: str | None = None


def finding() -> Finding:
    values = torch.arange(6.0).reshape(2, 3) / 7
    grid = Array.of(values, "layer token", {"token": ["a", "b", "c"]}, "nats")
    return Finding(grid, {"one": Array.of([1.0, float("nan")], "head")}, ("x", "y"), ((1, 0.1),), 3)


def test_at_picks_by_label_and_index() -> None:
    grid = finding().grid
    assert grid.at(layer=1, token="c") == pytest.approx(5 / 7)
    row = grid.at(token="b")
    assert row.axes == ("layer",)
    assert row.values == pytest.approx([1 / 7, 4 / 7])
    assert grid.at(layer=-1).labels == {"token": ("a", "b", "c")}
    assert grid.names("layer") == ("0", "1")


@pytest.mark.parametrize("where", [{"token": "d"}, {"layer": 2}, {"head": 0}])
def test_a_place_that_is_not_there_is_an_error(where) -> None:
    with pytest.raises(InputError, match=r"[Aa]xis"):
        finding().grid.at(**where)


def test_axes_must_fit() -> None:
    with pytest.raises(InputError, match="a name for each axis"):
        Array.of([[1.0]], "layer")
    with pytest.raises(InputError, match="2 labels"):
        Array.of([1.0], "layer", {"layer": ["a", "b"]})


def test_values_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        finding().grid.values[0, 0] = 1


def test_json_there_and_back(tmp_path) -> None:
    first = finding()
    text = json.dumps(first.to_json(), allow_nan=False)
    again = Result.from_json(json.loads(text))
    assert type(again) is Finding
    assert np.array_equal(again.grid.values, first.grid.values)
    assert again.grid.labels == first.grid.labels
    assert again.grid.unit == "nats"
    assert np.isnan(again.parts["one"].values[1])
    assert (again.names, again.pairs, again.count, again.note) == (("x", "y"), ((1, 0.1),), 3, None)
    path = first.save(tmp_path / "finding.json")
    assert Result.load(path).to_json() == first.to_json()
    assert [p.name for p in tmp_path.iterdir()] == ["finding.json"]


@pytest.mark.parametrize("text", ["{}", "[1]", "not json", '{"cutaway": 1, "technique": "a test\'s finding"}'])
def test_other_files_are_refused(tmp_path, text) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError):
        Result.load(path)


def test_what_cannot_be_written_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        finding().save(tmp_path / "nowhere" / "x.json")
    with pytest.raises(InputError, match="a object came"):
        Finding(finding().grid, {}, (object(),), (), 1).to_json()  # type: ignore[arg-type]


def test_a_result_without_a_figure_says_so() -> None:
    with pytest.raises(InputError, match="has no figure"):
        finding().plot()


def test_table_sets_numbers_to_the_right() -> None:
    assert table(("name", "n"), [("a", 1), ("bc", 12.5)]).splitlines() == [
        "name       n",
        "----  ------",
        "a          1",
        "bc    12.500",
    ]
    assert table(("name",), []).splitlines() == ["name", "----"]
    assert "grid" in finding().summary()
