"""Sizes counted on the empty tree against what is known of the published models, and against real weights."""

from __future__ import annotations

import json

import pytest
import torch

from cutaway.api import random
from cutaway.cli.app import run
from cutaway.errors import CheckpointError
from cutaway.tasks.inspect import alike, config_of, inspect, memory, ranges


@pytest.mark.parametrize(
    ("name", "billions"),
    # The totals that the releases state.
    [
        ("Qwen2-VL-2B", 2.209),
        ("Qwen2-VL-7B", 8.291),
        ("Qwen2-VL-72B", 73.406),
        ("Qwen2.5-VL-3B", 3.755),
        ("Qwen2.5-VL-7B", 8.292),
        ("Qwen3-VL-2B", 2.128),
        ("Qwen/Qwen3-VL-4B-Instruct", 4.438),
        ("Qwen3-VL-8B", 8.767),
        ("Qwen3-VL-32B", 33.357),
        ("Qwen3-VL-30B-A3B", 31.071),
        ("Qwen3-VL-235B-A22B", 235.670),
    ],
)
def test_parameters_of_published_sizes(name, billions) -> None:
    assert inspect(name).parameters / 1e9 == pytest.approx(billions, abs=0.0006)


def test_the_parts_add_up() -> None:
    result = inspect("Qwen3-VL-8B", depth=6)
    for level in range(3):
        rows = [p for p in result.parts if p.level == level]
        inner = {
            p.name: sum(c.parameters for c in children(result.parts, i))
            for i, p in enumerate(result.parts)
            if p in rows
        }
        for part in rows:
            if inner[part.name]:
                assert inner[part.name] == part.parameters, part
    assert sum(p.parameters for p in result.parts if p.level == 0) == result.parameters


def children(parts, index):
    """The rows one level below a row."""
    level = parts[index].level
    for part in parts[index + 1 :]:
        if part.level <= level:
            return
        if part.level == level + 1:
            yield part


def test_a_tied_head_counts_once() -> None:
    tied, untied = inspect("Qwen3-VL-2B"), inspect("Qwen3-VL-8B")
    heads = [next(p for p in result.parts if p.name == "lm_head").parameters for result in (tied, untied)]
    assert heads == [0, 151936 * 4096]


def test_like_blocks_share_a_row() -> None:
    row = next(p for p in inspect("Qwen3-VL-4B").parts if p.name.startswith("layers"))
    assert (row.name, row.count, row.kind) == ("layers 0–35", 36, "TextBlock")


def test_blocks_of_different_make_do_not() -> None:
    blocks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3), torch.nn.Linear(2, 2)]
    tree = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(blocks)})
    assert [(name, paths) for name, paths, _ in alike(tree)] == [
        ("layers 0, 2", ["layers.0", "layers.2"]),
        ("layers 1", ["layers.1"]),
    ]
    assert ranges([str(i) for i in range(12) if i % 4 != 3]) == "0–2, 4–6, 8–10"
    assert ranges([str(i) for i in range(16) if i % 4 != 3]) == "0–2, 4–6, …, 12–14"


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_memory_is_what_a_run_takes(family, oracle) -> None:
    """Weights and cache of a real, tiny model, measured on its tensors after reading five tokens."""
    model = random(json.loads((oracle / "ckpt" / family / "config.json").read_text()), dtype="float32")
    count = sum(p.numel() for p in model.root.parameters())
    result = memory(model.config, count, "float32")
    assert result.weights == sum(p.nbytes for p in model.root.parameters())
    cache = model.root.new_cache(5)
    with torch.no_grad():
        model.root(model.prepare(torch.tensor([[1, 2, 3, 4, 5]])), cache=cache)
    assert result.cache_per_token * 5 + result.state_per_sequence == cache.memory()
    half = memory(model.config, count, "bfloat16")
    assert half.cache_per_token * 2 == result.cache_per_token
    assert half.weights * 2 == result.weights


def test_a_folder_wins_over_a_published_name(oracle, tmp_path, monkeypatch) -> None:
    (tmp_path / "Qwen3-VL-2B").mkdir()
    text = (oracle / "ckpt" / "qwen3_vl" / "config.json").read_text()
    (tmp_path / "Qwen3-VL-2B" / "config.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert config_of("Qwen3-VL-2B").text.hidden_size == 32


def test_a_name_that_is_nothing() -> None:
    with pytest.raises(CheckpointError, match="There is no folder 'nothing'"):
        inspect("nothing")


def test_the_command(oracle, capsys) -> None:
    folder = str(oracle / "ckpt" / "qwen3_vl")
    assert run(["inspect", folder]) == 0
    shown = capsys.readouterr().out
    assert "146.57 k parameters (146,568)" in shown
    assert "layers 0–3" in shown
    assert run(["inspect", folder, "--json", "--depth", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["parameters"] == 146568
    assert [p["name"] for p in result["parts"]] == ["model", "lm_head"]
    assert result["config"]["text"]["num_layers"] == 4
