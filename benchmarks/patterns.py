"""One block's attention pattern at 4,096 tokens: ours beside our fused forward and transformers' two ways to it.

Hidden 1,024, 12 layers, 16 heads: a pattern takes 1.07 GB, and transformers' `output_attentions` keeps twelve of them.
Each side hands back a few rows of its pattern, to be compared; what it made of the rest is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, keys, pair, reference

FUSED, EAGER, EVERY = "cutaway, fused", "transformers eager, hook", "transformers eager, output_attentions"
ROWS = 16


def sides(hidden: int, head_dim: int, blocks: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """The pattern of the middle block, and the forward that goes on behind it."""
    config = decoder(hidden, blocks, head_dim)
    ours, fused = pair(config)
    eager = reference(config, ours, "eager")
    inputs = ours.prepare(torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(0)))
    arguments = {name: keys(inputs)[name] for name in ("input_ids", "attention_mask")}
    address = f"layers.{blocks // 2}.self_attn.attention_probabilities"

    def pattern() -> torch.Tensor:
        return ours.run(inputs, read=address, to_end=True)[address][:, :, -ROWS:].clone()

    @torch.no_grad()
    def bare() -> torch.Tensor:
        return ours.root(inputs, last_only=True)

    @torch.no_grad()
    def theirs_fused() -> torch.Tensor:
        return fused(**arguments, use_cache=False, logits_to_keep=1).logits

    return {
        OURS: pattern,
        FUSED: bare,
        "transformers sdpa": theirs_fused,
        **stepwise(eager, arguments, blocks // 2),
    }


def stepwise(eager: Any, arguments: dict[str, torch.Tensor], index: int) -> dict[str, Callable[[], Any]]:
    """transformers' two ways to a block's pattern, both with every layer computed step by step."""

    @torch.no_grad()
    def one_block() -> torch.Tensor:
        kept = []
        block = eager.model.language_model.layers[index].self_attn
        handle = block.register_forward_hook(lambda module, args, output: kept.append(output[1]))
        try:
            eager(**arguments, use_cache=False, logits_to_keep=1)
        finally:
            handle.remove()
        return kept[0][:, :, -ROWS:].clone()

    @torch.no_grad()
    def every_block() -> torch.Tensor:
        out = eager(**arguments, use_cache=False, output_attentions=True, logits_to_keep=1)
        return out.attentions[index][:, :, -ROWS:].clone()

    return {EAGER: one_block, EVERY: every_block}


def works(quick: bool) -> Sequence[Work]:
    sizes = (64, 32, 2, 16) if quick else (1024, 64, 12, 4096)
    return [
        Work(
            "one pattern of 12 layers at 4,096 tokens, 16 heads",
            partial(sides, *sizes),
            target=1.15,
            seldom={EAGER: 2, EVERY: 1, "transformers sdpa": 2},
            needs={} if quick else {EAGER: 6, EVERY: 17},
            memory=True,
            target_memory=1.2,
            memory_over=FUSED,
        )
    ]
