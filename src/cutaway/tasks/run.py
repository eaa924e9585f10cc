"""An experiment file, run. What an experiment is, `cutaway.analysis.experiment` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutaway.analysis.experiment import Experiment
from cutaway.analysis.progress import OnProgress
from cutaway.api import Subject

__all__ = ["Experiment", "run"]


def run(
    subject: Subject,
    experiment: Experiment,
    *,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Any:
    """The result of an experiment on its model, which is loaded already."""
    return experiment.run(subject, store=store, on_progress=on_progress)
