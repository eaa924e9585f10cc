"""Runs the benchmarks of this folder one after the other, each in a process of its own::

    python -m benchmarks                    # all of them
    python -m benchmarks trace_overhead     # one; to give it options, run the script itself

What each measures, and what it needs, stands at the top of its file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

PARTS = {"__main__", "patch_grid_nnsight"}
"""What is no benchmark of its own: this file, and the side of one that another environment runs."""


def main() -> int:
    """Runs what the arguments name, or all; returns the number that failed."""
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in PARTS)
    chosen = sys.argv[1:] or known
    if unknown := [name for name in chosen if name not in known]:
        sys.exit(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(known)}.")
    failed = 0
    for name in chosen:
        print(f"\n== {name}", flush=True)
        failed += subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
