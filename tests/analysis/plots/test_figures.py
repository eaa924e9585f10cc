"""Figures: what is drawn where, scales, files. Their look is judged by eye on the documents' pages."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway.analysis.common.result import Array
from cutaway.analysis.plots import figures
from cutaway.analysis.plots.figures import Panel
from cutaway.errors import InputError
from tests.analysis.models import noise_image


def test_a_heat_table_names_its_axes_and_writes_its_numbers() -> None:
    array = Array.of([[0.0, -2.0], [1.0, float("nan")]], "layer token", {"token": ["a", "b"]}, "nats")
    figure = figures.grid(array, title="Effect")
    axes, bar = figure.axes
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("layer", "token", "nats")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert [t.get_text() for t in axes.texts] == ["0.00", "-2.00", "1.00"]
    assert axes.images[0].get_clim() == (-2.0, 2.0)
    with pytest.raises(InputError, match="two axes"):
        figures.grid(array.at(layer=0), title="")


def test_a_large_table_is_thinned() -> None:
    axes = figures.grid(Array.of(np.ones((100, 30)), "a b"), title="").axes[0]
    assert not axes.texts
    assert len(axes.get_yticks()) <= 40


def test_limits() -> None:
    assert figures.limits_of([0.0, 3.0]) == (0.0, 3.0, False)
    assert figures.limits_of([-1.0, 3.0]) == (-3.0, 3.0, True)
    assert figures.limits_of([2.0, 2.0]) == (2.0, 3.0, False)
    assert figures.limits_of([float("nan")]) == (0.0, 1.0, False)


def test_values_lie_over_their_cells_of_the_image() -> None:
    cells = np.array([[0.0, 1.0], [2.0, float("nan")]])
    figure = figures.panels_figure([Panel(noise_image(0, (40, 20)), cells, "one"), Panel(None, cells)], unit="share")
    drawn = figure.axes[0].images[1].get_array()
    assert drawn.shape == (20, 40)
    assert (drawn[0, 0], drawn[0, 39], drawn[19, 0]) == (0.0, 1.0, 2.0)
    assert np.ma.getmaskarray(drawn)[19, 39]
    assert figure.axes[1].images[0].get_array().shape == (2, 2)
    with pytest.raises(InputError, match="nothing to draw"):
        figures.panels_figure([])
    with pytest.raises(InputError, match="rows columns"):
        figures.panels_figure([Panel(None, [1.0])])


def test_places_lie_where_their_names_say() -> None:
    places = ["0 'a'", "1 image r0 c0", "2 image r1 c1", "last"]
    cells = figures.placed(Array.of([9.0, 1.0, 2.0, 9.0], "tokens", {"tokens": places}))
    assert cells is not None
    assert np.array_equal(cells, [[1.0, np.nan], [np.nan, 2.0]], equal_nan=True)
    assert figures.placed(Array.of([1.0], "tokens", {"tokens": ["last"]})) is None


def test_bars_and_lines() -> None:
    axes = figures.bars(
        ["a", "b"], [1.0, -1.0], low=[0.5, float("nan")], high=[1.5, 0.0], title="t", unit="logits"
    ).axes[0]
    assert [patch.get_width() for patch in axes.patches] == [1.0, -1.0]
    assert axes.get_xlabel() == "logits"
    series = Array.of([[1.0, 2.0], [3.0, 4.0]], "head layer", {"head": ["h0", "h1"]}, "share")
    axes = figures.lines(series, title="t", low=series, high=series).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1.0, 2.0], [3.0, 4.0]]
    assert axes.get_ylabel() == "share"
    with pytest.raises(InputError, match="label and a value"):
        figures.bars(["a"], [1.0, 2.0], title="")
    with pytest.raises(InputError, match="two axes"):
        figures.lines(series.at(head=0), title="")


def test_save(tmp_path) -> None:
    figure = figures.bars(["a"], [1.0], title="t")
    assert figures.save(figure, tmp_path / "x.png").stat().st_size > 1000
    for wrong in ("x.docx", "x"):
        with pytest.raises(InputError, match="endings"):
            figures.save(figure, tmp_path / wrong)
    with pytest.raises(InputError, match="cannot be written"):
        figures.save(figure, tmp_path / "no" / "x.png")
