"""Parity and speed on an accelerator, in one run of at most ten minutes; nothing is fetched.

    PYTHONPATH=src python benchmarks/gpu.py                           # on a CUDA card: 2B and 8B shapes
    PYTHONPATH=src python benchmarks/gpu.py --device cpu --tiny       # whether the script runs

It needs torch, transformers and this repository, greenlet and PyAV. Random weights. It says for each part what was
found, and ends with a line of JSON. Parts:

- parity: tiny models of every line on the device against the CPU, float32, text and pictures; bfloat16 against
  float32; traces, edits and answers; the step-by-step path against the fused one.
- ceilings: the card's copy and matrix product, measured here.
- prefill with one large picture, and decoding at batch 1, 8 and 64 with and without a graph, beside transformers.

A part that fails is told, and the others run. Parts that would begin after `--limit` seconds are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import cutaway
from cutaway.batch import Inputs
from cutaway.checkpoint.shrink import shrunk
from cutaway.checkpoint.sizes import published
from cutaway.generate.loop import run
from cutaway.subject import Subject

SIZES = {"qwen2_vl": "Qwen2-VL-2B", "qwen2_5_vl": "Qwen2.5-VL-3B", "qwen3_vl": "Qwen3-VL-2B",
         "qwen3_vl_moe": "Qwen3-VL-30B-A3B", "qwen3_5": "Qwen3.5-0.8B", "qwen3_5_moe": "Qwen3.5-35B-A3B"}  # fmt: skip
Found = dict[str, Any]


class Bench:
    """The device, the clock, and what was found so far."""

    def __init__(self, device: str, tiny: bool, limit: float) -> None:
        self.device, self.tiny, self.limit = torch.device(device), tiny, limit
        self.began = time.perf_counter()
        self.found: Found = {}

    def wait(self) -> None:
        """Until the device has done what was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], times: int = 7) -> float:
        """Median time of a call after two that warm up."""
        spent = []
        for _ in range(2 + times):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            spent.append(time.perf_counter() - start)
        return statistics.median(spent[2:])

    def part(self, name: str, work: Callable[[Bench], Found]) -> None:
        """Runs a part, unless time is up; what it raises is told and kept."""
        spent = time.perf_counter() - self.began
        if spent > self.limit:
            self.found[name] = {"left out": f"after {spent:.0f} s"}
        else:
            try:
                self.found[name] = work(self)
            except Exception as error:  # the other parts are worth their time
                traceback.print_exc()
                self.found[name] = {"failed": f"{type(error).__name__}: {error}"}
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        print(f"[{time.perf_counter() - self.began:5.0f} s] {name}: {json.dumps(self.found[name])}", flush=True)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference by the scale of the second, both as float32 on the CPU."""
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def seen(model: Subject, rows: int = 2, side: int = 128, words: int = 12) -> Inputs:
    """A batch of one picture a row and a few words, as ids: no tokenizer is needed."""
    vision, config = model.config.vision, model.config
    patch, fold = vision.patch_size, vision.spatial_merge_size
    across = max(fold, side // (patch * fold) * fold)
    count = (across // fold) ** 2
    row = [config.vision_start_token_id, *[config.image_token_id] * count, config.vision_end_token_id]
    row = [*range(1, words // 2 + 1), *row, *range(1, words - words // 2 + 1)]
    width = vision.in_channels * vision.temporal_patch_size * patch**2
    patches = torch.randn(rows * across**2, width, generator=torch.Generator().manual_seed(0))
    return model.prepare({"input_ids": torch.tensor([row] * rows), "pixel_values": patches,
                          "image_grid_thw": torch.tensor([[1, across, across]] * rows)})  # fmt: skip


def moved(model: Subject, device: torch.device, dtype: torch.dtype = torch.float32) -> Subject:
    """The same weights on another device."""
    copy = cutaway.random(SHRUNK[model.config.line], small=True, device=device, dtype=dtype)
    copy.root.load_state_dict(model.root.state_dict())
    return copy


SHRUNK: dict[str, Any] = {line: published(size) for line, size in SIZES.items()}


def parity(bench: Bench) -> Found:
    """Every line: logits and answers on the device against the CPU, and the traced and stepwise paths against both."""
    found: Found = {}
    for line in SIZES:
        here = cutaway.random(SHRUNK[line], small=True, device="cpu", dtype="float32")
        there = moved(here, bench.device)
        inputs = seen(here)
        with torch.no_grad():
            logits, far = here.root(inputs), there.root(inputs.to(bench.device))
        settings = here.settings(max_new_tokens=8, ignore_eos=True, temperature=0)
        low = moved(here, bench.device, torch.bfloat16)
        with torch.no_grad():
            coarse = low.root(inputs.to(bench.device))
        found[line] = {
            "logits": apart(far, logits),
            "ids equal": run(there.root, inputs.to(bench.device), settings).ids == run(here.root, inputs, settings).ids,
            "bfloat16": apart(coarse, logits),
            **traces(there, inputs.to(bench.device), far),
        }
    return found


def traces(model: Subject, inputs: Inputs, logits: Tensor) -> Found:
    """Whether a trace that reads everything fused changes nothing, and what the step-by-step path differs by."""
    read = model.run(inputs, read=["layers.*.layer_output"], to_end=True)
    full = next(i for i, kind in enumerate(model.config.text.layer_types) if kind == "full_attention")
    address = f"layers.{full}.self_attn.attention_probabilities"
    stepped = model.run(inputs, read=[address], to_end=True)
    with model.trace(inputs):
        model.layers[0].layer_output[:] = 0
        edited = model.logits.save()
    return {
        "trace equal": bool(torch.equal(read.result, logits)),
        "stepwise": apart(stepped.result, logits),
        "pattern sums to one": float((stepped[address].sum(-1) - 1).abs().max()),
        "an edit acts": apart(edited, logits) > 1e-3,
    }


def ceilings(bench: Bench) -> Found:
    """Bytes a second of a copy, and operations a second of a bfloat16 product."""
    size = 2**22 if bench.tiny else 2**30
    source = torch.ones(size, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    side = 256 if bench.tiny else 8192
    matrix = torch.ones(side, side, dtype=torch.bfloat16, device=bench.device)
    copied = bench.seconds(lambda: target.copy_(source))
    product = bench.seconds(lambda: matrix @ matrix)
    return {"copy GB/s": 4 * size / copied / 1e9, "product TFLOP/s": 2 * side**3 / product / 1e12}


def filled(size: str, device: torch.device) -> Subject:
    """A published size, its weights drawn on the device itself: the CPU would take minutes for 8B."""
    ours = cutaway.load(size, dispatch=False)
    ours.root.to_empty(device=device).to(torch.bfloat16)
    if ours.config.tie_word_embeddings:
        ours.root.lm_head.weight = ours.language_model.embed_tokens.weight
    for name, parameter in ours.root.named_parameters():
        parameter.data.normal_(0, 0.02) if parameter.dim() > 1 else parameter.data.fill_("norm" in name)
    return ours


def shape(bench: Bench, size: str) -> tuple[Subject, Any]:
    """A published size with random bfloat16 weights in both libraries; cut down for `--tiny`."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = dict(shrunk(published(size))) if bench.tiny else published(size)
    ours = cutaway.random(config, device=bench.device, dtype="bfloat16") if bench.tiny else filled(size, bench.device)
    kind = AutoConfig.for_model(**config)
    with bench.device:
        theirs = AutoModelForImageTextToText.from_config(kind, attn_implementation="sdpa", dtype=torch.bfloat16)
    theirs.load_state_dict(ours.root.state_dict(), strict=False, assign=True)
    theirs = theirs.eval()
    theirs.generation_config.eos_token_id = None
    return ours, theirs


def large(bench: Bench, size: str) -> Found:
    """Prefill with one large picture, and decoding at three batches, beside transformers and the ceilings."""
    ours, theirs = shape(bench, size)
    inputs = seen(ours, 1, 64 if bench.tiny else 1536)
    given = {**inputs, "pixel_values": inputs["pixel_values"].to(torch.bfloat16)}
    with torch.inference_mode():
        mine = bench.seconds(lambda: ours.root(inputs, last_only=True))
        other = bench.seconds(lambda: theirs(**given, logits_to_keep=1, use_cache=False))
    weights = sum(p.numel() * p.element_size() for p in ours.language_model.parameters())
    count = sum(p.numel() for p in ours.language_model.layers.parameters())
    found: Found = {
        "prefill": {"tokens": inputs.input_ids.shape[1], "ours": mine, "transformers": other, "ratio": mine / other,
                    "text model TFLOP": 2 * count * inputs.input_ids.shape[1] / 1e12},
    }  # fmt: skip
    for batch in (1, 8, 64):
        found[f"decode, batch {batch}"] = decode(bench, ours, theirs, batch, weights)
    return found


def decode(bench: Bench, ours: Subject, theirs: Any, batch: int, weights: int) -> Found:
    """Seconds a token: ours, ours as a graph, transformers' generate; bytes a second against the copy's."""
    inputs = seen(ours, batch, 64)
    tokens = 4 if bench.tiny else 32
    settings = ours.settings(max_new_tokens=tokens, ignore_eos=True, temperature=0)
    once = replace(settings, max_new_tokens=1)
    given = {**inputs, "pixel_values": inputs["pixel_values"].to(torch.bfloat16)}

    def answer(count: int) -> Tensor:
        return theirs.generate(**given, max_new_tokens=count, do_sample=False, pad_token_id=0)

    mine = bench.seconds(lambda: run(ours.root, inputs, settings), 3)
    mine -= bench.seconds(lambda: run(ours.root, inputs, once), 3)
    other = bench.seconds(lambda: answer(tokens), 3) - bench.seconds(lambda: answer(1), 3)
    step = mine / (tokens - 1)
    found = {"ours, s a token": step, "transformers, s a token": other / (tokens - 1), "ratio": mine / other,
             "GB/s of weights": weights / step / 1e9}  # fmt: skip
    copy = bench.found.get("ceilings", {}).get("copy GB/s")
    if copy:
        found["part of the copy"] = found["GB/s of weights"] / copy
    graph = bench.seconds(lambda: run(ours.root, inputs, settings, fixed=True), 3)
    graph = (graph - bench.seconds(lambda: run(ours.root, inputs, once), 3)) / (tokens - 1)
    same = run(ours.root, inputs, settings, fixed=True).ids == run(ours.root, inputs, settings).ids
    found |= {"fixed, s a token": graph, "fixed ids equal": same}
    return found | ({"fixed, part of the copy": weights / graph / 1e9 / copy} if copy else {})


def main() -> None:
    """Runs every part and prints what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models cut down to a million weights")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which no part begins")
    given = parser.parse_args()
    bench = Bench(given.device, given.tiny, given.limit)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}", flush=True)
    bench.part("parity", parity)
    bench.part("ceilings", ceilings)
    for size in ("Qwen3-VL-2B", "Qwen3-VL-8B"):
        bench.part(size, lambda bench, size=size: large(bench, size))
    print(json.dumps({"device": name, "torch": torch.__version__, **bench.found}))


if __name__ == "__main__":
    main()
