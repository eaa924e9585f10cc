"""What the analysis commands share: loading the model, a progress bar, writing the result and its figure."""

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
    """Show a progress bar on stderr and yield its update function (done, total); yield None without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def loaded(name: str) -> Any:
    """Load the model of this name or folder, with a progress bar."""
    from cutaway.tasks.ask import load

    with loading(name) as progress:
        return load(name, progress=progress)


@dataclass(frozen=True)
class Outputs:
    """Where a command's result goes: JSON to `out`, a figure, the experiment that repeats it, JSON on the terminal.

    Create it before anything is computed: it raises `InputError` for a file that cannot be written.
    """

    out: Path | None
    figure: Path | None
    experiment: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        from cutaway.tasks.files import check_writable

        check_writable([path for path in (self.out, self.experiment) if path is not None], self.figure)

    @property
    def cells(self) -> Path | None:
        """Where finished cells are kept until the result is written: a file beside it."""
        return None if self.out is None else self.out.with_name(f"{self.out.name}.cells")

    def deliver(self, result: Any, experiment: Mapping[str, Any] | None = None, **figure_options: Any) -> None:
        """Print the result, or its JSON, and write the requested files."""
        if self.experiment is not None:
            from cutaway.storage import write_json

            write_json(self.experiment, experiment, indent=1)
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


def run_analysis(label: str, technique: str, model: str, **request: Any) -> tuple[Any, dict[str, Any]]:
    """Load the model of this name and run a technique on it, with a progress bar of this label.

    `request`: what `cutaway.tasks.analyses.analyse` takes. Returns the result and the experiment that repeats it.
    """
    from cutaway.tasks.analyses import analyse as run

    loaded_model = loaded(model)
    with counting(label) as on_progress:
        return run(loaded_model, technique, model_name=model, on_progress=on_progress, **request)
