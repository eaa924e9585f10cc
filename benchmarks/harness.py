"""How everything here is measured: side by side in one process, on the same work, in turn.

A `Work` has two or more sides, ours first. Each side runs twice to warm up; then come the repetitions, in each of which
every side runs once, in an order that turns. What counts is the median, and the median of the repetitions' ratios, in
which a busy machine slows both sides. Peak memory is that of a fresh process that runs one side alone. This module
knows times, memory and numbers; it does not know what is measured.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

OURS = "cutaway"
ROOT = Path(__file__).parent.parent
AREAS = ("loading", "media", "vision", "prefill", "decode", "lines", "tracing", "patterns", "harvest", "growth")
"""The files that declare work, in the order of the table."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One row of the table.

    - `name`: the work in words. `sides`: makes the calls by name, ours first; what a call returns is compared.
    - `target`: what our time may be as a part of `against`'s (default: the second side's); None where nothing is asked.
    - `pairs`: repetitions. `memory`: whether peaks are measured too. `target_memory`: GB, what our peak may be.
    """

    name: str
    sides: Callable[[], Mapping[str, Call]]
    target: float | None = None
    against: str = ""
    pairs: int = 7
    memory: bool = False
    target_memory: float | None = None


def clock() -> float:
    """Seconds: processor time of this process and its children on one thread, wall time on several."""
    if torch.get_num_threads() > 1:
        return time.perf_counter()
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def seconds(call: Call) -> float:
    """How long one call takes."""
    start = clock()
    call()
    return clock() - start


def interleaved(sides: Mapping[str, Call], pairs: int) -> dict[str, list[float]]:
    """Times of every side, repetition by repetition, the order turning by one each time."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(pairs):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(seconds(sides[name]))
    return times


def difference(mine: Any, theirs: Any) -> float | None:
    """The largest difference of two results by the scale of the first; None where they cannot be compared."""
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor) or mine.shape != theirs.shape:
        return None
    scale = float(mine.float().abs().max()) or 1.0
    return float((mine.float() - theirs.float()).abs().max()) / scale


def measure(work: Work, pairs: int | None = None) -> dict[str, Any]:
    """The record of one work: medians, ratios, how far the results are apart."""
    sides = work.sides()
    outputs = {name: call() for name, call in sides.items()}
    for call in sides.values():
        call()
    times = interleaved(sides, pairs or work.pairs)
    ours = times[OURS]
    against = work.against or next((name for name in sides if name != OURS), "")
    record: dict[str, Any] = {"work": work.name, "target": work.target, "against": against, "repetitions": len(ours)}
    record["sides"] = {
        name: {
            "seconds": statistics.median(times[name]),
            "ratio": statistics.median(a / b for a, b in zip(ours, times[name], strict=True)),
            "difference": None if name == OURS else difference(outputs[OURS], outputs[name]),
            "told": outputs[name] if isinstance(outputs[name], dict) else None,
        }
        for name in sides
    }
    return record


def resident() -> tuple[int, int]:
    """Bytes that this process holds, and the most it has held since `forget_peak`."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        held = {
            line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))
        }
        return held["VmRSS"], held["VmHWM"]
    except OSError:  # not Linux: only the peak of all time is known
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most


def forget_peak() -> None:
    """Lets the peak begin anew from what is held now, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_of(area: str, index: int, side: str, quick: bool) -> dict[str, float]:
    """Peak memory of one side in a process of its own: before the call, and above that during it, in GB."""
    command = [sys.executable, "-m", "benchmarks.harness", area, str(index), side, str(torch.get_num_threads())]
    done = subprocess.run(
        [*command, *(["quick"] if quick else [])], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def works(area: str, quick: bool) -> Sequence[Work]:
    """What an area measures; `quick` is the same at sizes that a test can afford."""
    return importlib.import_module(f"benchmarks.{area}").works(quick)


def run_area(area: str, *, quick: bool = False, pairs: int | None = None) -> list[dict[str, Any]]:
    """The records of an area, each printed as it comes."""
    records = []
    for index, work in enumerate(works(area, quick)):
        record = {"area": area, **measure(work, pairs)}
        if work.memory:
            for name, side in record["sides"].items():
                side["memory"] = peak_of(area, index, name, quick)
        record["target_memory"] = work.target_memory
        records.append(record)
        print(line(record), flush=True)
    return records


def line(record: Mapping[str, Any]) -> str:
    """A record in one line, for whoever watches."""
    sides = record["sides"]
    shown = ", ".join(f"{name} {side['seconds'] * 1e3:.1f} ms" for name, side in sides.items())
    against = record["against"]
    part = f", {sides[against]['ratio']:.2f} of {against}" if against else ""
    wanted = f" (wanted {record['target']:.2f})" if record["target"] is not None else ""
    return f"{record['area']}: {record['work']}: {shown}{part}{wanted}"


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = [text.split(":", 1)[1].strip() for text in info.read_text().splitlines() if "model name" in text]
        name = found[0] if found else name
    versions = {}
    for package in ("transformers", "nnsight", "transformer_lens"):
        try:
            versions[package] = importlib.metadata.version(package.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    threads = torch.get_num_threads()
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": threads,
        "time": "processor time of one thread" if threads == 1 else "wall time",
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
    }


def main() -> None:
    """One side of one work, alone: prints its memory in GB as JSON."""
    area, index, side, threads, *rest = sys.argv[1:]
    torch.set_num_threads(int(threads))
    call = works(area, rest == ["quick"])[int(index)].sides()[side]
    forget_peak()
    before, _ = resident()
    told = call()
    _, most = resident()
    if isinstance(told, dict) and "peak" in told:  # a call that started a process of its own
        before, most = 0, told["peak"]
    print(json.dumps({"before": before / 1e9, "above": (most - before) / 1e9, "peak": most / 1e9}))


if __name__ == "__main__":
    main()
