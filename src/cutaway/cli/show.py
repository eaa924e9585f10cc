"""How the command line prints: tables, sizes, waiting, complaints. It does not know what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table


def complain(kind: str, message: object) -> None:
    """One line on the error stream: ``error: …``."""
    print(f"{kind}: {' '.join(str(message).split())}", file=sys.stderr)


@contextmanager
def loading(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on the error stream, moved by the callable given (bytes done, bytes in all); none where no person looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Loading {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def as_json(result: Any) -> None:
    """A result (a dataclass, or a list of them) as JSON on the output stream."""
    plain = [asdict(item) for item in result] if isinstance(result, list) else asdict(result)
    print(json.dumps(plain, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table; columns whose heading ends in ``>`` are set to the right. Never cut: wide rows run on when piped."""
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(columns))
    for heading in columns:
        grid.add_column(
            heading.rstrip(">"), justify="right" if heading.endswith(">") else "left", no_wrap=heading.endswith(">")
        )
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, str) else number(cell) for cell in row))
    terminal = Console(highlight=False, markup=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, markup=False, width=200)
    with console.capture() as captured:
        console.print(grid)
    print(*([title] if title else []), *(line.rstrip() for line in captured.get().splitlines()), "", sep="\n")


def number(value: object) -> str:
    """A number with its thousands apart; anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Bytes as people read them: ``65.5 GB``."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} TB"


def parameters(count: int) -> str:
    """A count of parameters as people read it: ``4.44 B``."""
    for unit, step in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= step:
            return f"{count / step:.2f} {unit}"
    return str(count)
