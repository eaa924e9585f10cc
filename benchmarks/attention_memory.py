"""Memory that attention maps take above the forward: 36 layers, 32 heads, an image of 4,096 tokens.

Heads are narrow (16 numbers) so that a CPU does it in minutes; patterns are [heads seq seq] whatever their width, 2.2
GB a block, so a way that makes one shows. nnsight, or plain hooks where it is missing, reads the last token's row of
every layer's pattern on transformers with eager attention, which makes them all, one after the other;
`output_attentions` would keep 79 GB.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import OURS, Call, Work
from benchmarks.models import decoder, pair, reference
from cutaway.analysis.attention.rollout import attention_rollout
from cutaway.analysis.attention.text import attention_map
from cutaway.analysis.common import prompts as pairs
from cutaway.trace.run import run_values

FORWARD, HOOKS, PEER = "cutaway, forward", "hooks on transformers eager", "nnsight on transformers eager"


def config_of(blocks: int, heads: int) -> dict[str, Any]:
    """Narrow heads, so that the numbers of the pattern are nearly all there is."""
    made = copy.deepcopy(decoder(16 * heads, blocks, 16, kv_heads=8 if heads > 8 else 1))
    made["text_config"] |= {"intermediate_size": 64, "hidden_size": 64}
    made["vision_config"]["out_hidden_size"] = 64
    return made


def sides(blocks: int, heads: int, side: int, way: str) -> dict[str, Callable[[], Any]]:
    """A map of where the last token looks, or a rollout; the forward to the last block's keys."""
    config = config_of(blocks, heads)
    model, _ = pair(config)
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    inputs = pairs.question(model, "Where?", [image])
    last = f"layers.{blocks - 1}.self_attn.attention_keys"

    def forward() -> None:
        run_values(model.root, lambda: model.root(inputs), read=last)

    def rolled() -> None:
        attention_rollout(model, inputs)

    def mapped() -> Tensor:
        results = attention_map(model, inputs)
        return torch.as_tensor(np.stack([results.averaged(layer=b) for b in range(blocks)])).float()

    if way == "rollout":
        return {OURS: rolled, FORWARD: forward}
    return {OURS: mapped, FORWARD: forward, **peers(reference(config, model, "eager"), dict(inputs), blocks)}


def peers(theirs: Any, arguments: dict[str, Tensor], blocks: int) -> dict[str, Call]:
    """The last token's row of every layer, averaged over heads, in nnsight or by plain hooks."""
    layers = theirs.model.language_model.layers

    @torch.no_grad()
    def hooks() -> Tensor:
        kept: list[Tensor] = []
        handles = [
            block.self_attn.register_forward_hook(lambda module, args, out: kept.append(out[1][0, :, -1].mean(0)))
            for block in layers
        ]
        try:
            theirs(**arguments, use_cache=False, logits_to_keep=1)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(kept)

    if importlib.util.find_spec("nnsight") is None:
        return {HOOKS: hooks}
    import nnsight  # type: ignore[import-not-found]

    model = nnsight.NNsight(theirs)

    @torch.no_grad()
    def traced() -> Tensor:
        with model.trace(**arguments, use_cache=False, logits_to_keep=1):
            rows = [model.model.language_model.layers[n].self_attn.output[1][0, :, -1].mean(0) for n in range(blocks)]
            kept = torch.stack(rows).save()  # type: ignore[attr-defined]
        return kept

    return {PEER: traced}


def works(quick: bool) -> Sequence[Work]:
    sizes = (2, 4, 128) if quick else (36, 32, 2048)
    needs = {} if quick else {HOOKS: 12, PEER: 12}
    return [
        Work(f"{name}, 36 layers, 32 heads, 4,096 tokens", partial(sides, *sizes, way), pairs=0, memory=True,
             target_memory=1.0, memory_over=FORWARD, needs=needs)
        for name, way in (("attention map", "attention"), ("attention rollout", "rollout"))
    ]  # fmt: skip
