"""Activation and attribution patching: planted truth, ends, shuffled controls, resuming, images of other sizes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, question
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.statistics import correlation
from cutaway.analysis.common.token_selection import token_groups
from cutaway.analysis.intervention import components, patching
from cutaway.analysis.intervention.patching import Patching, patch
from cutaway.api import random
from cutaway.errors import InputError
from tests.analysis.models import BUILT, CHECKPOINTS, noise_image, small


def pair_of(model, sizes=((128, 96), (128, 96)), seed=0) -> Pair:
    clean, corrupt = (
        question(model, "What color?", images=[noise_image(seed + n, size)], min_pixels=1024)
        for n, size in enumerate(sizes)
    )
    return Pair(clean, corrupt)


def metric_of(model):
    return metrics.logit_difference(model.tokenizer, "a", "b")


@pytest.mark.parametrize("family", BUILT)
def test_all_tokens_of_the_last_block_carry_everything(family) -> None:
    model = small(family)
    result = patch(model, pair_of(model), metric_of(model), where=["all", "last", "image"])
    depth = model.num_layers
    effect = result.effect
    assert effect.axes == ("layer", "tokens")
    assert effect.at(layer=str(depth - 1), tokens="all") == pytest.approx(1.0, abs=1e-4)
    assert effect.at(layer=str(depth - 1), tokens="last") == pytest.approx(1.0, abs=1e-4)
    assert effect.at(layer=str(depth - 1), tokens="image") == pytest.approx(0.0, abs=1e-4)
    assert abs(effect.at(layer="0", tokens="image")) > 1e-2
    assert result.clean.values[0] != result.corrupt.values[0]


@pytest.mark.parametrize("component", components.COMPONENTS)
@pytest.mark.parametrize("direction", patching.DIRECTIONS)
def test_every_component_and_direction_has_its_grid(component, direction) -> None:
    model = small("qwen3_vl_moe")
    result = patch(
        model,
        pair_of(model),
        metric_of(model),
        component=component,
        where=["image"] if component == "deepstack" else ["image", "last"],
        direction=direction,
    )
    finite = result.effect.values[~np.isnan(result.effect.values)]
    assert finite.size > 0
    assert np.abs(finite).max() > 0
    assert result.effect.axes[2:] == {"head": ("head",), "expert": ("expert",)}.get(component, ())
    assert len(result.summary().splitlines()) > 5
    assert result.plot() is not None
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert isinstance(again, Patching)
    assert again.to_json() == result.to_json()


def planted(head: int, target: int):
    """A model in which one head of layer 1 alone writes to the stream, so that every route runs through it."""
    model = random(json.loads((CHECKPOINTS / "qwen3_vl" / "config.json").read_text()), seed=3)
    with torch.no_grad():
        for n, layer in enumerate(model.root.layers):
            layer.mlp.down_proj.weight.zero_()
            weight = layer.self_attn.o_proj.weight
            kept = weight[:, head * model.head_dim : (head + 1) * model.head_dim].clone()
            weight.zero_()
            if n == target:
                weight[:, head * model.head_dim : (head + 1) * model.head_dim] = kept
    return model


def test_the_planted_head_and_no_other_is_found() -> None:
    model = planted(head=2, target=1)
    result = patch(model, pair_of(model), metric_of(model), component="head", where=["last"])
    effect = result.effect.at(tokens="last")
    assert effect.at(layer="1", head=2) == pytest.approx(1.0, abs=1e-4)
    others = effect.values.copy()
    others[1, 2] = 0
    assert np.abs(others).max() < 1e-4
    assert result.agreement > 0.99


def test_a_changed_corner_of_the_image_is_found_and_a_shuffled_control_is_not() -> None:
    model = small("qwen2_vl")
    clean = question(model, "What color?", images=[noise_image(0)], min_pixels=1024)
    pixels = clean.pixel_values.clone()
    count = len(token_groups(model, clean)["image"])
    corner = count - 1
    made = torch.Generator().manual_seed(1)
    pixels[4 * corner : 4 * corner + 4] = torch.randn(4, pixels.shape[1], generator=made)
    corrupt = replace(clean, pixel_values=pixels)
    image = token_groups(model, clean)["image"]
    positions = {str(n): image[n : n + 1] for n in range(count)}
    features = [model.run(x, read=["vision.image_features"])["vision.image_features"] for x in (clean, corrupt)]
    moved = (features[0] - features[1]).norm(dim=1)
    result = patch(model, Pair(clean, corrupt), metric_of(model), where=positions, layers=[0])
    effects = np.abs(result.effect.values[0])
    assert int(moved.argmax()) == corner
    assert int(effects.argmax()) == corner
    same = patch(model, Pair(corrupt, corrupt), metric_of(model), where=positions, layers=[0])
    assert np.isnan(same.effect.values).all()  # two equal runs have no way between them
    assert np.allclose(same.patched.values, same.clean.values[0], atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_images_of_other_sizes(family) -> None:
    model = small(family)
    pair = pair_of(model, ((96, 128), (128, 96)))
    assert pair.clean.image_grid_thw.tolist() != pair.corrupt.image_grid_thw.tolist()
    result = patch(model, pair, metric_of(model), where="regions 2x2")
    assert result.effect.names("tokens") == ("r0 c0", "r0 c1", "r1 c0", "r1 c1")
    assert np.abs(result.effect.values).max() > 0.01
    drawn = result.plot(background=noise_image(0, (128, 96)))
    assert [axes.get_title() for axes in drawn.axes[:3]] == ["image", "layer 0", "layer 1"]
    with pytest.raises(InputError, match="regions and single tokens"):
        patch(model, pair, metric_of(model), where=["last"]).plot(background=noise_image(0))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_words_that_differ_and_no_image(family) -> None:
    model = small(family)
    pair = Pair(question(model, "Is the sky red or blue?"), question(model, "Is the sky tan or blue?"))
    result = patch(model, pair, metric_of(model), where=["tan", "sky", "last"])
    assert result.effect.at(layer="0", tokens="sky") == pytest.approx(
        0.0, abs=1e-4
    )  # it stands before the changed word
    assert abs(result.effect.at(layer="0", tokens="tan")) > 0.01
    assert result.effect.at(layer=str(model.num_layers - 1), tokens="last") == pytest.approx(1.0, abs=1e-4)
    both = Pair(
        question(model, "Is it red?", images=[noise_image(0)], min_pixels=1024),
        question(model, "Is it tan?", images=[noise_image(1)], min_pixels=1024),
    )
    assert np.isfinite(patch(model, both, metric_of(model), where=["image", "question"]).effect.values).all()
    with pytest.raises(InputError, match=r"at image tokens only|got 'deepstack'"):
        patch(model, pair, metric_of(model), where=["last"], component="deepstack")


def test_frames_of_videos() -> None:
    model = small("qwen3_vl")
    clean, corrupt = (
        question(
            model,
            "What?",
            videos=[[noise_image(s + n) for n in range(4)]],
            do_sample_frames=False,
            fps=2,
            min_pixels=1024,
        )
        for s in (0, 9)
    )
    result = patch(model, Pair(clean, corrupt), metric_of(model), where="frames", component="deepstack")
    assert result.effect.shape == (len(model.config.vision.deepstack_indexes), 2)
    assert np.abs(result.effect.values).min() > 0


def test_answers_of_several_tokens_and_kl() -> None:
    model = small("qwen3_vl")
    whole = metrics.log_probability(model.tokenizer, "red")
    result = patch(model, pair_of(model), whole, where=["all", "image"])
    assert result.effect.values[-1, 0] == pytest.approx(1.0, abs=0.2)  # the answer's own tokens are no part of "all"
    divergence = patch(model, pair_of(model), metrics.kl_divergence(), where=["all"])
    assert divergence.clean.values[0] == pytest.approx(0, abs=1e-9)
    assert divergence.effect.values[-1, 0] == pytest.approx(1.0)


def test_several_pairs_have_a_mean_and_from_eight_on_an_interval() -> None:
    model = small("qwen2_vl")
    listed = [pair_of(model, seed=10 * n) for n in range(8)]
    few = patch(model, listed[:7], metric_of(model), where=["last"])
    assert np.isnan([few.low.values, few.high.values]).all()
    assert "7 pairs, no interval below 8" in few.summary()
    result = patch(model, listed, metric_of(model), where=["image", "last"])
    assert result.patched.axes == ("pair", "layer", "tokens")
    inside = (result.low.values <= result.effect.values) & (result.effect.values <= result.high.values)
    assert inside.all()
    assert (result.low.values < result.high.values).any()
    single = [patch(model, pair, metric_of(model), where=["image", "last"]).effect.values for pair in listed]
    assert np.allclose(np.mean(single, 0), result.effect.values)


@pytest.mark.parametrize("direction", patching.DIRECTIONS)
def test_a_pair_whose_runs_measure_the_same_is_left_out_and_counted(direction) -> None:
    model = small("qwen2_vl")
    same, other = ask_pair(model), pair_of(model, seed=3)
    options = {"where": ["image", "last"], "direction": direction}
    result = patch(model, [same, other, same], metric_of(model), **options)
    alone = patch(model, other, metric_of(model), **options)
    assert result.skipped == (0, 2)
    assert np.isfinite(result.effect.values).all()
    np.testing.assert_allclose(result.effect.values, alone.effect.values, atol=1e-6)
    assert result.agreement == pytest.approx(alone.agreement)
    assert "3 pairs, 2 left out: both runs measure the same" in result.summary()
    assert "n = 1" in result.plot().get_suptitle()
    none = patch(model, same, metric_of(model), where=["last"])
    assert np.isnan(none.effect.values).all()
    assert "1 pair, 1 left out" in none.summary()


def ask_pair(model) -> Pair:
    """A pair whose two prompts are the same."""
    inputs = pair_of(model).clean
    return Pair(inputs, inputs)


def test_attribution_is_right_for_a_small_step_and_not_for_a_shuffled_one() -> None:
    model = small("qwen3_vl")
    near = replace_features(model, 1e-3)
    close = patch(model, near, metric_of(model), where=["last", "image", "question"], component="attention")
    assert close.estimate is not None
    assert close.agreement > 0.999
    assert np.allclose(close.estimate.values, close.effect.values, atol=0.02)
    shuffled = np.random.default_rng(0).permuted(close.estimate.values.ravel())
    assert correlation(shuffled, close.effect.values) < 0.9


def replace_features(model, step) -> Pair:
    clean = question(model, "What color?", images=[noise_image(0)], min_pixels=1024)
    noise = torch.randn(clean.pixel_values.shape, generator=torch.Generator().manual_seed(2))
    return Pair(clean, replace(clean, pixel_values=clean.pixel_values + step * noise))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_a_killed_run_resumes_and_ends_with_the_same_json(family, tmp_path) -> None:
    model, progress = small(family), []
    options = {"where": "tokens", "component": "mlp", "memory": 2**21}
    whole = patch(model, pair_of(model), metric_of(model), **options)

    class KilledError(Exception):
        pass

    def kill(done, total):
        progress.append((done, total))
        if done > 0.4 * total:
            raise KilledError

    store = tmp_path / "cells.jsonl"
    with pytest.raises(KilledError):
        patch(model, pair_of(model), metric_of(model), store=store, on_progress=kill, **options)
    kept = store.read_bytes()
    store.write_bytes(kept[: int(len(kept) * 0.9)])  # and the file torn in the middle of a line
    again = patch(model, pair_of(model), metric_of(model), store=store, **options)
    assert again.to_json() == whole.to_json()
    assert progress[0][0] == 0
    done = []
    patch(model, pair_of(model), metric_of(model), store=store, on_progress=lambda d, t: done.append(d), **options)
    assert len(done) == 1  # nothing was computed again
    with pytest.raises(InputError, match="differs in pairs"):
        patch(model, pair_of(model, seed=5), metric_of(model), store=store, **options)


def test_what_does_not_fit_is_refused_before_any_run() -> None:
    model = small("qwen3_vl")
    pair, metric = pair_of(model), metric_of(model)
    for wrong in (
        {"component": "neuron"},
        {"component": "expert"},
        {"direction": "sideways"},
        {"layers": [99]},
        {"where": "pixels"},
        {"where": ["purple"]},
        {"where": {"far": [10**6]}},
        {"component": "deepstack", "layers": [model.num_layers - 1]},
    ):
        with pytest.raises(InputError):
            patch(model, pair, metric, **wrong)
    with pytest.raises(InputError, match="same groups of tokens"):
        patch(model, [pair, pair_of(model, ((64, 64), (64, 64)))], metric, where="tokens")
    with pytest.raises(InputError, match="at least one pair"):
        patch(model, [], metric)


def test_cells_of_another_metric_or_a_changed_weight_are_refused(tmp_path) -> None:
    model, store = small("qwen3_vl"), tmp_path / "cells"
    pair = pair_of(model)
    patch(model, pair, metric_of(model), where=["last"], store=store)
    turned = metrics.logit_difference(model.tokenizer, "b", "a")
    with pytest.raises(InputError, match="another, which differs in metric"):
        patch(model, pair, turned, where=["last"], store=store)
    fine_tuned = ("layers.1.self_attn.o_proj.weight", "blocks.0.attn.qkv.weight")
    for weight in (w for name, w in model.root.named_parameters() if name.endswith(fine_tuned)):
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(1.5).add_(0.25)
        try:
            with pytest.raises(InputError, match="another, which differs in model"):
                patch(model, pair, metric_of(model), where=["last"], store=store)
        finally:
            with torch.no_grad():
                weight.copy_(kept)
    again = patch(model, pair, metric_of(model), where=["last"], store=store)
    assert again.effect.shape == (model.num_layers, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"layers": []}, "got an empty list"), ({"where": []}, "got an empty list"), ({"where": {}}, "empty")],
)
def test_nothing_to_patch_is_refused(options, message) -> None:
    model = small("qwen3_vl")
    with pytest.raises(InputError, match=message):
        patch(model, pair_of(model), metric_of(model), **{"where": ["last"], **options})
