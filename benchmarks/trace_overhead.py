"""What names and traces cost: an unread forward, a trace that reads every block, the same by address.

    python benchmarks/trace_overhead.py [--pairs 60] [--threads 1]

Two shapes of the decoder with 28 blocks and random weights, one that takes a few milliseconds, so that any cost shows,
and one that takes some two hundred. Each number is the median of paired runs, the two sides in turn. One thread is
timed by its own processor time, which other work on the machine does not lengthen; several are timed by the clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import cutaway
from cutaway.named import Named
from cutaway.subject import Subject

BLOCKS = 28
SHAPES = {"small": (64, 16), "large": (512, 64)}
"""Hidden size and tokens of the two shapes."""


def subject(hidden: int) -> Subject:
    """A text decoder of 28 blocks behind the smallest vision encoder there can be."""
    heads = hidden // 32
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_scaling": {"mrope_section": [6, 5, 5], "rope_type": "default", "mrope_interleaved": True},
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": hidden,
        "deepstack_visual_indexes": [],
        "num_position_embeddings": 16,
    }
    ids = {"vision_start_token_id": 300, "vision_end_token_id": 301, "image_token_id": 303, "video_token_id": 304}
    return cutaway.random({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, **ids}, device="cpu")


@contextmanager
def nameless() -> Iterator[None]:
    """The same tree as plain torch modules: no names, and torch's own call."""
    kept = {name: vars(Named)[name] for name in ("value", "wants", "__call__")}

    def value(self: Named, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def wants(self: Named, *names: str) -> bool:
        return False

    plain = {"value": value, "wants": wants, "__call__": nn.Module.__call__}
    try:
        for name, function in plain.items():
            setattr(Named, name, function)
        yield
    finally:
        for name, function in kept.items():
            setattr(Named, name, function)


def seconds(call: Callable[[], Any]) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def paired(one: Callable[[], Any], other: Callable[[], Any], pairs: int) -> tuple[float, float, float]:
    """Median seconds of each side, and the median of the pairs' ratios, `other` to `one`."""
    for call in (one, other):
        for _ in range(3):
            call()
    times = [(seconds(one), seconds(other)) for _ in range(pairs)]
    firsts, seconds_ = zip(*times, strict=True)
    return statistics.median(firsts), statistics.median(seconds_), statistics.median(b / a for a, b in times)


def report(name: str, model: Subject, tokens: int, pairs: int) -> None:
    inputs = model.prepare(torch.randint(0, 256, (1, tokens)))

    def bare() -> Tensor:
        with torch.no_grad():
            return model.root(inputs)

    def plain() -> Tensor:
        with nameless():
            return bare()

    def traced() -> None:
        with model.trace(inputs):
            for block in model.layers:
                block.layer_output.save()
            model.logits.save()

    def opened() -> None:
        with model.trace(inputs):
            model.logits.save()

    def by_address() -> None:
        model.run(inputs, read=["layers.*.layer_output", "logits"])

    prepare = statistics.median(seconds(lambda: model.prepare(inputs)) for _ in range(pairs))
    print(f"{name}: {BLOCKS} blocks, hidden {model.hidden_size}, {tokens} tokens; preparing {prepare * 1e3:.2f} ms")
    sides = {
        "names, nothing read": (plain, bare),
        "trace, the logits read": (bare, opened),
        "trace, every block read": (bare, traced),
        "by address, every block": (bare, by_address),
    }
    for side, (one, other) in sides.items():
        before, after, ratio = paired(one, other, pairs)
        print(f"  {side:<24} {before * 1e3:8.2f} ms -> {after * 1e3:8.2f} ms   ratio {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, (hidden, tokens) in SHAPES.items():
        report(name, subject(hidden), tokens, options.pairs if name == "small" else max(5, options.pairs // 6))


if __name__ == "__main__":
    main()
