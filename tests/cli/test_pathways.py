"""`cutaway pathways`: results, figures and experiments of routes and cuts; what does not go together is refused."""

from __future__ import annotations

import json

import pytest

from cutaway.cli.app import FAULT, USAGE, run
from tests.analysis.models import CHECKPOINTS, noise_image

MODEL = ["--model", str(CHECKPOINTS / "qwen3_vl")]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in range(2):
        noise_image(n, (64, 64)).save(tmp_path / f"{n}.png")
    return tmp_path


@pytest.mark.parametrize("extra", [[], ["--other", "1.png"], ["--how", "mean"], ["--knockout"]])
def test_the_result_is_shown_kept_and_repeated(files, capsys, extra) -> None:
    command = ["pathways", "0.png", "What color?", *MODEL, "--answer", "a", *extra]
    assert run([*command, "--out", "a.json", "--figure", "a.png", "--experiment", "e.json"]) == 0
    shown = capsys.readouterr().out
    assert ("image → last" if "--knockout" in extra else "Shapley value") in shown
    assert (files / "a.png").stat().st_size > 1000
    assert run(["run", "e.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((files / "a.json").read_text())


def test_without_an_answer_the_models_own_is_followed(files, capsys) -> None:
    assert run(["pathways", "0.png", "What color?", *MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["technique"] == "pathways"


def test_what_does_not_go_together_is_refused(files, capsys) -> None:
    assert run(["pathways", "0.png", "What?", *MODEL, "--knockout", "--how", "mean"]) == USAGE
    assert "--knockout takes neither" in capsys.readouterr().err
    assert run(["pathways", "What?", *MODEL]) == FAULT
    assert "Routes lead from an image or video" in capsys.readouterr().err
