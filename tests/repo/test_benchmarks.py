"""The harness of the benchmarks, at sizes that take seconds: that every area runs and its numbers are what they say."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import harness, table
from benchmarks.harness import OURS, Work, difference, interleaved, measure, works


def test_sides_run_in_turn_and_as_often() -> None:
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 4)
    assert order == list("abcbcacababc")
    assert {name: len(found) for name, found in times.items()} == dict.fromkeys("abc", 4)


def test_a_record_has_medians_ratios_and_differences() -> None:
    one = torch.randn(512, 512)

    def sides():
        return {OURS: lambda: one @ one, "twice": lambda: (one @ one, one @ one)[0] + 1.0, "other": lambda: None}

    record = measure(Work("a product", sides, target=0.7), pairs=9)
    assert record["against"] == "twice"
    assert record["repetitions"] == 9
    assert 0.2 < record["sides"]["twice"]["ratio"] < 0.95
    assert record["sides"]["twice"]["difference"] == pytest.approx(1 / float((one @ one).abs().max()), rel=1e-3)
    assert record["sides"]["other"]["difference"] is None
    assert "of twice" in table.row(record)


def test_difference_is_by_the_scale_of_the_first() -> None:
    assert difference(torch.tensor([2.0, -4.0]), torch.tensor([2.0, -5.0])) == 0.25
    assert difference(torch.zeros(2), torch.zeros(3)) is None


def test_memory_is_that_of_a_process_of_its_own() -> None:
    found = harness.peak_of("vision", 0, OURS, True)
    assert 0.05 < found["before"] < 3
    assert 0 <= found["above"] < 0.5
    assert found["peak"] == pytest.approx(found["before"] + found["above"])


@pytest.mark.parametrize("area", ["vision", "prefill", "lines", "tracing", "patterns", "harvest", "growth"])
def test_both_sides_of_an_area_do_the_same(area: str) -> None:
    for work in works(area, True):
        sides = work.sides()
        outputs = {name: call() for name, call in sides.items()}
        assert OURS in sides
        for name, output in outputs.items():
            apart = difference(outputs[OURS], output)
            if name in ("every expert", "cutaway, fused", "transformers sdpa") and area in ("lines", "patterns"):
                continue  # other work, shown beside
            assert apart is None or apart < 1e-4, f"{work.name}: {name} differs by {apart}"


@pytest.mark.parametrize("index", [0, 2])
def test_answers_are_the_same_ids(index: int) -> None:
    mine, theirs = (call() for call in works("decode", True)[index].sides().values())
    assert torch.equal(mine, theirs)


def test_pictures_are_the_same_patches() -> None:
    sides = works("media", True)[1].sides()
    assert difference(*(call() for call in sides.values())) < 0.02  # Pillow rounds where torch does, within a level


def test_the_page_is_made_of_the_record(tmp_path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    records = [measure(Work("a", lambda: {OURS: lambda: None, "b": lambda: None}, target=2.0), pairs=2)]
    kept = {"areas": {"vision": {"rows": records, "machine": {"processor": "x"}, "when": "now"}}}
    table.write(json.loads(json.dumps(kept)), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| a |" in text
    assert "old" not in text


def test_the_script_for_accelerators_runs(monkeypatch, capsys) -> None:
    from benchmarks import gpu

    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--tiny"])
    monkeypatch.setattr(gpu, "SIZES", {"qwen3_vl": "Qwen3-VL-2B", "qwen3_5": "Qwen3.5-0.8B"})
    gpu.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for line in ("qwen3_vl", "qwen3_5"):
        told = found["parity"][line]
        assert told["ids equal"]
        assert told["trace equal"]
        assert told["an edit acts"]
        assert told["logits"] < 1e-5
    assert found["ceilings"]["copy GB/s"] > 0
    assert found["Qwen3-VL-2B"]["decode, batch 8"]["fixed ids equal"]
