"""How everything here is measured: side by side in one process, on the same work, in turn.

A `Work` has one or more sides, ours first. Each side runs twice to warm up, once where that takes more than
`LONG` seconds; then come the repetitions, in each of which every side runs once, in an order drawn anew. What counts
is the median, and the median of the repetitions' ratios, in which a busy machine slows both sides. Peak memory is that
of a fresh process that runs one side alone. This module knows times, memory and numbers, not what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

OURS = "cutaway"
ROOT = Path(__file__).parent.parent
AREAS = (
    "loading", "media", "vision", "prefill", "decode", "families", "tracing", "patterns", "patch_grid",
    "attention_memory", "harvest", "growth",
)  # fmt: skip
"""The files that declare work, in the order of the table."""

LONG = 5.0
"""Seconds of a first run after which a second one warms nothing up."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One row of the table.

    - `name`: the work in words. `sides`: makes the calls by name, ours first; what a call returns is compared.
    - `target`: what our time may be as a part of `against`'s (default: the second side's); None where nothing is asked.
    - `pairs`: repetitions; 0 where memory alone is asked for. `seldom`: fewer ones, of sides that take far longer.
    - `parts`: of how many equal parts a side's call does the work; times are given for one part.
    - `needs`: GB of free memory without which a side is left out, and told so.
    - `memory`: whether peaks are measured too. `target_memory`: GB that ours may take above what was held before it,
      or above what the side `memory_over` takes.
    - `tensors`: the peak is that of the tensors of a second call, as the allocator counts them: what a process holds
      has the heap's slack in it, which at some megabytes hides how they grow.
    - `amount`: how much arithmetic it is, in a unit of its own; for rows that show growth.
    """

    name: str
    sides: Callable[[], Mapping[str, Call]]
    target: float | None = None
    compared_with: str = ""
    pairs: int = 7
    memory: bool = False
    target_memory: float | None = None
    memory_over: str = ""
    seldom: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    needs: Mapping[str, float] = field(default_factory=dict)
    tensors: bool = False
    amount: float | None = None


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


def interleaved(
    sides: Mapping[str, Call], pairs: int, seldom: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Times of every side, repetition by repetition.

    The order is drawn anew each time: a side finds its own data in the caches or another's, and an order that only
    turns would set the same one before it nearly always.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    draw, most = random.Random(0), dict(seldom or {})
    for turn in range(pairs):
        for name in draw.sample(list(sides), len(sides)):
            if turn < most.get(name, pairs):
                times[name].append(seconds(sides[name]))
    return times


def difference(mine: Any, theirs: Any) -> float | None:
    """The largest difference of two results by the scale of the first; None where they cannot be compared."""
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor) or mine.shape != theirs.shape:
        return None
    scale = float(mine.float().abs().max()) or 1.0
    return float((mine.float() - theirs.float()).abs().max()) / scale


def warmed(sides: Mapping[str, Call]) -> dict[str, Any]:
    """What every side returns, after it has run twice, or once where that was long."""
    outputs = {}
    for name, call in sides.items():
        start = clock()
        outputs[name] = call()
        if clock() - start < LONG:
            call()
    return outputs


def measure(work: Work, pairs: int | None = None) -> dict[str, Any]:
    """The record of one work: medians, ratios, how far the results are apart."""
    sides = work.sides()
    left_out = {name: note for name in sides if name != OURS and (note := lacks(work.needs.get(name, 0)))}
    sides = {name: call for name, call in sides.items() if name not in left_out}
    compared_with = work.compared_with or next((name for name in sides if name != OURS), "")
    pairs = work.pairs if pairs is None or not work.pairs else pairs
    record: dict[str, Any] = {"work": work.name, "target": work.target, "against": compared_with, "repetitions": pairs}
    record |= {"left_out": left_out, "amount": work.amount}
    if not pairs:
        return record | {"sides": {name: {} for name in sides}}
    outputs = warmed(sides)
    times = {
        name: [second / work.parts.get(name, 1) for second in spent]
        for name, spent in interleaved(sides, pairs, work.seldom).items()
    }
    record["sides"] = {
        name: {
            "seconds": statistics.median(times[name]),
            "ratio": statistics.median(a / b for a, b in zip(times[OURS], times[name], strict=False)),
            "repetitions": len(times[name]),
            "difference": None if name == OURS else difference(outputs[OURS], outputs[name]),
            "told": outputs[name] if isinstance(outputs[name], dict) else None,
        }
        for name in sides
    }
    return record


def free() -> float:
    """GB of memory that a process could take now; without end where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 / 1e9
    except (OSError, StopIteration):
        return float("inf")


def lacks(needed: float) -> str:
    """Why a side that needs so many GB is left out; nothing where there is room."""
    return f"needs {needed:.0f} GB, {free():.1f} GB were free" if needed > free() else ""


def resident() -> tuple[int, int]:
    """Bytes that this process holds, and the most it has held since `forget_peak`."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        resident_bytes = {
            line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))
        }
        return resident_bytes["VmRSS"], resident_bytes["VmHWM"]
    except OSError:  # not Linux: only the peak of all time is known
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most


def forget_peak() -> None:
    """Gives back what was freed and lets the peak begin anew from what is held now, where the system can."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # or freed room of the setting up would hide what a call takes
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def allocated(call: Call) -> int:
    """The most bytes that tensors of a call took at a time, above those that were there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    seen: Any = watched.profiler
    events = [event for event in seen.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate((event.nbytes() for event in sorted(events, key=lambda e: e.start_ns())), initial=0))


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


def run_area(area: str, *, quick: bool = False, pairs: int | None = None) -> Iterator[dict[str, Any]]:
    """The records of an area, each printed as it comes; a work that fails is told, and the others go on."""
    for index, work in enumerate(works(area, quick)):
        try:
            record = {"area": area, **measure(work, pairs)}
            add_memory(record, work, index, quick)
        except Exception as error:  # the other rows are worth their time
            traceback.print_exc()
            record = {"area": area, "work": work.name, "failed": f"{type(error).__name__}: {error}"[:500]}
        print(line(record), flush=True)
        yield record


def add_memory(record: dict[str, Any], work: Work, index: int, quick: bool) -> None:
    """Puts the peaks of all sides into a record, and what they may be."""
    record |= {"target_memory": work.target_memory, "memory_over": work.memory_over}
    if not work.memory:
        return
    for name, side in record["sides"].items():
        if note := lacks(work.needs.get(name, 0)):
            record["left_out"][f"{name}, memory"] = note
        else:
            side["memory"] = peak_of(record["area"], index, name, quick)


def line(record: Mapping[str, Any]) -> str:
    """A record in one line, for whoever watches."""
    if "failed" in record:
        return f"{record['area']}: {record['work']}: failed: {record['failed']}"
    sides, compared_with, note = record["sides"], record["against"], [f"{record['area']}: {record['work']}"]
    note += [f"{name} {side['seconds'] * 1e3:.1f} ms" for name, side in sides.items() if "seconds" in side]
    note += [f"{name} {side['memory']['above']:.2f} GB" for name, side in sides.items() if side.get("memory")]
    if compared_with and "ratio" in sides[compared_with]:
        note.append(f"{sides[compared_with]['ratio']:.2f} of {compared_with}")
    if record["target"] is not None:
        note.append(f"wanted {record['target']:.2f}")
    return "; ".join([*note, *(f"{name}: {why}" for name, why in record["left_out"].items())])


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        results = [text.split(":", 1)[1].strip() for text in info.read_text().splitlines() if "model name" in text]
        name = results[0] if results else name
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
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
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
    work = works(area, rest == ["quick"])[int(index)]
    call = work.sides()[side]
    if work.tensors:
        call()
    forget_peak()
    before, _ = resident()
    if work.tensors:
        note, most = None, before + allocated(call)
    else:
        note, most = call(), resident()[1]
    if isinstance(note, dict) and "peak" in note:  # a call that started a process of its own
        before, most = 0, note["peak"]
    print(json.dumps({"before": before / 1e9, "above": (most - before) / 1e9, "peak": most / 1e9}))


if __name__ == "__main__":
    main()
