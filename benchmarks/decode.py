"""Greedy answers after an image, batch 1 and 8: the bundled model, and the 2B shape, which memory's speed limits.

Both sides generate the same number of tokens with no end token. The 2B shape reads its weights once a token; a
measured copy of as many bytes stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

import cutaway
from benchmarks.harness import OURS, Work
from benchmarks.loading import checkpoint
from benchmarks.models import keys, nano, noise
from cutaway.api import Model
from cutaway.generate.loop import Generation, generate, run_step


@cache
def large(quick: bool) -> tuple[Model, Any]:
    """The 2B shape in both, each on the mapped file."""
    from transformers import AutoModelForImageTextToText

    folder = checkpoint(quick)
    theirs = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    return cutaway.load(folder, device="cpu"), theirs.eval()


def prompts(model: Model, batch: int, side: int) -> Any:
    """A batch of one image each, left-padded, as tensors, without a tokenizer: placeholders and a few ids."""
    images = [noise(side, side, n) for n in range(batch)]
    processor = model._processor
    if processor is not None:
        text = processor.prompt("What is shown?", images=1)
        return processor(text=[text] * batch, images=images, padding_side="left")
    config, count = model.config, (side // 32) ** 2
    row = [1, config.vision_start_token_id, *[config.image_token_id] * count, config.vision_end_token_id, 2, 3, 4]
    patches = torch.randn(batch * count * 4, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(0))
    grid = [[1, side // 16, side // 16]] * batch
    return model.prepare({"input_ids": torch.tensor([row] * batch), "pixel_values": patches,
                          "image_grid_thw": torch.tensor(grid)})  # fmt: skip


def sides(models: Callable[[], tuple[Model, Any]], batch: int, tokens: int, side: int) -> dict[str, Callable[[], Any]]:
    """The ids of an answer of so many tokens."""
    ours, theirs = models()
    inputs = prompts(ours, batch, side)
    settings = ours.settings(max_new_tokens=tokens, ignore_eos=True, temperature=0)
    length = inputs.input_ids.shape[1]
    arguments = keys(inputs)
    if theirs.dtype == torch.bfloat16:
        arguments["pixel_values"] = arguments["pixel_values"].to(torch.bfloat16)
    theirs.generation_config.eos_token_id = None

    def mine() -> torch.Tensor:
        return torch.tensor(generate(ours.root, inputs, settings).ids)

    def others() -> torch.Tensor:
        return theirs.generate(**arguments, max_new_tokens=tokens, do_sample=False, pad_token_id=0)[:, length:]

    return {OURS: mine, "transformers generate": others}


def bandwidth(quick: bool) -> dict[str, Callable[[], Any]]:
    """One token of the 2B shape, and a copy that moves as many bytes as it reads of weights."""
    ours, _ = large(quick)
    bytes_read = sum(p.numel() * p.element_size() for p in ours.language_model.parameters())
    source = torch.empty(min(bytes_read, 2**29) // 4, dtype=torch.float32).fill_(1.0)
    target = torch.empty_like(source)
    times = max(1, bytes_read // (2 * source.numel() * 4))  # a copy reads and writes
    inputs = prompts(ours, 1, 64)
    settings = ours.settings(max_new_tokens=2, ignore_eos=True, temperature=0)
    generation = Generation(ours.root, inputs, settings)
    run_step(ours.root, generation)
    batch, length = generation.next_inputs(), generation.cache.length

    @torch.no_grad()
    def mine() -> dict[str, int]:
        ours.root(batch, cache=generation.cache, last_only=True)
        generation.cache.crop(length)
        return {"bytes": bytes_read}

    def copies() -> dict[str, int]:
        for _ in range(times):
            target.copy_(source)
        return {"bytes": times * 2 * source.numel() * 4}

    return {OURS: mine, "copy of as many bytes": copies}


def works(quick: bool) -> Sequence[Work]:
    tokens = 4 if quick else 64
    results = [
        Work(f"nano, {tokens} tokens after an image, batch {n}", partial(sides, nano, n, tokens, 64), target=0.5)
        for n in (1, 8)
    ]  # fmt: skip
    results += [
        Work(f"2B shape, {tokens} tokens after an image, batch {n}",
             partial(sides, partial(large, quick), n, tokens, 64), target=0.9)
        for n in (1, 8)
    ]  # fmt: skip
    return [*results, Work("2B shape, one token beside a copy", partial(bandwidth, quick))]
