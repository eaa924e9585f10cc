"""Figures: what is drawn where, scales, files. Their look is judged by eye on the documents' pages."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from cutaway.analysis.common.result import Array
from cutaway.analysis.plots import figures, images
from cutaway.analysis.plots.images import Panel
from cutaway.errors import InputError
from tests.analysis.models import noise_image


def test_a_heat_table_names_its_axes_and_writes_its_numbers() -> None:
    array = Array.of([[0.0, -2.0], [1.0, float("nan")]], "layer token", {"token": ["a", "b"]}, "nats")
    figure = figures.heat_table(array, title="Effect")
    axes, bar = figure.axes
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("layer", "token", "nats")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert [t.get_text() for t in axes.texts] == ["0.00", "-2.00", "1.00"]
    assert axes.images[0].get_clim() == (-2.0, 2.0)
    with pytest.raises(InputError, match="two axes"):
        figures.heat_table(array.at(layer=0), title="")


def test_a_large_table_is_thinned() -> None:
    axes = figures.heat_table(Array.of(np.ones((100, 30)), "a b"), title="").axes[0]
    assert not axes.texts
    assert len(axes.get_yticks()) <= 40


def test_a_scale_of_one_sign_begins_at_zero_and_one_of_both_has_zero_in_its_middle() -> None:
    assert figures.limits_of([0.0, 3.0]) == (0.0, 3.0, False)
    assert figures.limits_of([1.0, 3.0]) == (0.0, 3.0, False)
    assert figures.limits_of([-1.0, 3.0]) == (-3.0, 3.0, True)
    assert figures.limits_of([2.0, 2.0]) == (0.0, 2.0, False)
    assert figures.limits_of([float("nan")]) == (0.0, 1.0, False)
    assert figures.limits_of([]) == (0.0, 1.0, False)


@pytest.mark.parametrize("colour", ["black", "white", "red"])
def test_a_value_has_the_colour_of_the_scale_over_any_image(colour) -> None:
    image = Image.new("RGB", (40, 20), colour)
    figure = images.maps([images.image_panel(image, np.full((2, 4), 0.5)), Panel(np.full((2, 4), 0.5), "", image)])
    heat = figure.axes[1].images[0]
    assert heat.get_alpha() is None
    assert heat.get_clim() == (0.0, 0.5)
    assert (heat.get_array() == 0.5).all()
    assert heat.get_extent() == [0, 40, 20, 0]
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (20, 40, 3)
    assert (np.asarray(shown) == np.asarray(image)).all()


def test_panels_stand_side_by_side_on_one_scale() -> None:
    cells = np.array([[0.0, 1.0], [2.0, float("nan")]])
    figure = images.maps([Panel(cells, "one", noise_image(0, (40, 20))), Panel(2 * cells)], unit="share")
    first, second, bar = figure.axes
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0.0, 4.0)
    assert bar.get_ylabel() == "share"
    with pytest.raises(InputError, match="nothing to draw"):
        images.maps([])
    with pytest.raises(InputError, match="rows columns"):
        images.maps([Panel([1.0])])


def test_a_wide_image_gets_a_wide_panel() -> None:
    cells = np.ones((2, 12))
    wide = images.maps([Panel(cells, "", noise_image(0, (600, 100))) for _ in range(4)])
    tall = images.maps([Panel(cells.T, "", noise_image(0, (100, 600))) for _ in range(4)])
    for figure, shape in ((wide, 6.0), (tall, 1 / 6)):
        figure.draw_without_rendering()
        box = figure.axes[0].get_window_extent()
        assert box.width / box.height == pytest.approx(shape, rel=0.05)
        assert max(box.width, box.height) > 400, "the long side takes its part of the canvas"


def test_the_strongest_cells_are_outlined() -> None:
    cells = np.array([[0.0, 1.0, 0.9], [0.2, -0.6, float("nan")]])
    assert images.strongest(cells) == ((0, 1), (0, 2), (1, 1))
    assert images.strongest(np.zeros((2, 2))) == ()
    figure = images.maps([images.image_panel(noise_image(0, (30, 20)), cells), Panel(cells)])
    outlines = figure.axes[0].lines[1::2]
    assert [line.get_xdata()[:2].tolist() for line in outlines] == [[10, 20], [20, 30], [10, 20]]


def test_places_lie_where_their_names_say() -> None:
    positions = ["0 'a'", "1 image r0 c0", "2 image r1 c1", "last"]
    cells = images.cells_of_places(Array.of([9.0, 1.0, 2.0, 9.0], "tokens", {"tokens": positions}))
    assert cells is not None
    assert np.array_equal(cells, [[1.0, np.nan], [np.nan, 2.0]], equal_nan=True)
    assert images.cells_of_places(Array.of([1.0], "tokens", {"tokens": ["last"]})) is None


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
