"""Runs the benchmarks, keeps what they found and writes the table of docs/performance.md::

    python -m benchmarks                       # all areas; `make bench` does this
    python -m benchmarks vision prefill        # some; the others' rows stay as they were recorded
    python -m benchmarks --quick --pairs 2     # tiny sizes, nothing recorded: whether everything runs
    python -m benchmarks --threads 1           # timed by processor time, for a machine that others use too

Each area runs in a process of its own, under `--peers` where that Python has nnsight beside this project's packages.
`patch_grid.py`, `real_scale.py` and `gpu.py` are scripts of their own; what each needs stands at its top.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import table
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
    parser.add_argument("--peers", type=Path, default=PEERS)
    parser.add_argument("--into", type=Path, help="run the areas in this process and write their records here")
    given = parser.parse_args()
    if unknown := [name for name in given.areas if name not in AREAS]:
        sys.exit(f"There is no area {', '.join(unknown)}; there are {', '.join(AREAS)}.")
    return given


def here(given: argparse.Namespace) -> None:
    """Runs areas in this process."""
    torch.set_num_threads(given.threads)
    found = [r for area in given.areas for r in run_area(area, quick=given.quick, pairs=given.pairs)]
    given.into.write_text(json.dumps({"machine": machine(), "rows": found}))


def apart(area: str, given: argparse.Namespace) -> dict | None:
    """Runs an area in a process of its own; None when it failed."""
    python = given.peers if given.peers.is_file() else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "record.json"
        command = [str(python), "-W", "ignore", "-m", "benchmarks", area, "--into", str(into), "--threads"]
        command += [str(given.threads), *(["--quick"] if given.quick else [])]
        command += [] if given.pairs is None else ["--pairs", str(given.pairs)]
        began = time.perf_counter()
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        print(f"{area}: {'failed' if failed else 'done'} after {time.perf_counter() - began:.0f} s", flush=True)
        return None if failed else json.loads(into.read_text())


def main() -> int:
    """Runs what was asked; returns the number of areas that failed."""
    given = arguments()
    if given.into is not None:
        here(given)
        return 0
    failed = 0
    for area in given.areas or AREAS:
        found = apart(area, given)
        failed += found is None
        if found is not None and not given.quick:
            kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {"areas": {}}
            kept["areas"][area] = {**found, "when": time.strftime("%Y-%m-%d")}
            RECORD.write_text(json.dumps(kept, indent=1) + "\n")
            table.write(kept)
    return failed


if __name__ == "__main__":
    sys.exit(main())
