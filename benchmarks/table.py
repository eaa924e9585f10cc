"""The generated part of docs/performance.md: the machine, a row for each record, peaks of memory, growth with size.

It knows records and Markdown; it measures nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.harness import AREAS, OURS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ALLOWED = 1.10
"""How much more than its arithmetic a growth may measure: a product's speed is not the same at every size."""


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def shown(side: Mapping[str, Any]) -> str:
    """A side's time, and the speed at which it moves bytes where it says how many."""
    moved = (side.get("told") or {}).get("bytes")
    return span(side["seconds"]) + (f" ({moved / side['seconds'] / 1e9:.1f} GB/s)" if moved else "")


def row(record: Mapping[str, Any]) -> str:
    """A record as a row of the table."""
    if "failed" in record:
        return f"| {record['work']} | failed: {record['failed'].splitlines()[0]} | | | | | |"
    sides, compared_with = record["sides"], record["against"]
    peers = [f"{name} {shown(side)}" for name, side in sides.items() if name != OURS]
    peers += [f"{name}: left out, {why}" for name, why in record.get("left_out", {}).items() if name not in sides]
    ratio, wanted, reached = "", "", ""
    if compared_with in sides:
        ratio = f"{sides[compared_with]['ratio']:.2f} of {compared_with}"
    if record["target"] is not None:
        wanted = f"≤ {record['target']:.2f}"
        reached = yes(sides[compared_with]["ratio"] <= record["target"])
    cells = (record["work"], shown(sides[OURS]), "; ".join(peers), ratio, wanted, reached, often(record))
    return f"| {' | '.join(cells)} |"


def often(record: Mapping[str, Any]) -> str:
    """How many repetitions a row had; sides with fewer are named."""
    most = record["repetitions"]
    fewer = [
        f"{name} {side['repetitions']}"
        for name, side in record["sides"].items()
        if side.get("repetitions", most) != most
    ]
    return f"{most} ({'; '.join(fewer)})" if fewer else str(most)


def yes(reached: bool) -> str:
    """A word that stands out where it has to."""
    return "yes" if reached else "**no**"


def memory(record: Mapping[str, Any]) -> list[str]:
    """Rows on the peaks of a record's sides; none where memory was not measured."""
    if "failed" in record:
        return []
    wanted, over, rows = record.get("target_memory"), record.get("memory_over", ""), []
    for name, side in record["sides"].items():
        if not side.get("memory"):
            continue
        above, limit, reached = side["memory"]["above"], "", ""
        if wanted is not None and name == OURS:
            base = record["sides"][over]["memory"]["above"] if over else 0.0
            limit = f"≤ {wanted:.2f} over {over}" if over else f"≤ {wanted:.2f}"
            reached = yes(above - base <= wanted)
        rows.append(
            f"| {record['work']} | {name} | {side['memory']['before']:.2f} | {above:.2f} | {limit} | {reached} |"
        )
    return rows


def growth(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the largest size takes by what the smallest does, beside the arithmetic, and the figure."""
    lines = [
        "| work | size | time | its arithmetic | no worse | tensors beside the weights | no worse | of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in figures.kinds(records):
        time, amount, size = (values[-1] / values[0] for values in (kind.seconds, kind.amounts, kind.sizes))
        held_text, note = f"{kind.memory[0]:.3f} → {kind.memory[-1]:.3f} GB", ""
        if kind.memory[0] > 0:
            more = kind.memory[-1] / kind.memory[0]
            held_text, note = f"{held_text}, {more:.1f} ×", yes(more <= ALLOWED * size)
        name, unit = kind.kind.split(", ")
        lines.append(
            f"| {name} | {kind.sizes[0]} → {kind.sizes[-1]} {unit}, {size:.0f} × "
            f"| {span(kind.seconds[0])} → {span(kind.seconds[-1])}, {time:.1f} × | {amount:.1f} × "
            f"| {yes(time <= ALLOWED * amount)} | {held_text} | {note} | {kind.repetitions} |"
        )
    lines += [row(record) for record in records if "failed" in record]
    figure = os.path.relpath(figures.FIGURE, PAGE.parent)
    return [
        *lines,
        "",
        "Time is compared with the multiplications of the config's products, memory with the size; no worse means at",
        f"most {ALLOWED:.2f} times that. Each size in between:",
        "",
        f"![Time and memory over size, both axes logarithmic, with the arithmetic's slope beside]({figure})",
    ]


def machines(kept: Mapping[str, Any], areas: Sequence[str]) -> list[str]:
    """What was measured on what, and when."""
    named: dict[tuple[Any, ...], list[str]] = {}
    for area in areas:
        named.setdefault(tuple(kept["areas"][area]["machine"].items()), []).append(area)
    lines = []
    for note, group in named.items():
        facts = ", ".join(f"{key} {value}" for key, value in note if value is not None)
        days = sorted({kept["areas"][area]["when"] for area in group})
        lines.append(f"Measured on: {facts} ({', '.join(group)}; {' and '.join(days)}).")
    minutes = sum(kept["areas"][area].get("seconds", 0) for area in areas) / 60
    return [*lines, *([f"All of it took {minutes:.0f} minutes."] if minutes else [])]


def made(kept: Mapping[str, Any]) -> str:
    """The generated part, from all that is recorded."""
    areas = [area for area in AREAS if area in kept["areas"]]
    every = [record for area in areas if area != "growth" for record in kept["areas"][area]["rows"]]
    lines = machines(kept, areas)
    lines += ["", "| work | ours | beside | ratio | wanted | reached | of |", "|---|---|---|---|---|---|---|"]
    lines += [row(record) for record in every if record.get("repetitions", 1)]
    lines += ["", "Peak memory of a fresh process that runs one side alone, in GB (10⁹ bytes):", ""]
    lines += ["| work | side | before | above it | wanted | reached |", "|---|---|---|---|---|---|"]
    lines += [text for record in every for text in memory(record)]
    if "growth" in areas:
        lines += ["", "Growth with size:", "", *growth(kept["areas"]["growth"]["rows"])]
    return "\n".join(lines)


def write(kept: Mapping[str, Any], page: Path = PAGE) -> None:
    """Puts the generated part into the page, between its two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{made(kept)}\n\n{END}{after}", encoding="utf-8")
