"""Pathways and knockouts: closed routes make the image vanish, shares add up, planted routes are found."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import question
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import token_groups
from cutaway.analysis.intervention.attention_knockout import attention_knockout, cut_edits
from cutaway.analysis.intervention.image_pathways import (
    CARRIES,
    FEATURES,
    WRITES,
    RouteCloser,
    image_pathways,
    routes,
    shapley,
)
from cutaway.errors import InputError
from tests.analysis.models import BUILT, noise_image, small


def ask(model, seed=0, size=(128, 96)):
    return question(model, "What color?", images=[noise_image(seed, size)], min_pixels=1024)


def metric_of(model):
    return metrics.logit_difference(model.tokenizer, "a", "b")


def names(model, inputs):
    return [route.name for route in routes(model, inputs)]


@pytest.mark.parametrize("family", BUILT)
def test_each_family_has_its_routes(family) -> None:
    model = small(family)
    taps = len(model.config.vision.deepstack_indexes)
    expected = [FEATURES, *(f"deepstack {k}" for k in range(taps)), *([WRITES] if "3_5" in family else [])]
    assert names(model, ask(model)) == expected


@pytest.mark.parametrize("family", BUILT)
def test_with_all_routes_closed_the_answer_does_not_depend_on_the_image(family) -> None:
    model = small(family)
    closed = []
    for seed in (0, 5):
        inputs = ask(model, seed)
        edit = RouteCloser(model, inputs, "zero").edits(routes(model, inputs))
        closed.append(metrics.answer_logits(model, inputs, edit=edit))
    assert torch.equal(*closed)


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("how", CARRIES)
def test_shares_sum_to_what_the_image_is_worth(family, how) -> None:
    model = small(family)
    inputs, metric = ask(model), metric_of(model)
    result = image_pathways(model, inputs, metric, how=how, other=ask(model, 3, (96, 160)) if how == "swap" else None)
    assert result.values.shape == (2 ** len(result.routes),)
    assert result.shapley.values.sum() == pytest.approx(result.all_open - result.all_closed, abs=1e-9)
    assert result.all_open == pytest.approx(float(metrics.measure(model, inputs, metric)), abs=1e-6)
    assert result.all_closed != result.all_open
    assert "Shapley" in result.summary()
    assert result.plot() is not None
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_swapping_every_route_gives_the_other_images_answer(family) -> None:
    """Images of one size: all that comes from the image comes from the other one."""
    model = small(family)
    metric, other = metric_of(model), ask(model, 7)
    result = image_pathways(model, ask(model), metric, how="swap", other=other)
    assert result.all_closed == pytest.approx(float(metrics.measure(model, other, metric)), abs=1e-5)


def test_swapping_an_image_for_itself_changes_nothing() -> None:
    model = small("qwen3_5")
    inputs = ask(model)
    result = image_pathways(model, inputs, metric_of(model), how="swap", other=inputs)
    assert np.ptp(result.values.values) < 1e-5
    assert np.abs(result.shapley.values).max() < 1e-5


def test_a_video_has_routes_too() -> None:
    model = small("qwen3_vl")
    frames = [noise_image(seed, (64, 64)) for seed in range(4)]
    inputs = question(model, "What?", videos=[frames], fps=2.0, do_sample_frames=False)
    result = image_pathways(model, inputs, metric_of(model))
    assert abs(result.without_features - result.all_open) > 1e-4


def test_shapley_is_the_mean_over_all_orders() -> None:
    players = ["a", "b", "c"]
    rng = np.random.default_rng(0)
    game = {
        frozenset(p for p, bit in zip(players, f"{n:03b}", strict=True) if bit == "1"): rng.normal() for n in range(8)
    }
    for player in players:
        gains = []
        for order in permutations(players):
            before = frozenset(order[: order.index(player)])
            gains.append(game[before | {player}] - game[before])
        assert shapley(game, players, player) == pytest.approx(np.mean(gains))


def test_a_stopped_run_goes_on(tmp_path) -> None:
    model, store = small("qwen3_vl"), tmp_path / "cells"
    inputs, metric = ask(model), metric_of(model)
    whole = image_pathways(model, inputs, metric)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_pathways(model, inputs, metric, store=store, on_progress=stop)
    assert len(store.read_text().splitlines()) == 4
    assert image_pathways(model, inputs, metric, store=store).to_json() == whole.to_json()


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = small("qwen3_vl")
    metric, inputs = metric_of(model), ask(model)
    with pytest.raises(InputError, match="got a prompt without"):
        image_pathways(model, question(model, "What?"), metric)
    with pytest.raises(InputError, match='must be one of "zero", "swap", "mean"'):
        image_pathways(model, inputs, metric, how="magic")
    with pytest.raises(InputError, match="`other`"):
        image_pathways(model, inputs, metric, how="swap")
    with pytest.raises(InputError, match="counterpart"):
        image_pathways(model, inputs, metric, how="swap", other=question(model, "What color?"))


@pytest.mark.parametrize("family", BUILT)
def test_cutting_everything_hides_the_image_from_what_follows(family) -> None:
    """With no full-attention layer seeing it, only linear attention can carry the image on."""
    model = small(family)
    inputs, metric = ask(model), metric_of(model)
    result = attention_knockout(model, inputs, metric, cuts=[("image", "all")], width=model.num_layers)
    assert result.values.shape == (1, 2)
    assert result.values.values[0, 0] == result.values.values[0, 1]
    other = attention_knockout(model, ask(model, 9), metric, cuts=[("image", "all")], width=model.num_layers)
    alike = result.values.values[0, 0] == pytest.approx(other.values.values[0, 0], abs=1e-5)
    assert alike == (not result.skipped)
    assert (result.skipped != ()) == ("3_5" in family)


def test_a_cut_changes_what_is_cut_and_nothing_before_it() -> None:
    model = small("qwen3_vl")
    inputs = ask(model)
    have = token_groups(model, inputs)
    edit = cut_edits(model, have["image"], have["last"], range(2, 4))
    read = ["layers.1.layer_output", "layers.3.self_attn.attention_probabilities"]
    cut, whole = model.run(inputs, read=read, edit=edit), model.run(inputs, read=read)
    assert torch.equal(cut[read[0]], whole[read[0]])
    pattern = cut[read[1]][0]
    assert not pattern[:, have["last"][0], have["image"]].any()
    assert torch.allclose(pattern.sum(-1), torch.ones(()))
    before = have["last"][0] - 1
    assert torch.equal(pattern[:, before].argmax(-1), whole[read[1]][0, :, before].argmax(-1))


def test_a_planted_way_is_found_and_others_are_not() -> None:
    """Without any attention but layer 2's, what the last token knows of the image came there, straight."""
    model = small("qwen3_vl")
    inputs, metric = ask(model), metric_of(model)
    result = attention_knockout(model, inputs, metric, cuts=[("image", "last"), ("image", "question")], width=1)
    drops = np.abs(result.drop.values)
    assert drops[:, -1].max() > 1e-3  # all layers
    silent = small("qwen3_vl").root
    kept = {name: p.clone() for name, p in silent.named_parameters() if "o_proj" in name}
    try:
        with torch.no_grad():
            for layer in (0, 1, 3):
                silent.layers[layer].self_attn.o_proj.weight.zero_()
        planted = attention_knockout(model, inputs, metric, cuts=[("image", "last"), ("image", "question")], width=1)
    finally:
        with torch.no_grad():
            for name, weight in kept.items():
                silent.get_parameter(name).copy_(weight)
    lost = np.abs(planted.drop.values)
    assert lost[0, 2] > 1e-3
    assert np.delete(lost[0, :-1], 2).max() < 1e-5  # the other layers' cuts
    assert lost[1].max() < 1e-5  # the question's words pass nothing on: no layer attends after layer 2
    assert "image → last" in planted.summary()
    assert planted.plot() is not None


def test_knockouts_take_groups_that_are_there() -> None:
    model = small("qwen3_vl")
    with pytest.raises(InputError, match="not a group of tokens"):
        attention_knockout(model, ask(model), metric_of(model), cuts=[("image", "elephant")])
    with pytest.raises(InputError, match="1 to 4 layers"):
        attention_knockout(model, ask(model), metric_of(model), width=9)


def test_a_divergence_counts_what_is_lost_upward() -> None:
    model = small("qwen3_vl")
    result = image_pathways(model, ask(model), metrics.kl_divergence())
    whole = " + ".join(result.routes)
    assert next(line for line in result.summary().splitlines() if "0.000" in line).startswith(whole)
    cut = attention_knockout(model, ask(model), metrics.kl_divergence())
    assert np.array_equal(cut.drop.values, cut.values.values - cut.baseline)
    assert cut.drop.values.max() > 0


@pytest.mark.parametrize("cuts", [[], ["image"], [("image",)], [("image", "last", "question")]])
def test_cuts_are_pairs(cuts) -> None:
    model = small("qwen3_vl")
    with pytest.raises(InputError, match="`cuts` are pairs"):
        attention_knockout(model, ask(model), metric_of(model), cuts=cuts)
