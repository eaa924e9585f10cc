"""The training loop's parts: schedules, the cutting of ways, and a run that goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training.nano import train
from training.nano.batches import Layout, Recipe, make, make_views


def test_the_rate_warms_up_stays_and_decays() -> None:
    assert train.rate(0.0, 0) < 0.01
    assert train.rate(0.5, 1000) == 1.0
    assert train.rate(1 - train.DECAY / 2, 5000) == pytest.approx(0.5)
    assert 0 < train.rate(1.0, 9000) < 0.05


def test_no_sample_loses_every_way() -> None:
    assert train.ways_kept(8, 4, 0.0) is None
    keep = train.ways_kept(4000, 4, 0.9)
    assert keep is not None
    assert keep.amax(0).min() == 1
    assert 0.05 < 1 - keep[0].mean() < train.CUT_FEATURES


def test_where_tokens_lie() -> None:
    places = train.own_places(Layout(((64, 96),), 2))
    assert places.shape == (12, 2)
    torch.testing.assert_close(places[5], torch.tensor([0.5, 2 / 3]))
    torch.testing.assert_close(places[:6], places[6:])


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    run = train.Run(tmp_path, minutes=1, muon=False, seed=0)
    rng, small = np.random.default_rng(0), Recipe(tokens=100, views=40)
    assert set(run.learn(make_views(rng, small))) == {"views"}
    assert set(run.learn(make(rng, run.writer, small))) == {"answers", "labels"}
    run.spent = 12.0
    run.save()
    again = train.Run(tmp_path, minutes=1, muon=False, seed=1)
    assert (again.step, again.spent) == (2, 12.0)
    batch = make_views(rng, small)
    assert run.learn(batch) == again.learn(batch)
    for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
