"""Whether a device computes what the CPU does: every family, both precisions, each way to attention, traces, answers.

Tiny models with random weights, the same on both; batches are made of ids and noise, so that no tokenizer is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import cutaway
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.published_sizes import published
from cutaway.errors import InputError
from cutaway.generate.loop import generate

SIZES = {"qwen2_vl": "Qwen2-VL-2B", "qwen2_5_vl": "Qwen2.5-VL-3B", "qwen3_vl": "Qwen3-VL-2B",
         "qwen3_vl_moe": "Qwen3-VL-30B-A3B", "qwen3_5": "Qwen3.5-0.8B", "qwen3_5_moe": "Qwen3.5-35B-A3B"}  # fmt: skip
"""A size of each family, to be cut down."""

CLOSE, TIMES = 1e-4, 2.0
"""float32's largest difference from the CPU by scale; how much farther than the CPU's own bfloat16 lies from float32
the device's may."""

Results = dict[str, Any]


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference by the scale of the second, both as float32 on the CPU."""
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def seen(model: Model, sides: Sequence[int] = (128, 128), words: int = 12) -> Inputs:
    """A batch of a square image a row, so many pixels across, and some words; shorter rows are padded on the left."""
    vision, config = model.config.vision, model.config
    patch, fold = vision.patch_size, vision.spatial_merge_size
    rows, grids = [], []
    for side in sides:
        across = max(fold, side // (patch * fold) * fold)
        image = [config.image_token_id] * (across // fold) ** 2
        row = [config.vision_start_token_id, *image, config.vision_end_token_id]
        rows.append([*range(1, words // 2 + 1), *row, *range(1, words - words // 2 + 1)])
        grids.append([1, across, across])
    longest = max(map(len, rows))
    width = vision.in_channels * vision.temporal_patch_size * patch**2
    count = sum(height * across for _, height, across in grids)
    return model.prepare({
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
        "pixel_values": torch.randn(count, width, generator=torch.Generator().manual_seed(0)),
        "image_grid_thw": torch.tensor(grids),
    })  # fmt: skip


def small(family: str, device: torch.device | str, dtype: str = "float32", attention: str = "sdpa") -> Model:
    """A family cut down, its random weights the same on every device."""
    made = cutaway.random(
        published(SIZES[family]), small=True, device="cpu", dtype="float32", attn_implementation=attention
    )
    return made.to(device=torch.device(device), dtype=getattr(torch, dtype))


@torch.no_grad()
def logits_of(model: Model, inputs: Inputs) -> Tensor:
    """The logits of a batch's tokens, padding left out, [tokens vocab]."""
    inputs = inputs.to(model.device)
    return model.root(inputs)[inputs.attention_mask.bool()]


@contextmanager
def replays() -> Iterator[list[None]]:
    """Counts how often a recorded graph is replayed, as the length of what it gives."""
    results: list[None] = []
    whole = torch.cuda.CUDAGraph.replay

    def replay(self: torch.cuda.CUDAGraph) -> None:
        results.append(None)
        whole(self)

    torch.cuda.CUDAGraph.replay = replay
    try:
        yield results
    finally:
        torch.cuda.CUDAGraph.replay = whole


def parity(device: torch.device, families: Sequence[str] = tuple(SIZES)) -> Results:
    """Every family, and whether all of them hold."""
    results: Results = {family: one(family, device) for family in families}
    return {**results, "holds": all(all(note["holds"].values()) for note in results.values())}


def one(family: str, device: torch.device) -> Results:
    """A family's differences, and what has to hold of them."""
    here, there = small(family, "cpu"), small(family, device)
    inputs = seen(here)
    logits, far = logits_of(here, inputs), logits_of(there, inputs)
    results: Results = {"float32": apart(far, logits), **halves(family, device, inputs)}
    holds = {"float32": results["float32"] < CLOSE}
    limit = TIMES * results["bfloat16, cpu"]
    for name in ("bfloat16, sdpa", "bfloat16, sdpa, padded", "bfloat16, flash", "bfloat16, varlen, padded"):
        value = results[name]  # a way that the CPU cannot go is refused there; a card has to go it
        holds[name] = value < limit if isinstance(value, float) else device.type != "cuda"
    holds |= answers(here, there, inputs)
    traced, right = traces(there, inputs.to(device))
    return {**results, **traced, "holds": {**holds, **right}}


def halves(family: str, device: torch.device, inputs: Inputs) -> Results:
    """How far bfloat16 lies from float32 on the CPU: the CPU's own, and the device's by every way to attention."""
    here, low = small(family, "cpu"), small(family, device, "bfloat16")
    ragged = seen(here, (128, 64))
    exact, exact_ragged = logits_of(here, inputs), logits_of(here, ragged)

    def flash() -> float:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return apart(logits_of(low, inputs), exact)

    return {
        "bfloat16, cpu": apart(logits_of(small(family, "cpu", "bfloat16"), inputs), exact),
        "bfloat16, sdpa": apart(logits_of(low, inputs), exact),
        "bfloat16, sdpa, padded": apart(logits_of(low, ragged), exact_ragged),
        "bfloat16, flash": refused(flash),
        "bfloat16, varlen, padded": refused(
            lambda: apart(logits_of(small(family, device, "bfloat16", "varlen"), ragged), exact_ragged)
        ),
    }


def refused(call: Callable[[], float]) -> float | str:
    """What a way gives, or in words why the device cannot go it."""
    try:
        return call()
    except (InputError, RuntimeError) as error:
        return f"refused: {str(error).splitlines()[0][:200]}"


def answers(here: Model, there: Model, inputs: Inputs) -> dict[str, bool]:
    """The CPU's ids against the device's: the plain loop, steps on fixed tensors, a traced generation, padded rows."""
    settings = here.settings(max_new_tokens=8, ignore_eos=True, temperature=0)
    graphed = replace(settings, recorded=there.device.type == "cuda")
    arguments, options = inputs.to(there.device), {"max_new_tokens": 8, "ignore_eos": True}
    ids = generate(here.root, inputs, settings).ids
    with replays() as replayed:
        fixed = generate(there.root, arguments, graphed).ids
    recurrent = "linear_attention" in there.config.text.layer_types
    with there.generate(arguments, **options) as traced:
        for _ in traced:
            there.layers[0].layer_output.save()
    ragged = seen(here, (128, 64))
    return {
        "ids": generate(there.root, arguments, settings).ids == ids,
        "ids, fixed": fixed == ids,
        "a graph was replayed": there.device.type != "cuda" or recurrent or len(replayed) > 0,
        "ids, traced": traced.ids == ids,
        "ids, padded": generate(there.root, ragged.to(there.device), graphed).ids
        == generate(here.root, ragged, settings).ids,
    }


def traces(model: Model, inputs: Inputs) -> tuple[Results, dict[str, bool]]:
    """Whether a trace that reads everything fused changes nothing, what the step-by-step path differs by, edits."""
    with torch.no_grad():
        logits = model.root(inputs)
    read = model.run(inputs, read=["layers.*.layer_output"], to_end=True)
    full = next(i for i, kind in enumerate(model.config.text.layer_types) if kind == "full_attention")
    address = f"layers.{full}.self_attn.attention_probabilities"
    stepped = model.run(inputs, read=[address], to_end=True)
    with model.trace(inputs):
        model.layers[0].layer_output[:] = 0
        edited = model.logits.save()
    results = {
        "stepwise": apart(stepped.result, logits),
        "pattern sums to one within": float((stepped[address].sum(-1) - 1).abs().max()),
    }
    return results, {
        "trace": bool(torch.equal(read.result, logits)),
        "stepwise": results["stepwise"] < CLOSE,
        "pattern": results["pattern sums to one within"] < CLOSE,
        "edit": apart(edited, logits) > 1e-3,
    }
