"""Probes: a planted feature is found and the shuffled control is not; maps equal scikit-learn's; harvests resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from cutaway.analysis.common import activations as harvesting
from cutaway.analysis.common.activations import Site, harvest
from cutaway.analysis.common.prompts import question
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import token_groups
from cutaway.analysis.probing.linear import fit, predictions, scores, wilson
from cutaway.analysis.probing.probes import probe, train_probe
from cutaway.errors import InputError
from cutaway.tasks.experiments import Experiment
from tests.analysis.models import BUILT, CHECKPOINTS, noise_image, small


def question_prompt(model, count: int, size=(64, 64)):
    return [question(model, "What color?", images=[noise_image(n, size)]) for n in range(count)]


def planted(count: int = 60, width: int = 12, seed: int = 0):
    """Features whose class is the sign along one direction, and whose number is the part along it."""
    draw = torch.Generator().manual_seed(seed)
    x, way = torch.randn(count, width, generator=draw), torch.randn(width, generator=draw)
    along = x @ way / way.norm()
    return x + torch.sign(along)[:, None] * way / way.norm(), way / way.norm()


@pytest.mark.parametrize("family", BUILT)
def test_a_planted_class_is_found_and_shuffled_labels_are_not(family, monkeypatch) -> None:
    model = small(family)
    prompts = question_prompt(model, 24)
    labels = ["left" if n % 2 else "right" for n in range(24)]
    way = torch.randn(model.hidden_size, generator=torch.Generator().manual_seed(5))
    run = type(model).run

    def edited(self, inputs, **options):  # the class is written into the stream after layer 1, and only there
        number = next(n for n, mine in enumerate(prompts) if mine is inputs)
        edit = {"layers.1.layer_output": lambda v: v + (3 if number % 2 else -3) * way}
        return run(self, inputs, edit=edit, **options)

    monkeypatch.setattr(type(model), "run", edited)
    result = probe(model, prompts, labels=labels, value="layers.*.layer_output", folds=4, controls=2)
    scores_by_layer = result.score.values
    assert scores_by_layer[1] == 1.0
    assert result.best == "layers.1.layer_output"
    assert abs(scores_by_layer[0] - 0.5) < 0.3, "before the planted layer there is nothing to find"
    assert abs(result.shuffled.values[:, 1].mean() - 0.5) < 0.25
    assert result.low.values[1] > 0.8
    assert result.high.values[1] == 1.0
    assert result.chance == 0.5
    assert np.trace(result.confusion.at().values) == 24
    assert "labels shuffled" in result.summary()
    assert result.plot() is not None
    assert result.plot(confusion=True) is not None
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()


def test_a_number_is_found_by_ridge() -> None:
    x, way = planted(count=80)
    y = (x @ way).double() * 3 + 2
    model = train_probe(x, y.tolist(), method="ridge", penalty=1e-6)
    assert scores(y, predictions(model, x), False)[0] > 0.999
    assert abs(float(model.direction() @ way)) > 0.999


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_logistic_regression_equals_scikit_learn(count, penalty) -> None:
    draw = torch.Generator().manual_seed(count)
    x, y = torch.randn(50, 7, generator=draw).double(), torch.arange(50) % count
    x = (x - x.mean(0)) / x.std(0, correction=0)
    ours = fit(x, y, tuple("abcd"[:count]), penalty)
    theirs = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=5000).fit(x.numpy(), y.numpy())
    expected = torch.tensor(theirs.predict_proba(x.numpy()))
    if count == 2:  # scikit-learn has one column for two classes: half the penalty of ours, which has two
        theirs = LogisticRegression(C=2 / penalty, tol=1e-10, max_iter=5000).fit(x.numpy(), y.numpy())
        expected = torch.tensor(theirs.predict_proba(x.numpy()))
    assert torch.allclose(ours(x).softmax(-1), expected, atol=1e-4)


@pytest.mark.parametrize("width", [5, 90])
def test_ridge_regression_equals_scikit_learn(width) -> None:
    draw = torch.Generator().manual_seed(width)
    x, y = torch.randn(40, width, generator=draw).double(), torch.randn(40, generator=draw).double()
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    theirs = Ridge(alpha=2.0).fit(scaled.numpy(), y.numpy()).predict(scaled.numpy())
    assert torch.allclose(predictions(fit(x, y, (), 2.0), x), torch.tensor(theirs), atol=1e-8)


def test_the_interval_of_a_share() -> None:
    low, high = wilson(8, 10)  # Wilson 1927, as tables have it
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 10)[0] == 0.0


@pytest.mark.parametrize("family", BUILT)
def test_values_have_a_row_for_each_token(family) -> None:
    """Rows of the same tokens agree where the model itself copies them from one value to another."""
    model = small(family)
    inputs = question(model, "What color?", images=[noise_image(0), noise_image(1, (64, 64))], min_pixels=1024)
    positions = token_groups(model, inputs)["image 1"]
    names = ["vision.image_features", "projector.output", "layers.0.input", "projector.input", "vision.tower_output"]
    values = model.run(inputs, read=names)
    rows = {}
    for name in names:
        site = Site.one(model, name)
        matrix = site.matrix(values[name])
        assert torch.equal(site.restored(matrix, values[name]), values[name])
        rows[name] = matrix[site.rows(values[name], inputs, positions)]
    assert torch.equal(rows["vision.image_features"], rows["layers.0.input"])
    assert torch.equal(rows["vision.image_features"], rows["projector.output"])
    assert torch.equal(rows["projector.input"], rows["vision.tower_output"])
    assert len(rows["projector.input"]) == 4 * len(positions)


def test_heads_lie_side_by_side() -> None:
    model = small("qwen3_vl")
    inputs = question_prompt(model, 1)[0]
    values = model.run(inputs, read=["layers.0.self_attn.attention_queries"])
    name, value = next(iter(values.items()))
    site = Site.one(model, name)
    row = site.matrix(value)[site.rows(value, inputs, torch.tensor([5]))][0]
    assert torch.equal(row, value[0, :, 5].flatten())
    assert torch.equal(site.restored(site.matrix(value), value), value)


@pytest.mark.parametrize("where", ["last", "image", "question", {"box": (0, 0, 20, 20)}])
def test_harvests_pool_what_they_say(where) -> None:
    model = small("qwen3_vl")
    prompts = question_prompt(model, 2)
    result = harvest(model, prompts, value=["layers.1.layer_output"], where=where, pool="max")
    from cutaway.analysis.common.token_selection import select_tokens

    at = select_tokens(model, prompts[1], where).positions
    value = model.run(prompts[1], read="layers.1.layer_output")["layers.1.layer_output"]
    assert torch.allclose(result["layers.1.layer_output"][1], value[0, at].amax(0))


def test_a_harvest_that_was_stopped_goes_on(tmp_path, monkeypatch) -> None:
    model = small("qwen3_vl")
    prompts = question_prompt(model, 9, (32, 32))
    monkeypatch.setattr(harvesting, "SHARD", 4)
    whole = harvest(model, prompts)
    ran = []

    def stop(done, total):
        ran.append(done)
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harvest(model, prompts, store=tmp_path / "kept", on_progress=stop)
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["part-00000.safetensors"]
    ran.clear()
    run, count = type(model).run, []
    monkeypatch.setattr(type(model), "run", lambda self, *a, **k: (count.append(1), run(self, *a, **k))[1])
    result = harvest(model, prompts, store=tmp_path / "kept", on_progress=lambda d, t: ran.append((d, t)))
    assert len(count) == 5, "the first four are not run again"
    assert ran[-1] == (9, 9)
    assert all(torch.equal(result[name], whole[name]) for name in whole)
    with pytest.raises(InputError, match="another, which differs in settings"):
        harvest(model, prompts, pool="max", store=tmp_path / "kept")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a"] * 3}, "one entry for each of the 10 examples"),
        ({"labels": ["a"] * 10}, "at least two classes"),
        ({"labels": ["a", "b"] * 5, "method": "ridge"}, "predicts numbers"),
        ({"labels": ["a", "b"] * 5, "method": "forest"}, "`method` must be one of"),
        ({"labels": ["a", "b"] * 5, "pool": "sum"}, 'one of "mean", "max", "last"'),
        ({"labels": ["a", "b"] * 5, "penalty": 0}, "a number above 0"),
        (
            {"labels": ["a", "b"] * 5, "value": "layers.*.self_attn.attention_probabilities"},
            "vector for each token or patch is wanted",
        ),
        ({"labels": ["a", "b"] * 5, "value": "vision.image_features", "where": "last"}, "for image tokens only"),
    ],
)
def test_what_does_not_fit_is_refused(options, message) -> None:
    model = small("qwen3_vl")
    with pytest.raises(InputError, match=message):
        probe(model, question_prompt(model, 10, (32, 32)), **options)


def test_an_experiment_repeats_a_probe(tmp_path) -> None:
    for n in range(8):
        noise_image(n, (32, 32)).save(tmp_path / f"{n}.png")
    prompts = [{"question": "What?", "images": [f"{n}.png"]} for n in range(8)]
    parameters = {
        "labels": ["a", "b"] * 4,
        "folds": 2,
        "controls": 1,
        "value": "vision.image_features",
        "where": "image",
    }
    content = {
        "technique": "probe", "model": str(CHECKPOINTS / "qwen3_vl"), "prompts": prompts, "parameters": parameters
    }  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps(content))
    first, second = (Experiment.read(tmp_path / "e.json").run().to_json() for _ in range(2))
    assert first == second
    assert first["score"]["labels"]["value"] == ["vision.image_features"]
