"""Answers of the command line against the reference's greedy answers, and what is said with them."""

from __future__ import annotations

import json
import math

import pytest
import torch

from cutaway.api import load
from cutaway.cli.app import FAULT, run
from cutaway.errors import InputError
from cutaway.tasks.ask import ask


@pytest.fixture(scope="module")
def tiny(oracle):
    """The reference's tiny Qwen3-VL."""
    return load(oracle / "ckpt" / "qwen3_vl")


@pytest.fixture
def image_file(wide, tmp_path) -> str:
    wide.save(tmp_path / "wide.png")
    return str(tmp_path / "wide.png")


def test_an_answer_is_what_the_model_says(tiny, image_file) -> None:
    pieces: list[str] = []
    result = ask(tiny, "What is it?", [image_file], max_new_tokens=6, on_text=pieces.append)
    assert "".join(pieces) == result.text == tiny.ask("What is it?", images=[image_file], max_new_tokens=6)
    assert len(result.tokens) == 6
    assert result.finish_reason == "length"


def test_probabilities_are_the_model_s(tiny, image_file) -> None:
    result = ask(tiny, "What is it?", [image_file], max_new_tokens=3)
    prompt = tiny.prompt("What is it?", images=1)
    inputs = tiny.prepare(prompt, [image_file])
    assert result.prompt_tokens == inputs.input_ids.shape[1]
    with torch.no_grad():
        first = tiny.root(inputs)[0, -1].softmax(-1)
    token = result.tokens[0]
    assert token.id == int(first.argmax())
    assert token.probability == pytest.approx(float(first.max()), rel=1e-4)
    assert all(0 < t.probability <= 1 for t in result.tokens)
    assert math.isfinite(sum(t.probability for t in result.tokens))


def test_a_system_message_comes_first(tiny) -> None:
    plain, message = (ask(tiny, "Hi", system=s, max_new_tokens=1) for s in (None, "Be brief."))
    assert message.prompt_tokens > plain.prompt_tokens


def test_a_seed_repeats_an_answer(tiny) -> None:
    first, again, other = (ask(tiny, "Hi", max_new_tokens=8, temperature=1.0, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first.tokens != other.tokens


def test_a_file_for_a_question(tiny, image_file) -> None:
    with pytest.raises(InputError, match="The last argument is the question"):
        ask(tiny, image_file)
    assert ask(tiny, "x" * 5000 if tiny.config.text.max_positions > 6000 else "x" * 300, max_new_tokens=1).tokens


def test_the_command(oracle, image_file, capsys) -> None:
    options = ["ask", "-m", str(oracle / "ckpt" / "qwen3_vl"), image_file, "What is it?", "--max-new-tokens", "4"]
    assert run(options) == 0
    plain = capsys.readouterr().out
    assert run([*options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert plain == result["text"] + "\n"
    assert len(result["tokens"]) == 4
    assert set(result["tokens"][0]) == {"id", "text", "probability"}


def test_faults(oracle, image_file, capsys) -> None:
    folder = str(oracle / "ckpt" / "qwen3_vl")
    assert run(["ask", "-m", folder, "none.png", "What?"]) == FAULT
    assert run(["ask", "-m", "nowhere", "What?"]) == FAULT
    message = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in message] == ["error", "error"]
