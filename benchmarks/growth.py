"""How time and memory grow: prefill, one decoding step and the vision encoder at 1, 2, 4 and 8 times the size.

Attention grows with the square of a prompt's tokens or an image's patches, all else with their number. How much
arithmetic each size is, is counted from the config, so that the growth that was measured can be held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, pair
from cutaway.generate.loop import Generation, run_step

VISION = {"depth": 4, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "num_position_embeddings": 256}
BLOCKS, HEAD_DIM = 8, 32

model = cache(lambda hidden: pair(decoder(hidden, BLOCKS, HEAD_DIM, **VISION))[0])


def block_weights(hidden: int) -> int:
    """Weights of a text block's products: queries and output, keys and values of half as many heads, the MLP."""
    return hidden * (2 * hidden + 2 * (hidden // 2) + 3 * 3 * hidden)


def prefill(hidden: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """A prompt of so many tokens."""
    inputs = model(hidden).prepare(torch.randint(0, 256, (1, tokens)))
    return {OURS: torch.no_grad()(lambda: model(hidden).root(inputs, last_only=True))}


def prefill_amount(hidden: int, tokens: int) -> float:
    """Multiplications of a prompt: every weight once a token, and each token with all before it, twice."""
    return BLOCKS * tokens * (block_weights(hidden) + 2 * hidden * (tokens + 1) / 2)


def step(hidden: int, past: int) -> dict[str, Callable[[], Any]]:
    """One token after so many; it tells the bytes that the past takes."""
    ours = model(hidden)
    settings = ours.settings(max_new_tokens=4, ignore_eos=True, temperature=0)
    generation = Generation(ours.root, ours.prepare(torch.randint(0, 256, (1, past))), settings)
    run_step(ours.root, generation)
    batch, length = generation.next_inputs(), generation.cache.length

    @torch.no_grad()
    def one() -> dict[str, int]:
        ours.root(batch, cache=generation.cache, last_only=True)
        generation.cache.crop(length)
        return {"held": generation.cache.memory()}

    return {OURS: one}


def step_amount(hidden: int, past: int) -> float:
    """Multiplications of a step: every weight, the head's among them, and the past's keys and values."""
    return BLOCKS * (block_weights(hidden) + 2 * hidden * (past + 1)) + 512 * hidden


def encoder(hidden: int, patches: int) -> dict[str, Callable[[], Any]]:
    """An image of so many patches, 16 across."""
    rows = torch.randn(patches, 3 * 2 * 16 * 16)
    grid = [[1, patches // 16, 16]]
    return {OURS: torch.no_grad()(lambda: model(hidden).vision(rows, grids=grid, images=1))}


def encoder_amount(hidden: int, patches: int) -> float:
    """Multiplications of the encoder: embedding, layers, merger; each patch with every one, twice a block."""
    width = VISION["hidden_size"]
    products = VISION["depth"] * (4 * width**2 + 2 * width * VISION["intermediate_size"])
    merger = (4 * width) * (4 * width + hidden) / 4
    return patches * (3 * 2 * 16 * 16 * width + products + merger + VISION["depth"] * 2 * width * patches)


KINDS = {
    "prefill, tokens": (prefill, prefill_amount),
    "one step, tokens before it": (step, step_amount),
    "vision encoder, patches": (encoder, encoder_amount),
}


def works(quick: bool) -> Sequence[Work]:
    hidden, base = (64, 32) if quick else (256, 512)
    times = (1, 2) if quick else (1, 2, 4, 8)
    return [
        Work(
            f"{name}: {base * n}",
            partial(make, hidden, base * n),
            memory=not quick,
            tensors=True,
            amount=amount(hidden, base * n),
        )
        for name, (make, amount) in KINDS.items()
        for n in times
    ]
