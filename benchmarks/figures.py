"""Draws how time and memory grow with size, from the record: docs/figures/growth.png, both axes logarithmic.

Beside each measured line lies what the arithmetic alone would give, from the first size on. It knows records and
figures; it measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS
from cutaway.analysis.plots.figures import COLOURS, new

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "growth.png"


@dataclass(frozen=True)
class Growth:
    """One kind of work at several sizes: seconds, GB beside the weights, and arithmetic in a unit of its own."""

    kind: str
    sizes: list[int]
    seconds: list[float]
    memory: list[float]
    amounts: list[float]
    repetitions: int


def resident_bytes(side: Mapping[str, Any]) -> float:
    """GB that a call takes, what it holds of the past included; NaN where it was not measured."""
    if not side.get("memory"):
        return float("nan")
    return side["memory"]["above"] + (side.get("told") or {}).get("held", 0) / 1e9


def kinds(records: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """The records of the area by kind of work, in their order; those that failed are not there."""
    results: dict[str, Growth] = {}
    for record in records:
        if "failed" in record:
            continue
        kind, _, size = record["work"].partition(": ")
        into, side = (
            results.setdefault(kind, Growth(kind, [], [], [], [], record["repetitions"])),
            record["sides"][OURS],
        )
        into.sizes.append(int(size))
        into.seconds.append(side["seconds"])
        into.memory.append(resident_bytes(side))
        into.amounts.append(record["amount"])
    return list(results.values())


def draw(records: Sequence[Mapping[str, Any]], path: Path = FIGURE) -> Path:
    """Time above, memory below, a column for each kind of work."""
    results = kinds(records)
    figure, panels = new(3.4 * len(results), 6, 2 * len(results), len(results))
    for column, growth in enumerate(results):
        amounts = [amount / growth.amounts[0] for amount in growth.amounts]
        sizes = [size / growth.sizes[0] for size in growth.sizes]
        time, memory = panels[column], panels[len(results) + column]
        plotted(time, growth, [1e3 * t for t in growth.seconds], amounts, "its multiplications")
        plotted(memory, growth, [1e3 * m for m in growth.memory], sizes, "its size")
        time.set_title(growth.kind, fontsize=10)
        memory.set_xlabel(growth.kind.split(", ")[-1], fontsize=9)
        for axes, label in ((time, "milliseconds"), (memory, "megabytes of tensors\nbeside the weights")):
            axes.set_ylabel(label if not column else "", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def plotted(axes: Any, growth: Growth, measured: list[float], slope: list[float], name: str) -> None:
    """One panel: the measured line with its numbers, and the one that grows as the slope does from the first point."""
    axes.loglog(growth.sizes, [measured[0] * s for s in slope], "--", color=COLOURS[1], label=f"growing as {name}")
    axes.loglog(growth.sizes, measured, "o-", color=COLOURS[0], label="measured")
    for size, value in zip(growth.sizes, measured, strict=True):
        shown = f"{value:.3g}" if value < 100 else f"{value:,.0f}"
        axes.annotate(shown, (size, value), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(growth.sizes, [str(size) for size in growth.sizes], fontsize=8)
    axes.minorticks_off()
    low, high = min(measured), max(*measured, measured[0] * slope[-1])
    axes.set_ylim(low / 2, high * 2.5)
    axes.set_xlim(growth.sizes[0] / 1.3, growth.sizes[-1] * 1.3)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", frameon=False)
