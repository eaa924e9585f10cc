"""How commands print: tables, sizes, progress bars, errors and warnings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

WIDE = 200
"""The width of tables that are piped, in characters."""

GAP = 3
"""Characters between two columns."""


def complain(kind: str, message: object) -> None:
    """Print one line on stderr: ``error: …``."""
    print(f"{kind}: {' '.join(str(message).split())}", file=sys.stderr)


@contextmanager
def loading(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr and yield its update function (bytes done, in all); without a terminal, None."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Loading {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def as_json(result: Any) -> None:
    """Print a result (a dataclass, or a list of them) as JSON."""
    plain = [asdict(item) for item in result] if isinstance(result, list) else asdict(result)
    print(json.dumps(plain, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table whose first column names the rows and is never cut.

    Columns whose heading ends in ``>`` are aligned to the right. On a terminal that is too narrow the last columns are
    left out, and a line below says which; a first column wider than the terminal is folded. Piped output is complete.
    """
    cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    terminal = Console(highlight=False, markup=False)
    width = terminal.width if terminal.is_terminal else WIDE
    kept = _columns_that_fit(columns, cells, width)
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(columns))
    for index, heading in enumerate(columns[:kept]):
        right = heading.endswith(">")
        fold = index == 0 or not right
        overflow = "fold" if fold else "ellipsis"
        least = min(width, _natural_width(index, columns, cells)) if index == 0 else None
        grid.add_column(
            heading.rstrip(">"),
            justify="right" if right else "left",
            no_wrap=not fold,
            overflow=overflow,
            min_width=least,
        )
    for row in cells:
        grid.add_row(*row[:kept])
    console = Console(highlight=False, markup=False, width=width)
    with console.capture() as captured:
        console.print(grid)
    print(*([title] if title else []), *(line.rstrip() for line in captured.get().splitlines()), sep="\n")
    if kept < len(columns):
        names = ", ".join(heading.rstrip(">") for heading in columns[kept:])
        print(f"Left out for want of width: {names}. Use a wider terminal, or --json.")
    print()


def _natural_width(index: int, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """The width of a column of which nothing is wrapped."""
    return max([cell_len(columns[index].rstrip(">")), *(cell_len(row[index]) for row in cells)])


def _columns_that_fit(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> int:
    """How many columns, from the first on, can be printed: whole, or at least a third of a left-aligned one."""
    used = 0
    for index, heading in enumerate(columns):
        natural = _natural_width(index, columns, cells)
        least = natural if heading.endswith(">") or index == 0 else min(natural, max(8, natural // 3))
        used += least + (GAP if index else 0)
        if used > width and index:
            return index
    return len(columns)


def number(value: object) -> str:
    """Format an integer with thousands separators; anything else as `str` does."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Format bytes: ``65.5 GB``."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} TB"


def parameters(count: int) -> str:
    """Format a number of parameters: ``4.44 B``."""
    for unit, step in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= step:
            return f"{count / step:.2f} {unit}"
    return str(count)
