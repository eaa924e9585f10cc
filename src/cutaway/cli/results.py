"""What analyses have in common on the command line: counting cells, and handing over a result and its figure.

It does not know which analysis it is, nor what a result holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cutaway.cli.show import complain


@contextmanager
def counting(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on the error stream, moved by the callable given (cells done, cells in all); none where no person looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def finished_cells(out: Path | None) -> Path | None:
    """Where finished cells are kept until the result is there: beside it."""
    return None if out is None else out.with_name(f"{out.name}.cells")


def writable(out: Path | None, figure: Path | None, experiment: Path | None = None) -> None:
    """Refuses a file that could not be written, before anything is computed for it."""
    from cutaway.tasks.shown import check_files

    check_files([path for path in (out, experiment) if path is not None], figure)


def deliver(
    result: Any,
    *,
    json_wanted: bool = False,
    out: Path | None = None,
    figure: Path | None = None,
    figure_options: Mapping[str, Any] | None = None,
) -> None:
    """Prints a result, or its JSON; writes it to `out` and its figure to `figure` where they are given."""
    if out is not None:
        result.save(out)
    if figure is not None:
        result.plot(figure, **(figure_options or {}))
    if json_wanted:
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    else:
        print(result.summary())
    for path in (out, figure):
        if path is not None:
            complain("written", path)
    cells = finished_cells(out)
    if cells is not None:
        cells.unlink(missing_ok=True)


def save_experiment(experiment: Mapping[str, Any], path: Path | None) -> None:
    """Writes the experiment that repeats a result."""
    if path is not None:
        path.write_text(json.dumps(experiment, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
