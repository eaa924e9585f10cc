"""Thousands of malformed inputs, of which each must work or raise an error of `cutaway.errors`, in bounded time.

    python -m tests.attacks.campaign [--share 1.0] [--seed 0] [--part media ...]

A part is a function `cases(chance, count, folder)` that yields `count` pairs of a name and a callable; it is entered in
`PARTS` with its full count. Everything random comes from `chance`, so that a seed and a share name the same inputs
again. The normal tests run a small share (`test_campaign.py`). Speed is not measured here beyond the worst case.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cutaway.errors import CutawayError
from tests.attacks import checkpoints, media, text

Cases = Callable[[random.Random, int, Path], Iterator[tuple[str, Callable[[], object]]]]

PARTS: dict[str, tuple[Cases, int]] = {
    "checkpoints": (checkpoints.cases, 1500),
    "media": (media.cases, 6000),
    "text": (text.cases, 2800),
}
"""The kinds of input, each with its function and how many a whole campaign has."""

SECONDS = 20
"""An input that takes longer is a fault, whatever comes of it."""


@dataclass
class Report:
    """What a part's inputs did.

    - `outcomes`: how many were accepted, and how many raised each error class.
    - `faults`: name and error of each input that raised anything else, or took longer than `SECONDS`.
    - `worst`: seconds and name of the slowest; `megabytes`: growth of the process's peak memory.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    megabytes: float = 0.0


class TooSlow(BaseException):
    """The time of an input is over; no `except Exception` on the way may catch it."""


def run_part(part: str, share: float = 1.0, seed: int = 0) -> Report:
    """Run `share` of the inputs of a part."""
    cases, count = PARTS[part]
    report, before = Report(), _peak()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, attempt in cases(random.Random(f"{seed} {part}"), max(1, round(count * share)), Path(folder)):
            started = time.perf_counter()
            try:
                with _limit(SECONDS):
                    attempt()
                report.outcomes["accepted"] += 1
            except CutawayError as error:
                report.outcomes[type(error).__name__] += 1
            except (Exception, TooSlow) as error:
                report.faults.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            report.worst = max(report.worst, (time.perf_counter() - started, name))
    report.megabytes = _peak() - before
    return report


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` inside when the time is over."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {seconds} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _peak() -> float:
    """Peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Run the campaign and print a line for each part and for each fault; 1 if there is a fault."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--share", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--part", nargs="*", choices=sorted(PARTS), default=sorted(PARTS))
    arguments, faults = options.parse_args(), 0
    for part in arguments.part:
        report = run_part(part, arguments.share, arguments.seed)
        counts = ", ".join(f"{count} {name}" for name, count in report.outcomes.most_common())
        slowest, name = report.worst
        print(f"{part}: {counts}; slowest {slowest:.2f} s ({name}); memory grew by {report.megabytes:.0f} MB")
        for fault in report.faults:
            print(f"  fault: {fault}")
        faults += len(report.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
