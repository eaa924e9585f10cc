"""Steering: a planted logit direction moves its logit and no other; forced answers equal generated ones; files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import question
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import select_tokens
from cutaway.analysis.steering.sweep import steer
from cutaway.analysis.steering.vectors import SteeringVectors, contrast
from cutaway.api import random
from cutaway.errors import CheckpointError, InputError
from cutaway.tasks.experiments import Experiment
from tests.analysis.models import BUILT, CHECKPOINTS, noise_image, small


def ask(model, seed=0, text="What color?"):
    return question(model, text, images=[noise_image(seed, (64, 64))])


def planted(family: str):
    """A model whose head reads one direction of the stream for the token 70 alone, and that direction.

    The stream after the last layer is what the head reads, and every other row of the head is at right angles to it.
    """
    model = random(json.loads((CHECKPOINTS / family / "config.json").read_text()), seed=4)
    way = torch.zeros(model.hidden_size)
    way[3] = 1.0
    with torch.no_grad():
        head = model.lm_head.weight.clone()
        head[:, 3] = 0
        head[70] = way
        model.lm_head.weight = torch.nn.Parameter(head)
    return model, way


@pytest.mark.parametrize("family", BUILT)
def test_a_planted_logit_direction_moves_that_logit_alone(family) -> None:
    model, way = planted(family)
    inputs, address = ask(model), f"layers.{model.num_layers - 1}.layer_output"
    stream = model.run(inputs, read=[address])[address]
    result = SteeringVectors({address: way * float(stream[0, -1].norm())}, {address: float(stream[0, -1].norm())}, {})
    plain = metrics.answer_logits(model, inputs)[0, 0]
    ranks = {}
    for name, directions in {"planted": result, **{str(n): result.random(n) for n in range(5)}}.items():
        moved = metrics.answer_logits(model, inputs, edit=directions.teacher_forced_edits(model, inputs))[0, 0]
        # the final norm scales all logits together; what is left is the direction's own
        scale = (moved[:70] @ plain[:70]) / (plain[:70] @ plain[:70])
        change = (moved - scale * plain).abs()
        ranks[name] = (int((change > change[70]).sum()), float(change[70]), float(change[:70].max()))
    assert ranks["planted"][0] == 0
    assert ranks["planted"][2] < 1e-3 * ranks["planted"][1], "no other logit moves"
    for n in range(5):
        assert ranks[str(n)][2] > 0.1 * ranks[str(n)][1], "a random direction moves the others as well"
        assert ranks[str(n)][1] < 0.7 * ranks["planted"][1]


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("when", ["prompt", "decode", "all", (1, 3)])
def test_a_forced_answer_is_scored_as_it_was_generated(family, when) -> None:
    model, inputs = small(family), ask(small(family))
    result = contrast(model, [ask(model, 1)], [ask(model, 2)], value="layers.1.layer_output", where="question")
    options = {"at": "question", "strength": 3.0, "when": when}
    answer = model.generate(
        inputs, edit=result.edits(model, inputs, **options), max_new_tokens=5, temperature=0, ignore_eos=True
    )
    metric = metrics.log_probability(model.tokenizer, answer.ids[0])
    forced = metrics.measure(model, inputs, metric, edit=result.teacher_forced_edits(model, inputs, **options))
    assert float(forced) == pytest.approx(sum(answer.logprobs[0]), abs=1e-3)
    plain = metrics.measure(model, inputs, metric)
    assert abs(float(plain - forced)) > 1e-3


@pytest.mark.parametrize("address", ["vision.image_features", "projector.input", "vision.layers.1.layer_output"])
@pytest.mark.parametrize("family", BUILT)
def test_the_vision_encoder_is_steered_at_the_chosen_tokens(family, address) -> None:
    model, inputs = small(family), ask(small(family))
    result = contrast(model, [ask(model, 1)], [ask(model, 2)], value=address, where="image")
    box = {"box": (0, 0, 10, 10)}
    edit = result.teacher_forced_edits(model, inputs, at=box, strength=2.0)
    values = [model.run(inputs, read=[address], edit=options)[address] for options in (None, edit)]
    moved = (values[1] - values[0]).reshape(-1, values[0].shape[-1])
    kept = moved.abs().amax(-1) > 0
    tokens = len(select_tokens(model, inputs, box).positions)
    expected = tokens if address == "vision.image_features" else 4 * tokens
    assert 0 < expected < len(moved)
    assert int(kept.sum()) == expected
    assert torch.allclose(moved[kept], 2 * result.vectors[address].expand(expected, -1), atol=1e-4)


def test_the_difference_carries_one_mean_to_the_other() -> None:
    model = small("qwen3_vl")
    sets = [[ask(model, n) for n in range(2)], [ask(model, n) for n in (5, 6)]]
    address = "layers.1.layer_output"
    result = contrast(model, *sets, value=address)
    means = [torch.stack([model.run(p, read=[address])[address][0, -1] for p in s]).mean(0) for s in sets]
    assert torch.allclose(result.vectors[address], means[0] - means[1], atol=1e-5)
    unit = contrast(model, *sets, value=address, normalise="unit").vectors[address]
    assert float(unit.norm()) == pytest.approx(1)
    scaled = contrast(model, *sets, value=address, normalise="value")
    assert float(scaled.vectors[address].norm()) == pytest.approx(scaled.sizes[address], rel=1e-5)
    chance = result.random(3).vectors[address]
    assert float(chance.norm()) == pytest.approx(float(result.vectors[address].norm()), rel=1e-5)


def test_the_sweep_has_its_table_its_answers_and_its_control(tmp_path) -> None:
    model = small("qwen3_vl")
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    prompts = [ask(model), ask(model, 9)]
    options = {"positive": [ask(model, 1)], "negative": [ask(model, 2)], "strengths": (-1, 2), "max_new_tokens": 2}
    result = steer(model, prompts, metric, **options, controls=2, store=tmp_path / "cells")
    assert result.effect.shape == (3, model.num_layers, 2)
    assert result.measured.shape == (3, model.num_layers, 2, 2)
    name = "layers.1.layer_output"
    direction = contrast(model, options["positive"], options["negative"]).select(name)
    moved = [
        float(metrics.measure(model, p, metric, edit=direction.teacher_forced_edits(model, p, strength=2.0)) -
              metrics.measure(model, p, metric)) for p in prompts
    ]  # fmt: skip
    assert result.effect.at(direction="steered", value=name, strength="2") == pytest.approx(np.mean(moved), abs=1e-4)
    assert len(result.answers) == 3 * model.num_layers * 2
    assert "it becomes" in result.summary()
    assert result.plot() is not None
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()
    again = steer(model, prompts, metric, **options, controls=2, store=tmp_path / "cells")
    assert again.to_json() == result.to_json()
    one = steer(model, prompts[0], metric, **{**options, "max_new_tokens": 0}, value=name)
    assert one.baseline_answers == ()
    assert one.plot() is not None


def test_directions_are_saved_and_loaded(tmp_path) -> None:
    model = small("qwen3_vl")
    result = contrast(model, [ask(model, 1)], [ask(model, 2)])
    loaded = SteeringVectors.load(result.save(tmp_path / "d.safetensors"))
    assert loaded.notes == result.notes
    assert loaded.sizes == result.sizes
    assert all(torch.equal(loaded.vectors[name], vector) for name, vector in result.vectors.items())
    from cutaway.checkpoint.tensor_file import save_tensors

    with pytest.raises(CheckpointError, match="holds no steering vectors"):
        SteeringVectors.load(save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(2)}, {}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalise": "max"}, "`normalise` must be one of"),
        ({"positive": []}, "`positive` has at least 1"),
        ({"strengths": ()}, "`strengths` must be a list of at least one"),
        ({"controls": 0}, "`controls` must be a whole number of at least 1"),
        ({"when": "later"}, "two ends of a range"),
        ({"at": "no such word"}, "not a group of tokens"),
    ],
)
def test_what_does_not_fit_is_refused(options, message) -> None:
    model = small("qwen3_vl")
    sets = {"positive": [ask(model, 1)], "negative": [ask(model, 2)], "value": "layers.1.layer_output"}
    with pytest.raises(InputError, match=message):
        steer(model, ask(model), metrics.logit_difference(model.tokenizer, "a", "b"), **{**sets, **options})
    with pytest.raises(InputError, match="no direction"):
        contrast(model, [ask(model, 1)], [ask(model, 1)])


def test_a_metric_that_compares_does_so_with_the_run_without_steering() -> None:
    model = small("qwen3_vl")
    result = steer(
        model, ask(model), metrics.kl_divergence(), positive=[ask(model, 1)], negative=[ask(model, 2)],
        value="layers.1.layer_output", strengths=(1.0, 4.0), max_new_tokens=0,
    )  # fmt: skip
    assert result.baseline.values.tolist() == [0.0]
    assert (result.effect.values > 0).all()


def test_an_experiment_repeats_steering(tmp_path) -> None:
    for n in range(3):
        noise_image(n, (32, 32)).save(tmp_path / f"{n}.png")
    spec = [{"question": "What?", "images": [f"{n}.png"]} for n in range(3)]
    parameters = {"positive": spec[1:2], "negative": spec[2:], "value": "layers.1.layer_output", "when": [0, 2]}
    content = {
        "technique": "steer", "model": str(CHECKPOINTS / "qwen3_vl"), "prompts": spec[:1],
        "metric": {"name": "log_probability", "answer": "ab"}, "parameters": parameters,
    }  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps(content))
    first, second = (Experiment.read(tmp_path / "e.json").run().to_json() for _ in range(2))
    assert first == second
