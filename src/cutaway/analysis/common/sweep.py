"""Many edited runs of one base run: brought together in batches, measured, kept as they are finished.

Batches depend on all the work there is and not on what is finished, so that a resumed run gives the very same digits.
It knows base runs and metrics; it does not know why a run is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor

from cutaway.analysis.common.metrics import Metric
from cutaway.analysis.common.progress import Cells
from cutaway.analysis.intervention.partial_forward import Base, Row, rows_at_once
from cutaway.api import Model
from cutaway.batch import Inputs

SAMPLED = 64
"""Numbers of each weight that tell models apart, evenly spread."""


@dataclass(frozen=True)
class Job:
    """One edited run: its key among the finished cells, where it begins, and its edits, made when they are needed."""

    key: str
    layer: int
    positions: Tensor
    row: Callable[[], Row]


def run_jobs(
    base: Base, jobs: Sequence[Job], metric: Metric, reference: Tensor | None, cells: Cells, memory: int
) -> None:
    """Runs the jobs that are not finished; `memory` is how many bytes a batch may take."""
    for batch in batches(base, jobs, memory):
        if all(job.key in cells for job in batch):
            continue
        logits = base.run([job.row() for job in batch])
        values = metric(logits, reference).tolist()
        cells.update({job.key: value for job, value in zip(batch, values, strict=True)})


def batches(base: Base, jobs: Sequence[Job], memory: int) -> list[list[Job]]:
    """Jobs that run together: of one layer, with neighbouring first tokens."""
    starts = {job.key: base.start(job.positions) if len(job.positions) else base.seq - 1 for job in jobs}
    found = []
    for layer in sorted({job.layer for job in jobs}):
        left = sorted((job for job in jobs if job.layer == layer), key=lambda job: starts[job.key])
        while left:
            count = rows_at_once(base, starts[left[0].key], memory)
            found.append(left[:count])
            left = left[count:]
    return found


def model_digest(model: Model) -> str:
    """What tells one model from another: its family, its head's shape and dtype, a hash of numbers of every weight.

    Every one, since a fine-tune may have changed none but a few layers' projections.
    """
    weight, content = model.root.lm_head.weight, sha256()
    for name, parameter in model.root.named_parameters():
        flat = parameter.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED]
        content.update(name.encode() + some.float().cpu().numpy().tobytes())
    return f"{model.config.family} {list(weight.shape)} {weight.dtype} {content.hexdigest()[:16]}"


def digest(inputs: Inputs) -> str:
    """What tells one prompt from another: a hash of its ids and pixels."""
    found = sha256()
    for key in inputs:
        found.update(inputs[key].cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def settings(technique: str, model: Model, metric: Metric, **rest: Any) -> dict[str, Any]:
    """What finished cells depend on, as plain data."""
    return {
        "technique": technique,
        "model": model_digest(model),
        "metric": [metric.name, list(metric.answer), list(metric.about)],
        **rest,
    }
