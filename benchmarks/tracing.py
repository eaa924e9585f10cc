"""What names and traces cost: an unread forward, traces that read every layer, beside plain hooks and nnsight.

Two shapes of the decoder with 28 layers and random weights, one that takes a few milliseconds, so that any cost shows,
and one that takes some hundreds. nnsight is measured where this Python has it, on transformers' model with the same
weights; its cost is its time over that model's own bare forward.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import OURS, Call, Work
from benchmarks.models import decoder, keys, pair
from cutaway.named import Named

SHAPES = {"small": (64, 16), "large": (768, 96)}
"""Hidden size and tokens of the two shapes."""

both = cache(lambda hidden: pair(decoder(hidden, 28, 32)))


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


def ways(shape: str) -> dict[str, Callable[[], Any]]:
    """Every way to run the shape's forward and to read its layers, by name."""
    hidden, tokens = SHAPES[shape]
    model, theirs = both(hidden)
    inputs = model.prepare(torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(0)))
    arguments = {name: keys(inputs)[name] for name in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def bare() -> Tensor:
        return model.root(inputs)

    def plain() -> Tensor:
        with nameless():
            return bare()

    def traced() -> Tensor:
        with model.trace(inputs):
            for block in model.layers:
                block.layer_output.save()
            return model.logits.save()

    def collected() -> Tensor:
        with model.trace(inputs) as run:
            return run.collect(["layers.*.layer_output", "logits"])["logits"]

    def by_address() -> Tensor:
        return model.run(inputs, read=["layers.*.layer_output", "logits"])["logits"]

    @torch.no_grad()
    def reference() -> Tensor:
        return theirs(**arguments, use_cache=False).logits

    results = {"bare": bare, "nameless": plain, "trace": traced, "collect": collected, "address": by_address}
    results["transformers"] = reference
    return results | hooked(theirs, arguments) | nnsighted(theirs, arguments)


def hooked(theirs: Any, arguments: dict[str, Tensor]) -> dict[str, Call]:
    """Plain hooks on transformers' layers, set and taken off again for each forward, as a trace is opened and left."""

    @torch.no_grad()
    def hooks() -> Tensor:
        kept: list[Any] = []
        handles = [
            block.register_forward_hook(lambda module, args, output: kept.append(output))
            for block in theirs.model.language_model.layers
        ]
        try:
            return theirs(**arguments, use_cache=False).logits
        finally:
            for handle in handles:
                handle.remove()

    return {"hooks on transformers": hooks}


def nnsighted(theirs: Any, arguments: dict[str, Tensor]) -> dict[str, Call]:
    """The same reads in nnsight; nothing where it is not installed."""
    if importlib.util.find_spec("nnsight") is None:
        return {}
    import nnsight  # type: ignore[import-not-found]

    model = nnsight.NNsight(theirs)

    @torch.no_grad()
    def traced() -> Any:
        kept = []
        with model.trace(**arguments, use_cache=False):
            for block in model.model.language_model.layers:
                kept.append(block.output.save())  # noqa: PERF401 - the body is read by nnsight, not run here
            logits = model.lm_head.output.save()
        return logits

    return {"nnsight on transformers": traced}


def selected(shape: str, ours: str, *others: str) -> dict[str, Callable[[], Any]]:
    """Some of the ways, one of them as ours."""
    results = ways(shape)
    return {OURS: results[ours], **{name: results[name] for name in others if name in results}}


def works(quick: bool) -> Sequence[Work]:
    results = []
    shapes = ("small",) if quick else tuple(SHAPES)
    limits = {"small": 1.10, "large": 1.01}
    for shape in shapes:
        hidden, tokens = SHAPES[shape]
        size, pairs = f"hidden {hidden}, {tokens} tokens, 28 layers", 41 if shape == "small" else 31
        rest = ("transformers", "hooks on transformers", "nnsight on transformers")
        results += [
            Work(f"names, nothing read: {size}", partial(selected, shape, "bare", "nameless"), target=1.01,
                 pairs=pairs),
            Work(f"trace, every layer read in one go: {size}", partial(selected, shape, "collect", "bare", *rest),
                 target=limits[shape], pairs=pairs),
            Work(f"trace, every layer read in turn: {size}", partial(selected, shape, "trace", "bare"),
                 target=limits[shape], pairs=pairs),
            Work(f"by address, every layer read: {size}", partial(selected, shape, "address", "bare"), pairs=pairs),
        ]  # fmt: skip
    return results
