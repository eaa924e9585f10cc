"""The training loop's parts: schedules, cut routes, and a run that goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cutaway import load
from training.nano import train
from training.nano.batches import Batch, Layout, Recipe, Views
from training.nano.bundle import bundle, weights
from training.nano.files import BUNDLE

SMALL = Recipe(tokens=100, views=40)
STEPS = 20  # of a whole schedule: labels alone, then questions, then cut routes


def advance(run: train.Run, steps: int) -> None:
    for _ in range(steps):
        run.learn(train.batch_of(run.step, run.steps, run.seed, run.writer, SMALL))


def test_the_rate_warms_up_stays_and_decays() -> None:
    assert train.rate(0, 40000) < 0.01
    assert train.rate(20000, 40000) == 1.0
    assert train.rate(round(40000 * (1 - train.DECAY / 2)), 40000) == pytest.approx(0.5)
    assert 0 < train.rate(40000, 40000) < 0.05


def test_no_sample_loses_every_route() -> None:
    assert train.routes_kept(8, 4, 0, 100, seed=0) is None
    keep = train.routes_kept(4000, 4, 90, 100, seed=0)
    assert keep is not None
    assert keep.amax(0).min() == 1
    assert 0.05 < 1 - keep[0].mean() < train.CUT_FEATURES


def test_where_tokens_lie() -> None:
    positions = train.token_positions(Layout(((64, 96),), 2))
    assert positions.shape == (12, 2)
    torch.testing.assert_close(positions[5], torch.tensor([0.5, 2 / 3]))
    torch.testing.assert_close(positions[:6], positions[6:])


def test_labels_alone_come_first_and_the_batch_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    run = train.Run(tmp_path, STEPS)
    kinds = [type(train.batch_of(step, STEPS, 0, run.writer, SMALL)) for step in range(STEPS)]
    first = round(train.LABELS_ONLY * STEPS)
    assert set(kinds[:first]) == {Views}
    assert Batch in kinds[first:]
    one, two = (train.batch_of(STEPS - 1, STEPS, 0, run.writer, SMALL) for _ in "12")
    assert (one.cells == two.cells).all()
    other = train.batch_of(STEPS - 1, STEPS, 1, run.writer, SMALL)
    assert one.cells.shape != other.cells.shape or (one.cells != other.cells).any()


def test_a_stopped_run_ends_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = train.Run(tmp_path / "whole", STEPS)
    advance(whole, 12)
    stopped = train.Run(tmp_path / "stopped", STEPS)
    advance(stopped, 7)
    stopped.save()
    advance(stopped, 2)  # lost: made after the last checkpoint
    again = train.Run(tmp_path / "stopped", STEPS)
    assert again.step == 7
    advance(again, 5)
    assert (again.step, again.samples) == (whole.step, whole.samples)
    for one, two in ((whole.model, again.model), (whole.heads, again.heads), (whole.mean, again.mean)):
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_run_keeps_its_schedule(tmp_path: Path) -> None:
    train.Run(tmp_path, STEPS).save()
    with pytest.raises(SystemExit, match="--steps 20 --seed 0"):
        train.Run(tmp_path, 2 * STEPS)


def test_the_loop_stops_where_it_is_told_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    run = train.Run(tmp_path, STEPS)
    train.train(run, SMALL, stop=2)
    assert train.Run(tmp_path, STEPS).step == 2
    assert '"exam"' in (tmp_path / "log.jsonl").read_text(encoding="utf-8")


def test_the_bundle_takes_the_mean_of_the_run(tmp_path: Path) -> None:
    run = train.Run(tmp_path, STEPS)
    advance(run, 2)
    run.save()
    bundled = weights(tmp_path / "checkpoint.pt")
    for name, weight in run.mean.module.state_dict().items():
        assert torch.equal(bundled[name], weight)


def test_the_hybrid_learns_saves_and_loads(tmp_path: Path) -> None:
    run = train.Run(tmp_path / "run", STEPS, kind="hybrid")
    recipe = replace(train.RECIPES["hybrid"], tokens=100, views=40)
    for step in (0, STEPS - 1):
        run.step = step
        losses = run.learn(train.batch_of(step, STEPS, 0, run.writer, recipe))
        assert all(loss > 0 for loss in losses.values())
    run.save()
    bundle(tmp_path / "run" / "checkpoint.pt", tmp_path / "model", "hybrid")
    size = sum(path.stat().st_size for path in (*BUNDLE.iterdir(), *(tmp_path / "model").iterdir()))
    assert size < 12e6
    model = load(tmp_path / "model")
    assert model.ask("What color is this?", images=[np.zeros((64, 64, 3), np.uint8)], max_new_tokens=2) is not None
