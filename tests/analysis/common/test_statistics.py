"""Intervals cover what they say, in simulations; correlation."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway.analysis.common.statistics import LEAST, correlation, mean_interval, no_interval
from cutaway.errors import InputError

TRIALS = 2000


def coverage(draws: np.ndarray, mean: float) -> float:
    """The part of intervals that hold the true mean; `draws` [examples trials]."""
    _, low, high = mean_interval(draws)
    return float(((low <= mean) & (mean <= high)).mean())


@pytest.mark.parametrize("count", [LEAST, 10, 20, 50])
def test_intervals_cover_the_mean_of_normal_data(count) -> None:
    draws = np.random.default_rng(count).normal(3.0, 2.0, (count, TRIALS))
    assert 0.93 <= coverage(draws, 3.0) <= 0.99


@pytest.mark.parametrize(("count", "least"), [(10, 0.89), (20, 0.91), (50, 0.93)])
def test_intervals_of_skewed_data_cover_less_and_more_than_t_alone(count, least) -> None:
    """What is reached on lognormal data; Student's t covers 0.84, 0.86 and 0.90 there, a percentile bootstrap less."""
    draws = np.random.default_rng(count).lognormal(0.0, 1.0, (count, TRIALS))
    assert coverage(draws, np.exp(0.5)) >= least


@pytest.mark.parametrize("count", [10, 20, 50])
def test_intervals_cover_shares_near_the_edge(count) -> None:
    draws = np.random.default_rng(count).beta(2.0, 0.2, (count, TRIALS))
    assert coverage(draws, 2 / 2.2) >= 0.93


@pytest.mark.parametrize("count", range(1, LEAST))
def test_few_examples_have_no_interval_and_say_so(count) -> None:
    values = np.arange(2.0 * count).reshape(count, 2)
    mean, low, high = mean_interval(values)
    assert mean.tolist() == values.mean(0).tolist()
    assert np.isnan([low, high]).all()
    assert no_interval(count) == "no interval below 8"
    assert no_interval(LEAST) == ""


def test_cells_stay_apart_and_the_same_data_give_the_same_interval() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(0, 1, (12, 5)), np.full((12, 5), 10.0)], -1)
    mean, low, high = mean_interval(values)
    assert mean.shape == low.shape == high.shape == (5, 2)
    assert (low[:, 1] == 10.0).all()
    assert (high[:, 1] == 10.0).all()
    assert (low[:, 0] < mean[:, 0]).all()
    assert (mean[:, 0] < high[:, 0]).all()
    np.testing.assert_array_equal(mean_interval(values)[1], low)
    for cell in range(5):
        np.testing.assert_allclose(mean_interval(values[:, cell, 0])[2], high[cell, 0], rtol=1e-12)


def test_a_shift_and_a_scale_carry_over() -> None:
    values = np.random.default_rng(4).lognormal(0, 1, 15)
    mean, low, high = mean_interval(values)
    for scale in (1e-6, 1e6):
        moved = mean_interval(1000 * scale + scale * values)
        np.testing.assert_allclose(moved, [1000 * scale + scale * x for x in (mean, low, high)], rtol=1e-6)


@pytest.mark.parametrize("options", [{"values": []}, {"values": 1.0}, {"values": [1.0], "level": 1.0}])
def test_nonsense_is_refused(options) -> None:
    with pytest.raises(InputError, match="at least one example"):
        mean_interval(**options)


def test_correlation() -> None:
    a = np.array([1.0, 2.0, 3.0, np.nan])
    assert correlation(a, -2 * a + 1) == pytest.approx(-1)
    assert np.isnan(correlation(a, np.ones(4)))
    with pytest.raises(InputError, match="one size"):
        correlation([1.0], [1.0, 2.0])
