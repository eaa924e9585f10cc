"""One block's attention pattern at 4,096 tokens: ours beside our fused forward and transformers' two ways to it.

Four heads of 64, a quarter of a real width, so that every side can be repeated: a pattern takes 268 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, keys, pair, reference


def sides(hidden: int, head_dim: int, blocks: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """The pattern of the middle block, and the forward that goes on behind it."""
    config = decoder(hidden, blocks, head_dim)
    ours, fused = pair(config)
    eager = reference(config, ours, "eager")
    inputs = ours.prepare(torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(0)))
    given = {name: keys(inputs)[name] for name in ("input_ids", "attention_mask")}
    address = f"layers.{blocks // 2}.self_attn.attention_probabilities"

    def pattern() -> torch.Tensor:
        return ours.run(inputs, read=address, to_end=True)[address]

    @torch.no_grad()
    def bare() -> torch.Tensor:
        return ours.root(inputs, last_only=True)

    @torch.no_grad()
    def theirs_fused() -> torch.Tensor:
        return fused(**given, use_cache=False, logits_to_keep=1).logits

    return {
        OURS: pattern,
        "cutaway, fused": bare,
        "transformers sdpa": theirs_fused,
        **stepwise(eager, given, blocks // 2),
    }


def stepwise(eager: Any, given: dict[str, torch.Tensor], index: int) -> dict[str, Callable[[], Any]]:
    """transformers' two ways to a block's pattern, both with every block computed step by step."""

    @torch.no_grad()
    def one_block() -> torch.Tensor:
        kept = []
        block = eager.model.language_model.layers[index].self_attn
        handle = block.register_forward_hook(lambda module, args, output: kept.append(output[1]))
        try:
            eager(**given, use_cache=False, logits_to_keep=1)
        finally:
            handle.remove()
        return kept[0]

    @torch.no_grad()
    def every_block() -> torch.Tensor:
        out = eager(**given, use_cache=False, output_attentions=True, logits_to_keep=1)
        return out.attentions[index]

    return {"transformers eager, hook": one_block, "transformers eager, output_attentions": every_block}


def works(quick: bool) -> Sequence[Work]:
    sizes = (64, 32, 2, 16) if quick else (256, 64, 12, 4096)
    return [
        Work("one pattern of 12 blocks at 4,096 tokens, 4 heads", partial(sides, *sizes), target=1.15,
             memory=True, target_memory=0.3)
    ]  # fmt: skip
