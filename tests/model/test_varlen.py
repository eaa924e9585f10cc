"""The packed kernel's way through the model: what is packed and put back, with a plain loop in the kernel's place.

The kernel itself runs on CUDA alone; `benchmarks/gpu.py` compares it there.
"""

from __future__ import annotations

import sys
import types

import families
import parity
import pytest
import torch
import torch.nn.functional as F

import cutaway
from cutaway.errors import InputError
from cutaway.generate.loop import generate
from cutaway.model import varlen
from cutaway.trace.run import run_values

CALLS: list[int] = []
"""The longest segment of each call of the kernel."""


def plain(queries, keys, values, ends, longest, causal):
    """What the kernel is said to do, a segment at a time; counts how often it was asked."""
    CALLS.append(longest)
    assert ends.dtype == torch.int32
    assert longest == int(ends.diff().max())
    parts = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (queries, keys, values))
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=causal)[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def on_the_cpu(monkeypatch):
    CALLS.clear()
    monkeypatch.setattr(varlen, "kernel", plain)
    monkeypatch.setattr(varlen, "check", lambda x: None)


def mixed(family: str):
    """The family's case with rows of several lengths, each with images of other sizes."""
    return families.prepared(family, "batch")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["qwen3_vl", *families.FAMILIES])
def test_a_padded_batch_of_images_has_the_same_logits(family: str, side: str, on_the_cpu) -> None:
    inputs = mixed(family)
    assert not bool(inputs.attention_mask.all())
    inputs = inputs if side == "left" else parity.right_padded(inputs)
    fused, packed = (parity.tiny(family, attn_implementation=name) for name in ("sdpa", "varlen"))
    with torch.no_grad():
        expected, logits = fused(inputs), packed(inputs)
    tokens = inputs.attention_mask.bool()
    assert parity.difference(logits[tokens], expected[tokens]) < 1e-5
    full = sum(kind == "full_attention" for kind in packed.config.text.layer_types)
    assert len(CALLS) == full + packed.config.vision.num_layers


def test_the_answer_is_the_same_and_its_steps_are_not_packed(on_the_cpu) -> None:
    inputs = mixed("qwen3_vl")
    fused, packed = (
        cutaway.Model(parity.tiny("qwen3_vl", attn_implementation=name), None) for name in ("sdpa", "varlen")
    )
    settings = fused.settings(max_new_tokens=5, ignore_eos=True, temperature=0)
    ids = generate(packed.root, inputs, settings).ids
    calls = len(CALLS)
    assert ids == generate(fused.root, inputs, settings).ids
    assert calls == packed.config.text.num_layers + packed.config.vision.num_layers


def test_a_pattern_that_is_asked_for_is_computed_step_by_step(on_the_cpu) -> None:
    inputs = mixed("qwen3_vl")
    fused, packed = (parity.tiny("qwen3_vl", attn_implementation=name) for name in ("sdpa", "varlen"))
    read = ["language_model.layers.1.self_attn.attention_probabilities", "visual.blocks.0.attn.attention_patterns"]
    result, expected = (run_values(model, lambda model=model: model(inputs), read=read) for model in (packed, fused))
    tokens = inputs.attention_mask.bool()
    pattern, other = result[read[0]].transpose(1, 2)[tokens], expected[read[0]].transpose(1, 2)[tokens]
    assert parity.difference(pattern, other) < 1e-5
    assert len(result[read[1]]) == len(expected[read[1]])


def test_gradients_pass_through_the_packing(on_the_cpu) -> None:
    inputs = mixed("qwen3_vl")
    result = []
    for name in ("sdpa", "varlen"):
        model = parity.tiny("qwen3_vl", attn_implementation=name)
        model(inputs)[inputs.attention_mask.bool()].square().sum().backward()
        result.append(model.model.language_model.layers[0].self_attn.q_proj.weight.grad)
    assert parity.difference(result[1], result[0]) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cpu_is_refused_with_what_to_do(dtype: torch.dtype) -> None:
    model = parity.tiny("qwen3_vl", attn_implementation="varlen", dtype=dtype)
    with pytest.raises(InputError, match=r'"varlen" is a kernel for CUDA devices .* on cpu. Load it with .*"sdpa"'):
        model(mixed("qwen3_vl"))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("windowed", [True, False])
def test_causality_is_said_as_the_installed_torch_takes_it(monkeypatch, windowed: bool, causal: bool) -> None:
    seen = {}

    def of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        seen["causal"] = is_causal
        return query

    def later(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        seen["causal"] = window_size == (-1, 0)
        return query

    module = types.ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = later if windowed else of_2_10  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    x = torch.randn(5, 4, 8)
    keys = torch.randn(5, 2, 8)
    assert varlen.segments(x, keys, keys, [0, 2, 5], causal=causal).shape == x.shape
    assert seen["causal"] is causal
