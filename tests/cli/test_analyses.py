"""The analyses' commands: results, figures and experiments; resumed after a kill; faults said early."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch

from cutaway.analysis.common.result import Result
from cutaway.api import load
from cutaway.cli.app import FAULT, USAGE, run
from cutaway.tasks import analyses
from tests.analysis.models import CHECKPOINTS, noise_image

MODEL = str(CHECKPOINTS / "qwen3_vl")
WORDS = ["--model", MODEL, "--answer", "a", "--foil", "b"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n, name in enumerate(("clean.png", "corrupt.png")):
        noise_image(n, (64, 64)).save(tmp_path / name)
    return tmp_path


def test_patch_gives_a_table_json_a_figure_and_the_experiment_that_repeats_it(files, capsys) -> None:
    command = ["patch", "clean.png", "corrupt.png", "What color?", *WORDS, "--where", "image,last"]
    assert run([*command, "--out", "a.json", "--figure", "a.png", "--experiment", "e.json"]) == 0
    shown = capsys.readouterr()
    assert "less 'b': clean" in shown.out
    assert "written: a.json" in shown.err
    assert (files / "a.png").stat().st_size > 2000
    assert not (files / "a.json.cells").exists()
    assert run(["run", "e.json", "--out", "b.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((files / "a.json").read_text())
    assert (files / "b.json").read_bytes() == (files / "a.json").read_bytes()


def test_ablate_ranks(files, capsys) -> None:
    assert run(["ablate", "clean.png", "What color?", *WORDS, "--component", "mlp", "--how", "zero", "--json"]) == 0
    result = Result.from_json(json.loads(capsys.readouterr().out))
    assert result.drop.axes == ("layer", "tokens")
    command = ["ablate", "clean.png", "What color?", *WORDS, "--how", "resample", "--other", "corrupt.png"]
    assert run([*command, "--component", "token", "--where", "regions 2x2", "--figure", "b.png"]) == 0
    assert "drop in logits" in capsys.readouterr().out


def test_without_answers_what_the_model_says_is_measured(files, capsys) -> None:
    assert run(["ablate", "clean.png", "What?", "--model", MODEL, "--component", "mlp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"].startswith("log probability of ")
    assert run(["patch", "clean.png", "clean.png", "What?", "--model", MODEL]) == FAULT
    assert "begins both answers with" in capsys.readouterr().err
    assert run(["patch", "clean.png", "corrupt.png", "What?", "--model", MODEL, "--foil", "b"]) == FAULT
    assert "Give the answer too" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "nowhere.json"],
        ["patch", "clean.png", "nowhere.png", "What?", *WORDS],
        ["patch", "clean.png", "corrupt.png", "What?", *WORDS, "--component", "neuron"],
        ["ablate", "clean.png", "What?", *WORDS, "--how", "resample"],
    ],
)
def test_a_fault_is_one_line(files, capsys, arguments) -> None:
    assert run(arguments) == FAULT
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "a.doc"], "A figure is written as"),
        (["--figure", "no/a.png"], "no folder no"),
        (["--out", "no/a.json"], "no folder no"),
        (["--experiment", "no/e.json"], "no folder no"),
        (["--out", "."], "which is a folder"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_a_model_is_loaded(files, capsys, arguments, message) -> None:
    assert run(["patch", "clean.png", "corrupt.png", "What?", "--model", "nowhere", *arguments]) == FAULT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attribute", "clean.png", "What?", *WORDS, "--steps", "4"], "--steps belong to the methods"),
        (["lens", "clean.png", "What?", "--model", MODEL, "--nearest", "--layer", "1"], "--nearest takes none"),
    ],
)
def test_options_that_would_be_ignored_are_refused(files, capsys, arguments, message) -> None:
    assert run(arguments) == USAGE
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_runner_up_is_another_word() -> None:
    model = load(MODEL)
    ids = [model.tokenizer.encode(word)[0] for word in ("a", "A", " a", "b")]
    logits = torch.zeros(1, 1, model.vocab_size)
    logits[0, 0, ids] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(analyses, "answer_logits", lambda *_: logits)
        best, second = analyses.two_likeliest(model, {"question": "What?"})
    assert (best, second) == (ids[0], ids[3])


def test_a_map_is_drawn_on_the_image_that_it_is_of(files, capsys) -> None:
    frames = [noise_image(n, (64, 64)) for n in range(4)]
    frames[0].save(files / "video.gif", save_all=True, append_images=frames[1:], duration=500)
    assert run(["attend", "video.gif", "clean.png", "What?", "--model", MODEL, "--figure", "m.png"]) == 0
    assert (files / "m.png").stat().st_size > 2000


def test_a_killed_patch_resumes_and_ends_with_the_same_json(files) -> None:
    command = [sys.executable, "-m", "cutaway", "patch", "clean.png", "corrupt.png", "What color is it?", *WORDS]
    command += ["--where", "tokens", "--component", "head", "--out"]
    cells = files / "killed.json.cells"
    killed = subprocess.Popen([*command, "killed.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and not (cells.exists() and cells.stat().st_size > 4000):
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert cells.exists(), "it was finished before it could be killed"
    kept = len(cells.read_text().splitlines())
    assert run([*command[3:-1], "--out", "killed.json"]) == 0
    assert run([*command[3:-1], "--out", "whole.json"]) == 0
    assert kept > 10
    assert (files / "killed.json").read_bytes() == (files / "whole.json").read_bytes()
