"""`cutaway lens`, `attend` and `attribute`: an image in, a summary, JSON, a figure and a repeatable experiment out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cutaway.analysis.common.result import Result
from cutaway.cli.app import FAULT, USAGE, run

QUESTION = "What color is the square?"


@pytest.fixture
def files(red, wide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    red.save("red.png")
    wide.save("wide.png")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "technique", "message"),
    [
        (
            ["lens", "red.png", QUESTION, "--layer", "2", "--word", "red"],
            "logit_lens",
            "Logit lens on the residual stream",
        ),
        (["lens", "red.png", QUESTION, "--nearest"], "nearest_tokens", "by chance"),
        (["attend", "red.png", QUESTION, "--from", "square", "--layer", "1", "--head", "0"], "attention_map", "Sinks"),
        (["attend", "red.png", QUESTION, "--box", "0,0,32,32", "--without-sinks"], "attention_map", "box 0, 0, 32, 32"),
        (["attend", "red.png", QUESTION, "--rollout"], "attention_rollout", "Attention rollout from last"),
        (
            ["attend", "red.png", QUESTION, "--vision", "--box", "0,0,32,32"],
            "vision_attention",
            "Vision encoder, image 0",
        ),
        (
            ["attribute", "red.png", QUESTION, "--answer", "red", "--foil", "blue"],
            "direct_logit_attribution",
            "'red' less 'blue'",
        ),
        (["attribute", "red.png", QUESTION, "--show", "image"], "direct_logit_attribution", "add up to"),
        (
            ["attribute", "red.png", QUESTION, "--method", "integrated", "--steps", "2"],
            "input_attribution",
            "integrated gradients",
        ),
        (
            ["attribute", "red.png", QUESTION, "--method", "gradient", "--answer", "red"],
            "input_attribution",
            "log probability",
        ),
    ],
)
def test_a_command_delivers_and_its_experiment_repeats_it(files, capsys, command, technique, message) -> None:
    outputs = ["--out", "found.json", "--figure", "found.png", "--experiment", "experiment.json"]
    assert run([*command, *outputs]) == 0, capsys.readouterr().err
    assert message in capsys.readouterr().out
    result = Result.load(files / "found.json")
    assert result.technique == technique
    assert (files / "found.png").stat().st_size > 3000
    assert json.loads((files / "experiment.json").read_text())["technique"] == technique
    assert run(["run", "experiment.json", "--out", "again.json"]) == 0
    assert (files / "again.json").read_text() == (files / "found.json").read_text()


def test_a_lens_is_trained_on_a_folder_and_read_through(files, red, wide, capsys) -> None:
    folder = files / "images"
    folder.mkdir()
    for n in range(3):
        (red if n % 2 else wide).save(folder / f"{n}.png")
    (folder / "notes.txt").write_text("no image")
    command = ["lens", "red.png", QUESTION, "--train", "images", "--tuned", "lens.safetensors", "--epochs", "1"]
    assert run([*command, "--out", "found.json"]) == 0, capsys.readouterr().err
    assert "Tuned lens" in capsys.readouterr().out
    tuned, plain = Result.load("found.json"), ["lens", "red.png", QUESTION, "--out", "plain.json"]
    assert run(plain) == 0
    assert np.abs(tuned.entropy.values - Result.load("plain.json").entropy.values).max() > 0


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["lens", "red.png", QUESTION, "--train", "."], USAGE, "--tuned"),
        (["lens", "red.png", QUESTION, "--train", "nowhere", "--tuned", "x"], FAULT, "A folder of images"),
        (["lens", "red.png", QUESTION, "--tokens", "zebra"], FAULT, "is not a group of tokens here"),
        (["attend", "red.png", QUESTION, "--rollout", "--vision"], USAGE, "give one"),
        (["attend", "red.png", QUESTION, "--head", "1"], USAGE, "say --layer too"),
        (["attend", "red.png", QUESTION, "--vision", "--without-sinks", "--figure", "m.png"], USAGE, "not of --vision"),
        (["attend", "red.png", QUESTION, "--layer", "77"], USAGE, "give --figure"),
        (["attend", "red.png", QUESTION, "--rollout", "--layer", "0", "--figure", "m.png"], USAGE, "not of --rollout"),
        (["attend", "red.png", QUESTION, "--box", "1,2,3"], FAULT, "left,top,right,bottom"),
        (["attribute", "red.png", QUESTION, "--foil", "blue"], FAULT, "Give the answer too"),
        (["attribute", "red.png", QUESTION, "--method", "magic"], USAGE, "--method is direct"),
        (["attribute", "red.png", QUESTION, "--answer", "red and blue", "--foil", "red"], FAULT, "One token is wanted"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(files, capsys, command, code, message) -> None:
    assert run(command) == code
    said_so = capsys.readouterr().err.splitlines()
    assert message in said_so[-1]
