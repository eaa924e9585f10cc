"""Reading a prompt of text: at a width where arithmetic counts, and at one where only the steps between do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, keys, pair

both = cache(lambda hidden, head_dim, blocks: pair(decoder(hidden, blocks, head_dim)))
"""Blocks of this width in either library."""


def sides(hidden: int, head_dim: int, tokens: int, blocks: int = 28) -> dict[str, Callable[[], Any]]:
    """The logits of a prompt of so many tokens."""
    ours, theirs = both(hidden, head_dim, blocks)
    ids = torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(0))
    inputs = ours.prepare(ids)
    arguments = {name: keys(inputs)[name] for name in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def mine() -> torch.Tensor:
        return ours.root(inputs)

    @torch.no_grad()
    def others() -> torch.Tensor:
        return theirs(**arguments, use_cache=False).logits

    return {OURS: mine, "transformers sdpa": others}


def works(quick: bool) -> Sequence[Work]:
    hidden, head_dim = (64, 32) if quick else (1024, 128)
    short, long = (8, 16) if quick else (512, 2048)
    return [
        Work("prefill of 512 tokens, hidden 1,024, 28 layers", partial(sides, hidden, head_dim, short), target=0.95),
        Work(
            "prefill of 2,048 tokens, 7 of those layers",
            partial(sides, hidden, head_dim, long, 7),
            target=0.95,
        ),
        Work("prefill of 16 tokens, hidden 64, 28 layers", partial(sides, 64, 32, 16), target=0.5, pairs=41),
    ]
