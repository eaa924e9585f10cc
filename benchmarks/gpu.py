"""Parity and speed on an accelerator, in one run of at most ten minutes; nothing is fetched.

    PYTHONPATH=src python3 -m benchmarks.gpu                           # on a CUDA card: 2B and 8B shapes
    PYTHONPATH=src python3 -m benchmarks.gpu --device cpu --tiny       # whether the script runs

It needs torch (2.10 or newer), transformers and this repository, greenlet and PyAV. Random weights. It says for each
part what was found, and ends with a line of JSON. Parts:

- parity: tiny models of every family on the device against the CPU (`gpu_parity.py` says what).
- ceilings: the card's copy and matrix product, measured here.
- prefill with one large image, and decoding at batch 1, 8 and 64 with and without a graph, beside transformers; for
  the 2B and the 8B shape.

A part that fails is told, and the others run. What would begin after `--limit` seconds is left out.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu_parity import SIZES, Results, apart, parity, replays, seen
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.published_sizes import published
from cutaway.checkpoint.shrink import shrunk
from cutaway.generate.loop import generate
from cutaway.model.build import build

BANDWIDTH, FASTER = 0.6, 5.0
"""At batch 1: the part of the copy's speed that weights are to be read at, and how many times transformers' speed."""


class Bench:
    """The device, the clock, and what was found so far."""

    def __init__(self, device: str, tiny: bool, limit: float) -> None:
        self.device, self.tiny, self.limit = torch.device(device), tiny, limit
        self.began = time.perf_counter()
        self.results: Results = {}

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began

    def wait(self) -> None:
        """Until the device has done what was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], times: int = 7, warm: int = 2) -> float:
        """Median time of a call after some that warm up."""
        spent = []
        for _ in range(warm + times):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            spent.append(time.perf_counter() - start)
        return statistics.median(spent[warm:])

    def part(self, name: str, work: Callable[[], Results]) -> Results:
        """Runs a part, unless time is up; what it raises is told and kept."""
        if self.spent > self.limit:
            results: Results = {"left out": f"after {self.spent:.0f} s"}
        else:
            try:
                results = work()
            except Exception as error:  # the other parts are worth their time
                traceback.print_exc()
                results = {"failed": f"{type(error).__name__}: {error}"[:500]}
        if self.device.type == "cuda":
            results["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.results[name] = results
        print(f"[{self.spent:5.0f} s] {name}: {json.dumps(results)}", flush=True)
        return results


def ceilings(bench: Bench) -> Results:
    """Bytes a second of a copy, read and written, and operations a second of a bfloat16 product of random numbers."""
    size = 2**22 if bench.tiny else 2**31
    source = torch.ones(size, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    side = 256 if bench.tiny else 8192
    matrix = torch.randn(side, side, dtype=torch.bfloat16, device=bench.device)
    copied = bench.seconds(lambda: target.copy_(source))
    product = bench.seconds(lambda: matrix @ matrix)
    return {"copy GB/s": 4 * size / copied / 1e9, "product TFLOP/s": 2 * side**3 / product / 1e12}


def filled(config: dict[str, Any], device: torch.device) -> Model:
    """A config's model in bfloat16, its weights drawn on the device itself: the CPU would take minutes for 8B."""
    with torch.device("meta"):
        ours = Model(build(read_config(config)), None)
    ours.root.to_empty(device=device).to(torch.bfloat16)
    if ours.config.tie_word_embeddings:
        ours.root.lm_head.weight = ours.language_model.embed_tokens.weight
    torch.manual_seed(0)
    for name, parameter in ours.root.named_parameters():
        parameter.data.normal_(0, 0.02) if parameter.dim() > 1 else parameter.data.fill_("norm" in name)
    return ours


def shape(bench: Bench, size: str) -> tuple[Model, Any]:
    """A published size with the same random bfloat16 weights in both libraries; cut down for `--tiny`."""
    config = dict(shrunk(published(size))) if bench.tiny else published(size)
    ours = filled(config, bench.device)
    kind = transformers.AutoConfig.for_model(**config)
    with bench.device:
        theirs = transformers.AutoModelForImageTextToText.from_config(
            kind, attn_implementation="sdpa", dtype=torch.bfloat16
        )
    note = theirs.load_state_dict(ours.root.state_dict(), strict=False, assign=True)
    if left := [name for name in (*note.missing_keys, *note.unexpected_keys) if not name.startswith("lm_head")]:
        raise RuntimeError(f"transformers {transformers.__version__} names weights otherwise: {left[:5]}")
    theirs.tie_weights()
    theirs = theirs.eval()
    theirs.generation_config.eos_token_id = None
    return ours, theirs


def accepted(theirs: Any, inputs: Inputs) -> dict[str, Tensor]:
    """What this version of transformers takes of a batch, images in bfloat16."""
    known = inspect.signature(type(theirs).forward).parameters
    arguments = {name: value for name, value in inputs.items() if name in known}
    return {**arguments, "pixel_values": arguments["pixel_values"].to(torch.bfloat16)}


def prefill(bench: Bench, ours: Model, theirs: Any) -> Results:
    """One large image and a few words, beside transformers and the product's ceiling."""
    inputs = seen(ours, [64 if bench.tiny else 1536])
    arguments = accepted(theirs, inputs)
    with torch.inference_mode():
        difference = apart(ours.root(inputs, last_only=True), theirs(**arguments, logits_to_keep=1).logits)
        mine = bench.seconds(lambda: ours.root(inputs, last_only=True))
        other = bench.seconds(lambda: theirs(**arguments, logits_to_keep=1, use_cache=False))
    tokens, patches = inputs.input_ids.shape[1], inputs["pixel_values"].shape[0]
    work = products(ours, tokens, patches)
    results = {"tokens": tokens, "patches": patches, "ours, s": mine, "transformers, s": other, "ratio": mine / other,
             "difference": difference, "TFLOP/s": work / mine / 1e12}  # fmt: skip
    ceiling = bench.results.get("ceilings", {}).get("product TFLOP/s")
    return results | ({"part of the product": results["TFLOP/s"] / ceiling} if ceiling else {})


def products(model: Model, tokens: int, patches: int) -> float:
    """Operations of a prefill: every weight of layers once a token or patch, and attention's two products."""
    text, vision = model.config.text, model.config.vision
    blocks = sum(p.numel() for p in model.language_model.layers.parameters())
    encoder = sum(p.numel() for p in model.vision.blocks.parameters())
    attention = 2 * text.num_layers * text.num_heads * text.head_dim * tokens**2
    seeing = 4 * vision.num_layers * vision.hidden_size * patches**2
    return 2 * blocks * tokens + 2 * encoder * patches + attention + seeing


def decode(bench: Bench, ours: Model, theirs: Any, batch: int) -> Results:
    """Seconds a token as the difference of a long and a short answer: plain, as a graph, transformers' generate."""
    inputs = seen(ours, [64] * batch)
    arguments = accepted(theirs, inputs)
    few, many = (4, 6) if bench.tiny else (16, 80)
    settings = ours.settings(max_new_tokens=few, ignore_eos=True, temperature=0)
    long = replace(settings, max_new_tokens=many)

    def theirs_of(count: int) -> Tensor:
        return theirs.generate(**arguments, max_new_tokens=count, do_sample=False, pad_token_id=0)

    def a_token(answer: Callable[[int], Any]) -> float:
        spent = [bench.seconds(partial(answer, count), 3, 1) for count in (few, many)]
        return max(spent[1] - spent[0], 1e-9) / (many - few)

    def fixed(count: int) -> Any:
        return generate(
            ours.root, inputs, replace(settings if count == few else long, recorded=ours.device.type == "cuda")
        )

    plain = a_token(lambda count: generate(ours.root, inputs, settings if count == few else long))
    with replays() as replayed:
        graph = a_token(fixed)
    other = a_token(theirs_of)
    weights = sum(p.numel() * p.element_size() for p in ours.language_model.parameters())
    results: Results = {
        "plain, s a token": plain, "graph, s a token": graph, "transformers, s a token": other,
        "times as fast as transformers": other / graph, "graph replays": len(replayed),
        "GB/s of weights": weights / graph / 1e9, "ids equal": fixed(many).ids == generate(ours.root, inputs, long).ids,
    }  # fmt: skip
    if copy := bench.results.get("ceilings", {}).get("copy GB/s"):
        results["part of the copy"] = results["GB/s of weights"] / copy
        if batch == 1:
            results["reached"] = results["part of the copy"] >= BANDWIDTH and other / graph >= FASTER
    return results


def main() -> int:
    """Runs every part and prints what was found; returns how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models cut down to a million weights")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which no part begins")
    parser.add_argument("--families", default=",".join(SIZES), help="families whose parity is looked at")
    arguments = parser.parse_args()
    bench = Bench(arguments.device, arguments.tiny, arguments.limit)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    print(f"{name}, {versions}", flush=True)
    bench.part("parity", lambda: parity(bench.device, arguments.families.split(",")))
    bench.part("ceilings", lambda: ceilings(bench))
    for size in ("Qwen3-VL-2B", "Qwen3-VL-8B"):
        models: list[Any] = []
        bench.part(f"{size}: built", lambda size=size, models=models: models.extend(shape(bench, size)) or {})
        if models:
            bench.part(f"{size}: prefill", partial(prefill, bench, *models))
            for batch in (1, 8, 64):
                bench.part(f"{size}: decode, batch {batch}", partial(decode, bench, *models, batch))
    print(json.dumps({"device": name, **versions, **bench.results}))
    return sum("failed" in results for results in bench.results.values())


if __name__ == "__main__":
    sys.exit(main())
