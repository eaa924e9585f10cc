"""What analyses have in common on the command line: loading, counting cells, handing over a result and its figure.

It does not know which analysis it is, nor what a result holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cutaway.cli.show import complain, loading


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


def loaded(name: str) -> Any:
    """The model of this name or folder as tasks take it, loaded beside a bar."""
    from cutaway.tasks.ask import load

    with loading(name) as progress:
        return load(name, progress=progress)


@dataclass(frozen=True)
class Outputs:
    """Where a command's result goes: JSON to `out`, a figure, the experiment that repeats it, JSON on the terminal.

    Made before anything is computed. Raises `InputError` for a file that could not be written.
    """

    out: Path | None
    figure: Path | None
    experiment: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        from cutaway.tasks.shown import check_files

        check_files([path for path in (self.out, self.experiment) if path is not None], self.figure)

    @property
    def cells(self) -> Path | None:
        """Where finished cells are kept until the result is there: beside it."""
        return None if self.out is None else self.out.with_name(f"{self.out.name}.cells")

    def deliver(self, result: Any, experiment: Mapping[str, Any] | None = None, **figure_options: Any) -> None:
        """Prints a result, or its JSON, and writes the files that are asked for."""
        if self.experiment is not None:
            text = json.dumps(experiment, indent=1, ensure_ascii=False)
            self.experiment.write_text(f"{text}\n", encoding="utf-8")
        if self.out is not None:
            result.save(self.out)
        if self.figure is not None:
            result.plot(self.figure, **figure_options)
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False) if self.json else result.summary())
        for path in (self.out, self.figure):
            if path is not None:
                complain("written", path)
        if self.cells is not None:
            self.cells.unlink(missing_ok=True)


def measure(
    label: str, task: Callable[..., tuple[Any, dict[str, Any]]], model: str, *prompt: Any, **given: Any
) -> tuple[Any, dict[str, Any]]:
    """The result of a task on the model of this name, and the experiment that repeats it, beside a bar for its cells.

    `prompt` and `given` are the task's own; it also gets the model, its name and what moves the bar.
    """
    loaded_model = loaded(model)
    with counting(label) as on_progress:
        return task(loaded_model, *prompt, model_name=model, on_progress=on_progress, **given)
