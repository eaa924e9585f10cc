"""Experiments from JSON: checked before anything is loaded, run as the functions run, resumed after a kill."""

from __future__ import annotations

import copy
import json

import pytest

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, question
from cutaway.analysis.intervention.ablation import ablate
from cutaway.analysis.intervention.patching import patch
from cutaway.errors import InputError
from cutaway.tasks.experiments import TECHNIQUES, Experiment
from tests.analysis.models import noise_image, small


@pytest.fixture
def folder(tmp_path):
    for n in range(2):
        noise_image(n).save(tmp_path / f"{n}.png")
    return tmp_path


def patching() -> dict:
    return {
        "technique": "patching",
        "model": "nano",
        "pairs": [
            {"clean": {"question": "What?", "images": ["0.png"]}, "corrupt": {"question": "What?", "images": ["1.png"]}}
        ],
        "metric": {"name": "logit_difference", "answer": "a", "foil": "b"},
        "parameters": {"where": ["image", "last"], "component": "mlp"},
    }


def ablation() -> dict:
    return {
        "technique": "ablation",
        "model": "nano",
        "prompts": [{"question": "What?", "images": ["0.png"]}],
        "metric": {"name": "probability", "answer": "red"},
        "parameters": {"how": "resample", "component": "mlp", "others": [{"question": "What?", "images": ["1.png"]}]},
    }


def test_an_experiment_is_what_the_function_does(folder) -> None:
    model = small("qwen3_vl")
    clean, corrupt = (question(model, "What?", images=[str(folder / f"{n}.png")]) for n in range(2))
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    result = Experiment.of(patching(), folder).run(model)
    assert (
        result.to_json()
        == patch(model, Pair(clean, corrupt), metric, where=["image", "last"], component="mlp").to_json()
    )
    metric = metrics.probability(model.tokenizer, "red")
    result = Experiment.of(ablation(), folder).run(model)
    assert result.to_json() == ablate(model, clean, metric, how="resample", component="mlp", others=[corrupt]).to_json()


def test_files_are_beside_the_experiment_and_json_goes_round(folder) -> None:
    path = folder / "experiment.json"
    path.write_text(json.dumps(patching()))
    read = Experiment.read(path)
    assert read.to_json() == patching()
    assert read.run(small("qwen3_vl")).technique == "patching"


def test_a_stopped_experiment_goes_on(folder) -> None:
    model, store, whole = small("qwen3_vl"), folder / "cells", Experiment.of(patching(), folder)

    class StoppedError(Exception):
        pass

    def stop(done, total):
        if 0 < done < total:
            raise StoppedError

    with pytest.raises(StoppedError):
        whole.run(model, store=store, on_progress=stop)
    assert len(store.read_text().splitlines()) > 1
    assert whole.run(model, store=store).to_json() == whole.run(model).to_json()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"technique": "guessing"}, "is one of patching"),
        ({"pairs": None}, "`pairs` is a list"),
        ({"pairs": []}, "got none"),
        ({"pairs": [{"clean": {"question": "a"}}]}, "A pair is"),
        ({"pairs": [{"clean": {"question": "a"}, "corrupt": {"images": []}}]}, "question must be there"),
        ({"pairs": [{"clean": {"question": "a"}, "corrupt": {"question": "a", "images": [1]}}]}, "names of files"),
        ({"metric": "kl"}, "`metric` is an object"),
        ({"model": 3}, "`model` is"),
        ({"parameters": {"bogus": 1}}, "parameters are component"),
        ({"parameters": [1]}, "is a JSON object"),
        ({"notes": "x"}, "got one with notes"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(change, says) -> None:
    with pytest.raises(InputError, match=says):
        Experiment.of({**patching(), **change})


def test_what_is_missing_is_said() -> None:
    data = copy.deepcopy(patching())
    del data["metric"], data["model"]
    with pytest.raises(InputError, match="without model, metric"):
        Experiment.of(data)
    with pytest.raises(InputError, match="JSON object"):
        Experiment.of([])
    with pytest.raises(InputError, match="question must be there"):
        Experiment.of({**ablation(), "parameters": {"others": [{}]}})


def test_a_file_that_is_no_experiment(tmp_path) -> None:
    path = tmp_path / "x.json"
    for content in (None, "{"):
        if content:
            path.write_text(content)
        with pytest.raises(InputError, match=r"does not exist|JSON|mapping"):
            Experiment.read(path)


@pytest.mark.parametrize("name", list(TECHNIQUES))
def test_every_technique_resolves(name) -> None:
    technique = TECHNIQUES[name]
    assert technique.parameters()
    assert set(technique.takes) <= {"pairs", "prompts", "prompt", "metric"}
