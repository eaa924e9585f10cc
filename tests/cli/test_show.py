"""How numbers, tables and progress are printed."""

from __future__ import annotations

import re

import pytest

from cutaway.cli.show import loading, number, parameters, print_table, size


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (66_700_000_000, "66.7 GB"), (2e12, "2.00 TB")]
)
def test_sizes(count, shown) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(12, "12"), (1200, "1.20 k"), (3_500_000, "3.50 M"), (33_357_390_064, "33.36 B")]
)
def test_parameters(count, shown) -> None:
    assert parameters(count) == shown


def test_numbers() -> None:
    assert [number(v) for v in (1234567, "12", 0.5)] == ["1,234,567", "12", "0.5"]


def test_a_table_is_never_cut_when_piped(capsys) -> None:
    print_table(("name", "count>"), [("x" * 150, 12345), ("y", 1)], title="Things")
    title, heading, _, first, second, end = capsys.readouterr().out.split("\n")[:6]
    assert (title, heading.split(), end) == ("Things", ["name", "count"], "")
    assert first == "x" * 150 + "   12,345"
    assert second.endswith("     1")
    assert len(second) == len(first)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_first_column_is_never_cut_on_a_terminal(capsys, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    names = ["Qwen3.5-397B-A17B-Instruct", "Qwen2-VL-2B"]
    print_table(
        ("model", "family", "parameters>", "memory>"), [(name, "qwen3_5_moe", 10**11, 2 * 10**11) for name in names]
    )
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert all(name in printed for name in names)
    assert "…" not in printed
    assert max(len(line) for line in printed.splitlines() if "Left out" not in line) <= width
    shown = [name for name in ("family", "parameters", "memory") if name in printed.splitlines()[0]]
    left_out = printed.partition("Left out for want of width: ")[2]
    assert all((name in shown) != (name in left_out) for name in ("family", "parameters", "memory"))


def test_a_name_wider_than_the_terminal_is_folded(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("file", "kind"), [("x" * 70, "image")])
    assert capsys.readouterr().out.count("x") == 70


def test_nobody_looking_means_no_bar(capsys) -> None:
    with loading("nano") as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_a_bar_for_a_person(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with loading("nano") as progress:
        assert progress is not None
        progress(5_000_000, 10_000_000)
    seen = capsys.readouterr()
    assert "nano" in seen.err
    assert "10.0 MB" in seen.err
    assert seen.out == ""
