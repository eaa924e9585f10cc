"""The harness of the benchmarks, at sizes that take seconds: that every area runs and its numbers are what they say."""

from __future__ import annotations

import argparse
import importlib
import json
from itertools import pairwise, permutations

import pytest
import torch
from PIL import Image

from benchmarks import __main__ as runner
from benchmarks import figures, growth, harness, table
from benchmarks.harness import OURS, Work, difference, interleaved, measure, works


def test_sides_run_as_often_and_behind_every_other_one() -> None:
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 40)
    rounds = [order[i : i + 3] for i in range(0, 120, 3)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert {name: len(results) for name, results in times.items()} == dict.fromkeys("abc", 40)
    before = {(a, b) for one in rounds for a, b in pairwise(one)}
    assert before == set(permutations("abc", 2))


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
    results = harness.peak_of("vision", 0, OURS, True)
    assert 0.05 < results["before"] < 3
    assert 0 <= results["above"] < 0.5
    assert results["peak"] == pytest.approx(results["before"] + results["above"])


def test_memory_of_tensors_is_exact() -> None:
    def three_then_two() -> None:
        one = torch.zeros(1000)
        two = one + 1
        del one
        assert len(torch.cat([two, two])) == 2000

    assert harness.allocated(three_then_two) == 12_000
    assert harness.allocated(lambda: None) == 0


@pytest.mark.parametrize(
    "area",
    ["vision", "prefill", "families", "tracing", "patterns", "patch_grid", "attention_memory", "harvest", "growth"],
)
def test_both_sides_of_an_area_do_the_same(area: str) -> None:
    for work in works(area, True):
        sides = work.sides()
        outputs = {name: call() for name, call in sides.items()}
        assert next(iter(sides)) == OURS
        for name, output in outputs.items():
            apart = difference(outputs[OURS], output)
            if name in ("every expert", "cutaway, fused", "transformers sdpa") and area in ("families", "patterns"):
                continue  # other work, shown beside
            assert apart is None or apart < 1e-4, f"{work.name}: {name} differs by {apart}"


@pytest.mark.parametrize("index", [0, 2])
def test_answers_are_the_same_ids(index: int) -> None:
    mine, theirs = (call() for call in works("decode", True)[index].sides().values())
    assert torch.equal(mine, theirs)


def test_images_are_the_same_patches() -> None:
    sides = works("media", True)[1].sides()
    apart = difference(*(call() for call in sides.values()))
    assert apart is not None
    assert apart < 0.02  # Pillow rounds where torch does, within a level


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

    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--tiny", "--families", "qwen3_vl,qwen3_5"])
    assert gpu.main() == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert results["parity"]["holds"]
    for line in ("qwen3_vl", "qwen3_5"):
        note = results["parity"][line]
        assert all(note["holds"].values())
        assert note["float32"] < 1e-5
        assert note["bfloat16, flash"] > 0
        assert "refused" in note["bfloat16, varlen, padded"]
    assert results["ceilings"]["copy GB/s"] > 0
    for size in ("Qwen3-VL-2B", "Qwen3-VL-8B"):
        assert results[f"{size}: prefill"]["difference"] < 0.05  # bfloat16, in two libraries
        assert all(results[f"{size}: decode, batch {n}"]["ids equal"] for n in (1, 8, 64))


def test_a_part_of_that_script_that_fails_or_comes_late_is_told(capsys) -> None:
    from benchmarks.gpu import Bench

    bench = Bench("cpu", True, 1000)
    assert "ZeroDivisionError" in bench.part("a", lambda: {"x": 1 // 0})["failed"]
    bench.limit = 0
    assert "left out" in bench.part("b", dict)
    assert capsys.readouterr().out.count("] ") == 2


def test_sides_that_take_long_are_repeated_less_often_and_parts_divide(monkeypatch) -> None:
    monkeypatch.setattr(harness, "seconds", lambda call: call())
    work = Work("a", lambda: {OURS: lambda: 6.0, "slow": lambda: 4.0}, seldom={"slow": 2}, parts={OURS: 3})
    record = measure(work, pairs=5)
    assert (record["sides"][OURS]["repetitions"], record["sides"]["slow"]["repetitions"]) == (5, 2)
    assert (record["sides"][OURS]["seconds"], record["sides"]["slow"]["ratio"]) == (2.0, 0.5)
    assert table.often(record) == "5 (slow 2)"


def test_a_side_without_room_is_left_out_and_told() -> None:
    work = Work("a", lambda: {OURS: lambda: None, "b": lambda: None, "c": lambda: None}, needs={"c": 1e6})
    record = measure(work, pairs=1)
    assert list(record["sides"]) == [OURS, "b"]
    assert "c: left out, needs 1000000 GB" in table.row(record)


def test_a_work_that_fails_does_not_lose_the_others(monkeypatch) -> None:
    def broken() -> dict:
        raise RuntimeError("no such thing")

    both = [Work("a", broken), Work("b", lambda: {OURS: lambda: None})]
    monkeypatch.setattr(harness, "works", lambda area, quick: both)
    first, second = harness.run_area("vision", pairs=1)
    assert first["failed"] == "RuntimeError: no such thing"
    assert "failed: RuntimeError" in table.row(first)
    assert second["sides"][OURS]["seconds"] >= 0


def test_memory_is_held_against_another_side() -> None:
    peak = {"before": 1.0, "above": 0.5, "peak": 1.5}
    record = {"work": "a", "target_memory": 0.4, "memory_over": "b", "sides": {OURS: {"memory": {**peak, "above": 1.0}},
              "b": {"memory": peak}}}  # fmt: skip
    assert [row.split(" | ")[-1] for row in table.memory(record)] == ["**no** |", " |"]
    assert "≤ 0.40 over b | **no**" in table.memory(record)[0]


def grown(seconds: list[float], above: list[float]) -> list[dict]:
    """Records of one kind of work at sizes 1, 2, 4, whose arithmetic grows with the size."""
    return [
        {"work": f"work, things: {2**n}", "amount": 2.0**n, "repetitions": 3,
         "sides": {OURS: {"seconds": s, "memory": {"above": m}}}}
        for n, (s, m) in enumerate(zip(seconds, above, strict=True))
    ]  # fmt: skip


def test_growth_is_held_against_the_arithmetic_and_drawn(tmp_path) -> None:
    good, bad = grown([1, 2, 4], [0.1, 0.2, 0.3]), grown([1, 3, 9], [0.1, 0.2, 0.9])
    assert table.growth(good)[2].count("yes") == 2
    assert table.growth(bad)[2].count("**no**") == 2
    path = figures.draw([*good, {"work": "work, things: 8", "failed": "x"}], tmp_path / "growth.png")
    with Image.open(path) as drawn:
        assert drawn.width > 300


def test_what_is_measured_already_is_left_out_on_resuming(monkeypatch) -> None:
    main = importlib.import_module("benchmarks.__main__")
    monkeypatch.setattr(main, "sources", lambda: "abc")
    arguments = argparse.Namespace(threads=torch.get_num_threads(), pairs=None)
    kept = {"sources": "abc", "whole": True, "machine": harness.machine(), "rows": [{"repetitions": 7}]}
    assert main.measured(kept, arguments)
    assert not main.measured({**kept, "whole": False}, arguments)
    assert not main.measured({**kept, "sources": "other"}, arguments)
    assert not main.measured(kept, argparse.Namespace(threads=arguments.threads + 1, pairs=None))
    assert not main.measured(kept, argparse.Namespace(threads=arguments.threads, pairs=9))


@pytest.mark.parametrize("kind", growth.KINDS)
def test_the_arithmetic_of_growth_is_the_models_own(kind: str) -> None:
    """Against torch's count of what runs, in plain products, which compute the whole square of a causal pattern."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    (make, amount), hidden, size = growth.KINDS[kind], 64, 256
    call = make(hidden, size)[OURS]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        call()
    above = growth.BLOCKS * hidden * size * (size - 1) if make is growth.prefill else 0
    assert amount(hidden, size) + above == pytest.approx(counted.get_total_flops() / 2, rel=1e-2)


def test_the_page_has_what_was_recorded_and_is_written_again_when_asked(tmp_path, monkeypatch) -> None:
    kept = json.loads(runner.RECORD.read_text(encoding="utf-8"))
    assert table.made(kept) in table.PAGE.read_text(encoding="utf-8")
    written: list[object] = []
    monkeypatch.setattr("sys.argv", ["benchmarks", "--draw"])
    monkeypatch.setattr(table, "write", written.append)
    monkeypatch.setattr(figures, "draw", lambda records: written.append(len(records)))
    assert runner.main() == 0
    assert written == [kept, len(kept["areas"]["growth"]["rows"])]
