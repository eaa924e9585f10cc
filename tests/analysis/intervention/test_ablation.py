"""Ablation: planted heads, MLPs, experts and regions are found, untouched parts are not; plain edits agree."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import question
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import token_groups
from cutaway.analysis.intervention.ablation import REPLACEMENTS, TOKEN, ablate
from cutaway.analysis.intervention.components import COMPONENTS
from cutaway.api import random
from cutaway.errors import InputError
from tests.analysis.models import BUILT, CHECKPOINTS, noise_image, small


def ask(model, seed=0, text="What color?"):
    return question(model, text, images=[noise_image(seed)], min_pixels=1024)


def metric_of(model):
    return metrics.logit_difference(model.tokenizer, "a", "b")


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize(("component", "value"), [("mlp", "mlp.mlp_output"), ("block", "layer_output")])
def test_zeros_equal_plain_edits(family, component, value) -> None:
    model = small(family)
    inputs, metric = ask(model), metric_of(model)
    result = ablate(model, inputs, metric, component=component, how="zero")
    whole = float(metrics.measure(model, inputs, metric))
    assert result.baseline.values[0] == pytest.approx(whole, rel=1e-5)
    for layer in range(model.num_layers):
        entering = model.run(inputs, read=[f"layers.{layer}.input"])[f"layers.{layer}.input"]
        edit = {f"layers.{layer}.{value}": lambda v, x=entering: v * 0 if component == "mlp" else x}
        expected = whole - float(metrics.measure(model, inputs, metric, edit=edit))
        assert result.drop.at(layer=str(layer), tokens="all") == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("component", [*COMPONENTS, TOKEN])
@pytest.mark.parametrize("how", REPLACEMENTS)
def test_every_component_and_way_has_its_table(component, how) -> None:
    model = small("qwen3_vl_moe")
    result = ablate(
        model, ask(model), metric_of(model), component=component, how=how, others=[ask(model, 7)] * (how != "zero"),
        where=["image", "question"] if component != "deepstack" else ["image"],
    )  # fmt: skip
    drops = result.drop.values[~np.isnan(result.drop.values)]
    assert drops.size > 0
    assert np.abs(drops).max() > 1e-4
    assert abs(result.ranked(1)[0][1]) == pytest.approx(np.abs(drops).max())
    assert "drop in logits" in result.summary()
    assert result.plot() is not None
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()


def test_the_planted_head_and_no_other_matters() -> None:
    model = random(json.loads((CHECKPOINTS / "qwen3_vl" / "config.json").read_text()), seed=3)
    width = model.head_dim
    with torch.no_grad():
        for n, layer in enumerate(model.root.layers):
            weight = layer.self_attn.o_proj.weight
            kept = weight[:, width : 2 * width].clone()
            weight.zero_()
            if n == 2:
                weight[:, width : 2 * width] = kept
    for how in REPLACEMENTS:
        result = ablate(model, ask(model), metric_of(model), how=how, others=[ask(model, 3)] * (how != "zero"))
        name, drop, *_ = max(result.ranked(), key=lambda row: abs(row[1]))
        assert name == "layer 2, head 1"
        others = [abs(row[1]) for row in result.ranked() if row[0] != name]
        assert max(others) < 1e-4 < abs(drop)


def test_an_expert_that_is_never_chosen_does_not_matter() -> None:
    model = small("qwen3_vl_moe")
    inputs = ask(model)
    result = ablate(model, inputs, metric_of(model), component="expert", how="zero")
    for layer in result.drop.names("layer"):
        address = f"layers.{layer}.mlp.expert_indices"
        indices = model.run(inputs, read=[address])[address]
        if layer == str(model.num_layers - 1):  # after it no token looks at another
            indices = indices[:, -1]
        used = set(indices.flatten().tolist())
        for expert in result.drop.names("expert"):
            drop = result.drop.at(layer=layer, tokens="all", expert=expert)
            assert (abs(drop) < 1e-4) == (int(expert) not in used), (layer, expert)


def test_blank_tokens_do_not_matter_and_mean_is_kind_by_kind() -> None:
    model = small("qwen2_vl")
    inputs = ask(model)
    grey = replace(inputs, pixel_values=torch.zeros_like(inputs.pixel_values))
    image = token_groups(model, inputs)["image"]
    positions = {str(n): image[n : n + 1] for n in range(len(image))}
    flat = ablate(model, grey, metric_of(model), component=TOKEN, how="mean", where={"image": image})
    features = model.run(grey, read=["vision.image_features"])["vision.image_features"]
    assert features.std(0).max() > 0  # the encoder knows where a patch is, so that grey tokens differ a little
    real = ablate(model, inputs, metric_of(model), component=TOKEN, how="mean", where=positions)
    mean = model.run(inputs, read=["vision.image_features"])["vision.image_features"].mean(0)
    metric = metric_of(model)
    for n in (0, len(image) - 1):

        def put(value, n=n):
            value[n] = mean

        expected = float(metrics.measure(model, inputs, metric)) - float(
            metrics.measure(model, inputs, metric, edit={"vision.image_features": put})
        )
        assert real.drop.at(tokens=str(n)) == pytest.approx(expected, abs=2e-4)
    assert abs(flat.drop.values[0]) < np.abs(real.drop.values).sum()


def test_resampling_takes_each_other_prompt_in_turn() -> None:
    model = small("qwen3_vl")
    inputs, metric, others = ask(model), metric_of(model), [ask(model, 5), ask(model, 9)]
    both = ablate(model, inputs, metric, component="mlp", how="resample", others=others)
    single = [ablate(model, inputs, metric, component="mlp", how="resample", others=[x]) for x in others]
    assert np.allclose(both.drop.values, np.mean([s.drop.values for s in single], 0), atol=1e-6)
    same = ablate(model, inputs, metric, component="mlp", how="resample", others=[inputs])
    assert np.abs(same.drop.values).max() < 1e-4


def test_heads_that_speak_against_the_answer_are_ranked_by_size_too() -> None:
    model = small("qwen2_vl")
    for answer, foil in (("a", "b"), ("b", "a")):  # turned round, every drop changes its sign and no rank changes
        metric = metrics.logit_difference(model.tokenizer, answer, foil)
        rows = ablate(model, ask(model), metric, how="zero").ranked()
        sizes = [abs(row[1]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
        assert {row[1] > 0 for row in rows} == {True, False}


def test_eight_prompts_have_an_interval_and_seven_say_why_not() -> None:
    model = small("qwen2_vl")
    prompts = [ask(model, n) for n in range(8)]
    result = ablate(model, prompts, metric_of(model), component="mlp", layers=[1])
    assert (result.low.values < result.drop.values).all()
    assert (result.drop.values < result.high.values).all()
    assert "8 prompts\n" in result.summary()
    few = ablate(model, prompts[:7], metric_of(model), component="mlp", layers=[1])
    assert np.isnan(few.low.values).all()
    assert "7 prompts, no interval below 8" in few.summary()


def test_several_prompts_have_a_mean_and_a_store(tmp_path) -> None:
    model, store = small("qwen3_vl"), tmp_path / "cells.jsonl"
    options: dict = {"component": TOKEN, "how": "zero", "where": "regions 2x2", "store": store}
    result = ablate(model, [ask(model, n) for n in range(3)], metric_of(model), **options)
    assert result.drop.axes == ("tokens",)
    assert result.plot(background=noise_image(0)).axes[1].get_title() == "tokens ablated (zero)"
    with pytest.raises(InputError, match="regions and single tokens"):
        ablate(model, ask(model), metric_of(model), component="mlp").plot(background=noise_image(0))
    progress = []
    options["on_progress"] = lambda *counts: progress.append(counts)
    again = ablate(model, [ask(model, n) for n in range(3)], metric_of(model), **options)
    assert again.to_json() == result.to_json()
    assert progress == [(12, 12)]


def test_what_does_not_fit_is_refused() -> None:
    model = small("qwen3_vl")
    for wrong in (
        {"how": "noise"},
        {"how": "resample"},
        {"component": "neuron"},
        {"where": "pixels"},
        {"layers": [77]},
    ):
        with pytest.raises(InputError):
            ablate(model, ask(model), metric_of(model), **wrong)
    with pytest.raises(InputError, match="batch of one"):
        ablate(model, model.prepare([model.prompt("a"), model.prompt("b")]), metric_of(model))


def test_on_a_divergence_the_needed_part_comes_first() -> None:
    model = small("qwen3_vl")
    result = ablate(model, ask(model), metrics.kl_divergence(), component="block", how="zero")
    assert result.baseline.values[0] == pytest.approx(0, abs=1e-12)
    rises = [rise for _, rise, *_ in result.ranked()]
    assert rises == sorted(rises, reverse=True)
    assert rises[0] == pytest.approx(result.ablated.values.max())
    assert rises[0] > 1e-3
    assert "rise in nats" in result.summary()
