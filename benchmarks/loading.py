"""Import and `load` of a 2B-shaped random checkpoint from disk, sharded and bfloat16: whole processes, time and peak.

Each side is a fresh interpreter that imports its library, loads the folder and looks at one number of every weight's
tensor object, not at its pages: both libraries map the file, and neither is to be charged for the disk.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import cutaway
from benchmarks.harness import OURS, ROOT, Work
from benchmarks.models import two_billion
from cutaway.checkpoint.write import save_weights

FOLDER = Path(tempfile.gettempdir()) / "cutaway-benchmarks"

SCRIPTS = {
    OURS: "import cutaway; model = cutaway.load({folder!r}, device='cpu')",
    "transformers": (
        "from transformers import AutoModelForImageTextToText as M; model = M.from_pretrained({folder!r}, dtype='auto')"
    ),
}
AFTER = """
import json
from pathlib import Path
peak = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM")][0].split()[1]
print(json.dumps({"peak": int(peak) * 1024, "weights": sum(p.numel() * p.element_size() for p in model.parameters())}))
"""


@cache
def checkpoint(quick: bool) -> Path:
    """The folder of a random checkpoint, written once and kept in the machine's folder for temporary files."""
    folder = FOLDER / ("quick" if quick else "two-billion")
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        config = two_billion(quick)
        model = cutaway.random(config, dtype="bfloat16", device="cpu")
        config["text_config"]["dtype"] = "bfloat16"
        config["dtype"] = "bfloat16"
        save_weights(model.root, folder, config, shard_bytes=10**5 if quick else 10**9)
        (folder / "whole").touch()
    return folder


def started(script: str) -> dict[str, Any]:
    """What a fresh interpreter says that ran this."""
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
    command = [sys.executable, "-W", "ignore", "-c", threads + script + AFTER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def sides(quick: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    folder = str(checkpoint(quick))
    return {name: partial(started, script.format(folder=folder)) for name, script in SCRIPTS.items()}


def works(quick: bool) -> Sequence[Work]:
    return [
        Work("import and load, 2B shape, bfloat16", partial(sides, quick), target=0.5, memory=True, target_memory=4.76)
    ]
