"""Bootstrap intervals and correlation."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway.analysis.common.statistics import bootstrap, correlation
from cutaway.errors import InputError


def test_interval_of_normal_numbers_is_that_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, 400)
    mean, low, high = bootstrap(values, samples=4000)
    assert mean == pytest.approx(values.mean())
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_entries_keep_their_places_and_the_seed_repeats() -> None:
    values = np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0]])
    mean, low, high = bootstrap(values)
    assert mean.tolist() == [2.0, 10.0]
    assert low[1] == high[1] == 10.0
    assert low[0] < 2.0 < high[0]
    assert np.array_equal(bootstrap(values)[1], low)


def test_one_pair_has_no_interval() -> None:
    mean, low, high = bootstrap([[1.0, 2.0]])
    assert mean.tolist() == [1.0, 2.0]
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("given", [{"values": []}, {"values": [1.0], "level": 1.0}, {"values": [1.0], "samples": 0}])
def test_nonsense_is_refused(given) -> None:
    with pytest.raises(InputError, match="bootstrap"):
        bootstrap(**given)


def test_correlation() -> None:
    a = np.array([1.0, 2.0, 3.0, np.nan])
    assert correlation(a, -2 * a + 1) == pytest.approx(-1)
    assert np.isnan(correlation(a, np.ones(4)))
    with pytest.raises(InputError, match="one size"):
        correlation([1.0], [1.0, 2.0])
