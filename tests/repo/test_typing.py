"""Types reach the people who use the package: what pyright and mypy say of a short script."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cutaway
from tests.repo.source import PACKAGE, ROOT

REVEALED = {
    'cutaway.load("nano")': "Model",
    'cutaway.random("Qwen3-VL-2B", small=True)': "Model",
    'model.prompt("What?", images=1)': "Prompt",
    'model.prepare("What?")': "Inputs",
    'model.trace("What?")': "Run",
    'model.run("What?", read="logits")': "RunValues",
    'model.generate("What?")': "Answer",
    'model.generate("What?").texts': "list[str]",
    'model.generate("What?").logprobs': "list[list[float]]",
    'model.generate("What?").__enter__().text': "str",
    'model.ask("What?")': "str",
    'model.ask("What?", stream=True)': "Iterator[str]",
    "model.chat()": "Chat",
    'model.chat().ask("What?")': "str",
    "model.chat().result.ids": "list[list[int]]",
    'model.tokenizer.encode("What?")': "list[int]",
    "model.processor": "Processor",
    "model.config.text.num_layers": "int",
    "cutaway.InputError": "type[InputError]",
}
"""Expressions of a user's script, and the type that a type checker is to know of each."""


@pytest.fixture
def script(tmp_path) -> Path:
    lines = ["import cutaway", 'model = cutaway.load("nano")', *(f"reveal_type({words})" for words in REVEALED)]
    file = tmp_path / "script.py"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_pyright_knows_the_types_of_a_users_script(script) -> None:
    done = _check([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(script)], script.parent)
    types = re.findall(r'Type of "(?:.*)" is "([^"]*)"', done)
    assert types == list(REVEALED.values()), done


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_knows_the_types_of_a_users_script(script) -> None:
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(script.parent / "cache")]
    done = _check([*command, str(script)], script.parent)
    types = [re.sub(r"[a-z_A-Z]+\.", "", name) for name in re.findall(r'Revealed type is "([^"]*)"', done)]
    assert types[:-1] == list(REVEALED.values())[:-1], done
    assert types[-1].endswith("InputError"), done


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["cutaway"]
    assert "Typing :: Typed" in settings["project"]["classifiers"]


def _check(command: list[str], folder: Path) -> str:
    """What a type checker prints, the package found as this process finds it."""
    source = str(Path(cutaway.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "MYPYPATH": source}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout
