"""The generated part of docs/performance.md: a row for each record, and the growth as a drawing of characters.

It knows records and Markdown; it measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import AREAS, OURS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def row(record: Mapping[str, Any]) -> str:
    """A record as a row of the table."""
    sides, against = record["sides"], record["against"]
    peers = "; ".join(f"{name} {span(side['seconds'])}" for name, side in sides.items() if name != OURS)
    ratio, wanted, reached, often = "", "", "", record["repetitions"]
    if against:
        ratio = f"{sides[against]['ratio']:.2f} of {against}"
    if record["target"] is not None:
        wanted = f"≤ {record['target']:.2f}"
        reached = "yes" if sides[against]["ratio"] <= record["target"] else "**no**"
    return f"| {record['work']} | {span(sides[OURS]['seconds'])} | {peers} | {ratio} | {wanted} | {reached} | {often} |"


def memory(record: Mapping[str, Any]) -> list[str]:
    """Rows on the peaks of a record's sides; none where memory was not measured."""
    wanted = record.get("target_memory")
    return [
        f"| {record['work']} | {name} | {side['memory']['before']:.2f} | {side['memory']['above']:.2f} | "
        f"{'' if wanted is None or name != OURS else f'≤ {wanted:.2f}'} |"
        for name, side in record["sides"].items()
        if side.get("memory")
    ]


def growth(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bars of time, each size beside the ones before it, on one scale for each kind of work."""
    kinds: dict[str, list[tuple[str, float]]] = {}
    for record in records:
        kind, _, size = record["work"].partition(": ")
        kinds.setdefault(kind, []).append((size, record["sides"][OURS]["seconds"]))
    lines = []
    for kind, points in kinds.items():
        most, first = max(time for _, time in points), points[0][1]
        lines.append(kind)
        lines += [f"  {size:>6} {span(t):>10} {t / first:6.2f}x {'█' * round(40 * t / most)}" for size, t in points]
    return ["```text", *lines, "```"]


def made(kept: Mapping[str, Any]) -> str:
    """The generated part, from all that is recorded."""
    areas = [area for area in AREAS if area in kept["areas"]]
    records = [record for area in areas if area != "growth" for record in kept["areas"][area]["rows"]]
    machines = {tuple(kept["areas"][area]["machine"].items()): [] for area in areas}
    for area in areas:
        machines[tuple(kept["areas"][area]["machine"].items())].append(area)
    lines = []
    for told, named in machines.items():
        facts = ", ".join(f"{key} {value}" for key, value in told if value is not None)
        lines.append(f"Measured on: {facts} ({', '.join(named)}; {kept['areas'][named[0]]['when']}).")
    lines += ["", "| work | ours | beside | ratio | wanted | reached | of |", "|---|---|---|---|---|---|---|"]
    lines += [row(record) for record in records]
    lines += ["", "Peak memory of a fresh process that runs one side alone, in GB (10⁹ bytes):", ""]
    lines += ["| work | side | before | above it | wanted |", "|---|---|---|---|---|"]
    every = [record for area in areas for record in kept["areas"][area]["rows"]]
    lines += [text for record in every for text in memory(record)]
    if "growth" in areas:
        lines += ["", "Growth with size:", "", *growth(kept["areas"]["growth"]["rows"])]
    return "\n".join(lines)


def write(kept: Mapping[str, Any], page: Path = PAGE) -> None:
    """Puts the generated part into the page, between its two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{made(kept)}\n\n{END}{after}", encoding="utf-8")
