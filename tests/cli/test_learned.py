"""`cutaway steer`, `probe` and `sae`: from folders of images to results, figures and experiments."""

from __future__ import annotations

import json

import pytest
import torch

from cutaway.analysis.common.result import Result
from cutaway.analysis.sae.sae import SAE
from cutaway.cli.app import FAULT, run
from tests.analysis.models import CHECKPOINTS, noise_image

MODEL = ["--model", str(CHECKPOINTS / "qwen3_vl")]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in range(4):
        position = tmp_path / "images" / ("light" if n % 2 else "dark")
        position.mkdir(parents=True, exist_ok=True)
        noise_image(n, (32, 32)).save(position / f"{n}.png")
        noise_image(n, (32, 32)).save(tmp_path / f"{n}.png")
    return tmp_path


def test_steer(files, capsys) -> None:
    command = ["steer", "0.png", "What color?", *MODEL, "--toward", "1.png", "--away", "2.png", "--answer", "a"]
    command += ["--foil", "b", "--value", "layers.1.layer_output", "--when", "0:2", "--strength", "1"]
    assert run([*command, "--out", "a.json", "--figure", "a.png", "--experiment", "e.json"]) == 0
    assert "becomes" in capsys.readouterr().out
    assert run(["run", "e.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((files / "a.json").read_text())
    assert run(["steer", "0.png", "What?", *MODEL, "--toward", "1.png"]) == FAULT
    assert "away from" in capsys.readouterr().err


def test_probe(files, capsys) -> None:
    command = ["probe", "images", "What?", *MODEL, "--folds", "2", "--controls", "1", "--store", "kept"]
    command += ["--value", "layers.1.layer_output"]
    assert run(["probe", "images", "What?", *MODEL]) == FAULT, "two images a class cannot be held out five times"
    (files / "labels.json").write_text(json.dumps({f"{n}.png": "ab"[n % 2] for n in range(4)}))
    assert run([*command, "--figure", "p.svg", "--confusion", "--json"]) == 0
    captured = capsys.readouterr().out
    assert Result.from_json(json.loads(captured[captured.index("{") :])).classes == ("dark", "light")
    command[1], command[-3] = ".", "other"
    assert run([*command, "--labels", "labels.json"]) == 0
    assert "chance 0.500" in capsys.readouterr().out
    assert run(["probe", "kept", "What?", *MODEL]) == FAULT
    assert "one subfolder of images for each" in capsys.readouterr().err


def test_sae(files, capsys) -> None:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(32, 8, generator=draw)
    SAE(weights, torch.zeros(8), weights.T.contiguous(), torch.zeros(32)).save("sae")
    command = ["sae", "sae", "images/light", *MODEL, "--feature", "2", "--loss"]
    assert run([*command, "--out", "a.json", "--figure", "a.png", "--experiment", "e.json"]) == 0
    assert "loss recovered" in capsys.readouterr().out
    assert run(["run", "e.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((files / "a.json").read_text())
    assert run(["sae", "images", "images/light", *MODEL]) == FAULT
    assert "no cfg.json" in capsys.readouterr().err
