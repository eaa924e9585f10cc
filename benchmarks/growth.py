"""How time and memory grow: prefill, one decoding step and the vision encoder at 1, 2, 4 and 8 times the size.

Attention grows with the square of a prompt's tokens or a picture's patches, all else with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, pair
from cutaway.generate.loop import Generation, forward

VISION = {"depth": 4, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "num_position_embeddings": 256}

model = cache(lambda hidden: pair(decoder(hidden, 8, 32, **VISION))[0])


def prefill(hidden: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """A prompt of so many tokens."""
    inputs = model(hidden).prepare(torch.randint(0, 256, (1, tokens)))
    return {OURS: torch.no_grad()(lambda: model(hidden).root(inputs, last_only=True))}


def step(hidden: int, past: int) -> dict[str, Callable[[], Any]]:
    """One token after so many."""
    ours = model(hidden)
    settings = ours.settings(max_new_tokens=4, ignore_eos=True, temperature=0)
    generation = Generation(ours.root, ours.prepare(torch.randint(0, 256, (1, past))), settings)
    forward(ours.root, generation)
    batch, held = generation.next_inputs(), generation.cache.length

    @torch.no_grad()
    def one() -> None:
        ours.root(batch, cache=generation.cache, last_only=True)
        generation.cache.crop(held)

    return {OURS: one}


def encoder(hidden: int, patches: int) -> dict[str, Callable[[], Any]]:
    """A picture of so many patches, 16 across."""
    rows = torch.randn(patches, 3 * 2 * 16 * 16)
    grid = [[1, patches // 16, 16]]
    return {OURS: torch.no_grad()(lambda: model(hidden).vision(rows, grids=grid, images=1))}


def works(quick: bool) -> Sequence[Work]:
    hidden, base = (64, 32) if quick else (256, 512)
    times = (1, 2) if quick else (1, 2, 4, 8)
    kinds = {"prefill, tokens": prefill, "one step, tokens before it": step, "vision encoder, patches": encoder}
    return [
        Work(f"{name}: {base * n}", partial(make, hidden, base * n), memory=not quick and n == times[-1])
        for name, make in kinds.items()
        for n in times
    ]
