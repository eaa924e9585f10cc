"""An experiment file, run. What an experiment is, `cutaway.tasks.experiments` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutaway.analysis.common.progress import OnProgress
from cutaway.api import Model
from cutaway.tasks.experiments import Experiment

__all__ = ["Experiment", "run"]


def run(
    model: Model,
    experiment: Experiment,
    *,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Any:
    """The result of an experiment on its model, which is loaded already."""
    return experiment.run(model, store=store, on_progress=on_progress)
