"""The list of published sizes."""

from __future__ import annotations

import json

import pytest

from cutaway.checkpoint.published_sizes import names
from cutaway.cli.app import run

FEW = ["Qwen2.5-VL-3B", "Qwen3-VL-30B-A3B", "Qwen3.5-0.8B"]


@pytest.fixture
def few(monkeypatch) -> None:
    """Three sizes instead of all, which the generated page covers."""
    assert set(FEW) <= set(names())
    monkeypatch.setattr("cutaway.tasks.models.names", lambda: FEW)


@pytest.mark.usefixtures("few")
def test_the_command(capsys) -> None:
    assert run(["models"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [family.split()[0] for family in shown[2:5]] == FEW
    assert "31.07 B" in shown[3]
    assert "62.1 GB" in shown[3]


@pytest.mark.usefixtures("few")
def test_as_json(capsys) -> None:
    assert run(["models", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [m["family"] for m in result] == ["qwen2_5_vl", "qwen3_vl_moe", "qwen3_5"]
    assert result[0]["bytes_bfloat16"] == 2 * result[0]["parameters"]
