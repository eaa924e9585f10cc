"""Runs the benchmarks, keeps what they found and writes the table and the figure of docs/performance.md::

    python -m benchmarks                       # all areas; `make bench` does this
    python -m benchmarks --resume              # those not yet measured whole on this machine with these sources
    python -m benchmarks vision prefill        # some; the others' rows stay as they were recorded
    python -m benchmarks --quick --pairs 2     # tiny sizes, nothing recorded: whether everything runs
    python -m benchmarks --threads 1           # timed by processor time, for a machine that others use too
    python -m benchmarks --draw                # measures nothing, writes page and figure from the record again

Each area runs in a process of its own, under `--peers` where that Python has nnsight beside this project's packages,
and its rows are recorded when it ends, those before a failure too. `pointing.py`, `real_scale.py` and `gpu.py` are
scripts of their own; what each needs stands at its top.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import figures, table
from benchmarks.harness import AREAS, ROOT, machine, run_area

RECORD = ROOT / "benchmarks" / "record.json"
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def arguments() -> argparse.Namespace:
    """What was asked on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("areas", nargs="*", help=", ".join(AREAS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--pairs", type=int, help="repetitions, instead of each work's own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true", help="leave out what is measured already")
    parser.add_argument("--draw", action="store_true", help="write the page again, measure nothing")
    parser.add_argument("--peers", type=Path, default=PEERS)
    parser.add_argument("--into", type=Path, help="run the areas in this process and write their records here")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.areas if name not in AREAS]:
        sys.exit(f"There is no area {', '.join(unknown)}; there are {', '.join(AREAS)}.")
    return arguments


def here(arguments: argparse.Namespace) -> bool:
    """Runs areas in this process, writing what there is after every row; whether none failed."""
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {"machine": machine(), "rows": []}
    for area in arguments.areas:
        for record in run_area(area, quick=arguments.quick, pairs=arguments.pairs):
            results["rows"].append(record)
            arguments.into.write_text(json.dumps(results))
    return not any("failed" in record for record in results["rows"])


def apart(area: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs an area in a process of its own: its rows, as far as it came, and whether it came to its end."""
    python = arguments.peers if arguments.peers.is_file() else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "record.json"
        command = [str(python), "-W", "ignore", "-m", "benchmarks", area, "--into", str(into), "--threads"]
        command += [str(arguments.threads), *(["--quick"] if arguments.quick else [])]
        command += [] if arguments.pairs is None else ["--pairs", str(arguments.pairs)]
        began = time.perf_counter()
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        spent = time.perf_counter() - began
        print(f"{area}: {'failed' if failed else 'done'} after {spent:.0f} s", flush=True)
        results = json.loads(into.read_text()) if into.is_file() else {"rows": []}
        return {
            **results,
            "whole": not failed,
            "seconds": spent,
            "when": time.strftime("%Y-%m-%d"),
            "sources": sources(),
        }


def sources() -> str:
    """A fingerprint of what is measured and of what measures it."""
    digest = hashlib.sha256()
    for folder in ("src", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def measured(results: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Whether an area's record is whole, and of this machine, these sources and so many repetitions."""
    same = results.get("sources") == sources() and bool(results.get("whole"))
    of = results.get("machine", {})
    now = {**machine(), "threads": arguments.threads}
    enough = (
        all(record.get("repetitions", 0) in (0, arguments.pairs) for record in results["rows"])
        or arguments.pairs is None
    )
    return same and enough and all(of.get(key) == now[key] for key in ("processor", "cores", "threads", "torch"))


def main() -> int:
    """Runs what was asked; returns the number of areas that failed."""
    options = arguments()
    if options.into is not None:
        return 0 if here(options) else 1
    kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {"areas": {}}
    failed = 0
    for area in [] if options.draw else options.areas or AREAS:
        if options.resume and area in kept["areas"] and measured(kept["areas"][area], options):
            print(f"{area}: measured already", flush=True)
            continue
        results = apart(area, options)
        failed += not results["whole"]
        if results["rows"] and not options.quick:
            kept["areas"][area] = results
            RECORD.write_text(json.dumps(kept, indent=1) + "\n")
            table.write(kept)
    if options.draw:
        table.write(kept)
    if not options.quick and "growth" in kept["areas"]:
        figures.draw(kept["areas"]["growth"]["rows"])
    if not options.quick:
        print(table.made(kept))
    return failed


if __name__ == "__main__":
    sys.exit(main())
