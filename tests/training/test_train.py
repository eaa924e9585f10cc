"""The training loop's parts: schedules, the cutting of ways, and a run that goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cutaway import load
from training.nano import train
from training.nano.batches import Layout, Recipe, make, make_views
from training.nano.bundle import weights
from training.nano.files import BUNDLE


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


def test_given_weights_are_trained_on_once_the_new_heads_have_learnt(tmp_path: Path) -> None:
    run = train.Run(tmp_path, minutes=4, muon=False, seed=0, start=BUNDLE)
    assert run.part == train.CUT
    given = load("nano", dtype=torch.float32).root.state_dict()
    rng, small = np.random.default_rng(0), Recipe(tokens=100, views=40)
    heads = [w.clone() for w in run.labels.parameters()]
    run.learn(make_views(rng, small))
    assert all(torch.equal(weight, given[name]) for name, weight in run.model.state_dict().items())
    assert not all(torch.equal(a, b) for a, b in zip(heads, run.labels.parameters(), strict=True))
    run.step = train.HEADS
    run.learn(make_views(rng, small))
    assert not all(torch.equal(weight, given[name]) for name, weight in run.model.state_dict().items())


def test_what_is_bundled_is_the_mean_of_the_runs(tmp_path: Path) -> None:
    for seed in (1, 2):
        train.Run(tmp_path / str(seed), minutes=1, muon=False, seed=seed).save()
    paths = [tmp_path / str(seed) / "checkpoint.pt" for seed in (1, 2)]
    (one,), (two,), both = (list(weights(p).values())[:1] for p in (paths[:1], paths[1:], paths))
    assert not torch.equal(one, two)
    torch.testing.assert_close(both[0], (one + two) / 2)
