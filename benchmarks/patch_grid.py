"""A patching grid of 28 blocks × 64 regions on one picture: shortened, as a loop of whole edited runs, and in nnsight.

    python benchmarks/patch_grid.py [--sample 42] [--blocks 28] [--scale 4] [--threads 1] [--peer PYTHON]

The model has the shape of Qwen3-VL-2B with its widths divided by `--scale` (1, 2, 4 or 8), and random weights; the
picture has 512 × 512 pixels, 256 tokens. The grid is computed the shortened way, its base runs included. The loops are
timed on `--sample` of its cells, spread over blocks and regions, whose results must be the same everywhere. `--blocks`
takes so many of the 28 blocks, evenly spread. One thread is timed by its own processor time, which other work on the
machine does not lengthen; several are timed by the clock. `--peer` is a Python that has torch, transformers and nnsight
0.8.1.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import cutaway
from cutaway.analysis import components, metrics
from cutaway.analysis.pairs import Pair, question, regions
from cutaway.analysis.patching import patch
from cutaway.checkpoint.sizes import published
from cutaway.checkpoint.write import save_weights
from cutaway.subject import Subject

SIDE = 8
Cell = tuple[int, str]


def clock() -> float:
    """Seconds: of this process where there is one thread, of the world where there are several."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def scaled(scale: int) -> dict[str, Any]:
    """Qwen3-VL-2B's config with every width divided; depths, taps and the size of a head stay."""
    config = copy.deepcopy(published("Qwen3-VL-2B"))
    text, vision = config["text_config"], config["vision_config"]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        text[key] //= scale
    for key in ("hidden_size", "intermediate_size", "num_heads", "out_hidden_size"):
        vision[key] //= scale
    text["dtype"] = "float32"
    return config


def prompts(subject: Subject) -> Pair:
    """Two pictures of noise, 512 × 512, and one question."""
    noise = np.random.default_rng(0)
    made = [Image.fromarray(noise.integers(0, 256, (512, 512, 3), dtype=np.uint8)) for _ in range(2)]
    return Pair(*(question(subject, "What color is the square?", images=[picture]) for picture in made))


@dataclass(frozen=True)
class Work:
    """The grid: what is patched, with what, and a sample of its cells."""

    pair: Pair
    places: dict[str, torch.Tensor]
    values: components.Values
    sample: list[Cell]


def loop(subject: Subject, work: Work, metric: metrics.Metric) -> tuple[float, list[float]]:
    """Seconds a cell, and the results, of whole edited runs; the head runs at the last token alone."""
    found = []
    start = clock()
    for block, place in work.sample:
        positions = work.places[place]
        new = work.values.found[block][0, positions]

        def put(value: torch.Tensor, positions: torch.Tensor = positions, new: torch.Tensor = new) -> None:
            value[0, positions] = new

        edit = {f"layers.{block}.layer_output": put}
        found.append(float(metrics.measure(subject, work.pair.corrupt, metric, edit=edit)))
    return (clock() - start) / len(work.sample), found


def peer(python: str, subject: Subject, config: dict[str, Any], work: Work, ids: tuple[int, int]) -> dict[str, Any]:
    """The same loop in nnsight on transformers, with the same weights, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        save_weights(subject.root, Path(folder), config)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        cells = [(b, work.places[p], work.values.found[b][0, work.places[p]]) for b, p in work.sample]
        given = {"inputs": dict(work.pair.corrupt), "cells": cells, "ids": ids, "threads": torch.get_num_threads()}
        torch.save(given, Path(folder) / "work.pt")
        script = Path(__file__).with_name("patch_grid_nnsight.py")
        done = subprocess.run([python, str(script), folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def sample_of(places: list[str], blocks: list[int], count: int) -> list[Cell]:
    """Cells spread evenly over blocks and places."""
    picks = np.random.default_rng(1).permuted(np.arange(count) % len(places))
    return [(blocks[n * len(blocks) // count], places[int(pick)]) for n, pick in enumerate(picks)]


def told(name: str, each: float, cells: int, ours: float, off: float) -> None:
    """One line of the comparison."""
    ratio = each * cells / ours
    print(f"{name:34s} {each * cells:8.1f} s  {1000 * each:7.1f} ms a cell  {ratio:5.1f} ×  off by {off:.0e}")


def main() -> None:
    """Measures and prints seconds and ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sample", 42), ("blocks", 28), ("scale", 4), ("threads", 1)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--peer", help="a Python with torch, transformers and nnsight")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    config = scaled(given.scale)
    subject = cutaway.random(config, dtype="float32", device="cpu")
    pair = prompts(subject)
    metric = metrics.logit_difference(subject.tokenizer, "a", "b")
    places, depth = regions(pair.corrupt, SIDE, SIDE), subject.num_layers
    blocks = sorted({int((n + 0.5) * depth / given.blocks) for n in range(given.blocks)})
    cells = len(blocks) * len(places)
    tokens = pair.corrupt.input_ids.shape[1]
    print(f"{len(blocks)} blocks × {len(places)} regions, {tokens} tokens, width {subject.hidden_size}")

    start = clock()
    grid = patch(subject, pair, metric, where=places, blocks=blocks, attribution=False)
    ours = clock() - start
    print(f"the two whole runs lie {abs(grid.clean.values[0] - grid.corrupt.values[0]):.2f} logits apart")
    told("shortened", ours / cells, cells, ours, 0)

    values = components.read(subject, pair.clean, "residual", blocks)
    work = Work(pair, places, values, sample_of(list(places), blocks, given.sample))
    mine = [grid.patched.at(pair=0, block=str(block), place=place) for block, place in work.sample]
    each, found = loop(subject, work, metric)
    told("whole edited runs", each, cells, ours, largest(mine, found))
    if given.peer:
        ids = (metrics.one_id(subject.tokenizer, "a"), metrics.one_id(subject.tokenizer, "b"))
        peers = peer(given.peer, subject, config, work, ids)
        name = f"nnsight {peers['version']} on transformers"
        told(name, peers["seconds"], cells, ours, largest(mine, peers["results"]))


def largest(mine: list[float], theirs: list[float]) -> float:
    """The largest difference between two lists of results."""
    return max(abs(a - b) for a, b in zip(mine, theirs, strict=True))


if __name__ == "__main__":
    main()
