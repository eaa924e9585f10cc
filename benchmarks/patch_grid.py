"""A patching grid on one image: the shortened way, beside a loop of whole edited runs, ours and nnsight's.

The model has the shape of Qwen3-VL-2B with its widths divided by eight, and random weights; the image has 512 × 512
pixels, 256 tokens. The grid has 64 regions and four of the 28 layers, evenly spread, its base runs included; the loops
do a sample of its cells, spread over layers and regions. All times are for one cell, and each side hands back the
sample's results, which must be the same everywhere. nnsight runs on transformers with the same weights, one traced
forward a cell, the block's output changed at the region's tokens, the head at the last token alone.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import cutaway
from benchmarks.harness import OURS, Call, Work
from benchmarks.models import reference
from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, question
from cutaway.analysis.common.token_selection import image_regions
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.patching import patch
from cutaway.api import Model
from cutaway.checkpoint.published_sizes import published
from cutaway.checkpoint.shrink import shrunk

SIDE, SCALE, BLOCKS, SAMPLE = 8, 8, 4, 12
"""Regions across and down, what widths are divided by, layers of the grid, cells of the loops."""

LOOP, PEER = "whole edited runs", "nnsight on transformers"
Cell = tuple[int, str]


def scaled(quick: bool) -> dict[str, Any]:
    """Qwen3-VL-2B's config with every width divided; depths, taps and the size of a head stay, but for a test."""
    if quick:
        return {**shrunk(published("Qwen3-VL-2B"))}
    config = copy.deepcopy(published("Qwen3-VL-2B"))
    text, vision = config["text_config"], config["vision_config"]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        text[key] //= SCALE
    for key in ("hidden_size", "intermediate_size", "num_heads", "out_hidden_size"):
        vision[key] //= SCALE
    text["dtype"] = "float32"
    return config


def prompts(model: Model, pixels: int) -> Pair:
    """Two square images of noise and one question."""
    noise = np.random.default_rng(0)
    made = [Image.fromarray(noise.integers(0, 256, (pixels, pixels, 3), dtype=np.uint8)) for _ in range(2)]
    return Pair(*(question(model, "What color is the square?", images=[image]) for image in made))


def sample_of(positions: list[str], blocks: list[int], count: int) -> list[Cell]:
    """Cells spread evenly over layers and places."""
    picks = np.random.default_rng(1).permuted(np.arange(count) % len(positions))
    return [(blocks[n * len(blocks) // count], positions[int(pick)]) for n, pick in enumerate(picks)]


@dataclass(frozen=True)
class Grid:
    """What is patched, with what, and a sample of its cells."""

    model: Model
    pair: Pair
    metric: metrics.Metric
    positions: dict[str, Tensor]
    blocks: list[int]
    sample: list[Cell]
    values: components.ComponentValues

    def shortened(self) -> Tensor:
        """The whole grid; the sample's results."""
        results = patch(
            self.model, self.pair, self.metric, where=self.positions, layers=self.blocks, attribution=False
        ).patched
        return torch.tensor([results.at(pair=0, layer=str(b), tokens=p) for b, p in self.sample])

    def loop(self) -> Tensor:
        """Whole edited runs of the sample; the head runs at the last token alone."""
        return torch.tensor([self.edited(block, *self.cell(block, position)) for block, position in self.sample])

    def cell(self, block: int, position: str) -> tuple[Tensor, Tensor]:
        """Positions, and what stands there in the clean run [tokens hidden]."""
        return self.positions[position], self.values.by_layer[block][0, self.positions[position]]

    def edited(self, block: int, positions: Tensor, new: Tensor) -> float:
        def put(value: Tensor) -> None:
            value[0, positions] = new

        edit = {f"layers.{block}.layer_output": put}
        return float(metrics.measure(self.model, self.pair.corrupt, self.metric, edit=edit))


def grid_of(model: Model, pixels: int, side: int, blocks: int, sample: int) -> Grid:
    """The grid over regions of an image and some layers, evenly spread."""
    pair = prompts(model, pixels)
    positions, depth = image_regions(pair.corrupt, side, side), model.num_layers
    selected = sorted({int((n + 0.5) * depth / blocks) for n in range(blocks)})
    values = components.read_component(model, pair.clean, "residual", selected)
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    return Grid(model, pair, metric, positions, selected, sample_of(list(positions), selected, sample), values)


def nnsighted(theirs: Any, grid: Grid) -> dict[str, Call]:
    """The loop in nnsight; nothing where it is not installed."""
    if importlib.util.find_spec("nnsight") is None:
        return {}
    import nnsight  # type: ignore[import-not-found]

    model, arguments = nnsight.NNsight(theirs), dict(grid.pair.corrupt)
    right, wrong = (metrics.one_id(grid.model.tokenizer, word) for word in "ab")

    @torch.no_grad()
    def loop() -> Tensor:
        results = []
        for block, position in grid.sample:
            positions, new = grid.cell(block, position)
            with model.trace(**arguments, logits_to_keep=1):
                model.model.language_model.layers[block].output[0, positions] = new
                logits = model.lm_head.output.save()
            results.append(float(logits[0, -1, right] - logits[0, -1, wrong]))
        return torch.tensor(results)

    return {PEER: loop}


def sides(quick: bool) -> dict[str, Callable[[], Any]]:
    """The sample's results, three ways."""
    config = scaled(quick)
    model = cutaway.random(config, dtype="float32", device="cpu")
    grid = grid_of(model, *((64, 2, 2, 3) if quick else (512, SIDE, BLOCKS, SAMPLE)))
    return {OURS: grid.shortened, LOOP: grid.loop, **nnsighted(reference(config, model, "sdpa"), grid)}


def works(quick: bool) -> Sequence[Work]:
    cells, sample = (2 * 4, 3) if quick else (BLOCKS * SIDE**2, SAMPLE)
    return [
        Work("one cell of a patch grid of 64 regions, 28 layers", partial(sides, quick), target=0.25,
             parts={OURS: cells, LOOP: sample, PEER: sample})
    ]  # fmt: skip
