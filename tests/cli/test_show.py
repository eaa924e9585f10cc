"""How numbers, tables and progress are printed."""

from __future__ import annotations

import pytest

from cutaway.cli.show import loading, number, parameters, size, table


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
    table(("name", "count>"), [("x" * 150, 12345), ("y", 1)], title="Things")
    title, heading, _, first, second, end = capsys.readouterr().out.split("\n")[:6]
    assert (title, heading.split(), end) == ("Things", ["name", "count"], "")
    assert first == "x" * 150 + "   12,345"
    assert second.endswith("     1")
    assert len(second) == len(first)


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
