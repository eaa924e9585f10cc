"""Steps on tensors that stay in place: the plain loop's tokens, and the plain loop where they cannot be had."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch

from cutaway.errors import InputError
from cutaway.generate import loop
from cutaway.generate.loop import Generation, forward, run
from cutaway.generate.settings import Settings
from cutaway.model.cache import Cache, FixedCache

STEPS = Settings(max_new_tokens=8)


@pytest.fixture(scope="module")
def model():
    return parity.tiny("qwen3_vl")


@pytest.fixture
def taken(monkeypatch):
    """The steps that were made in place."""
    made = []

    class Counted(loop.FixedSteps):
        def __call__(self, batch):
            made.append(batch)
            return super().__call__(batch)

    monkeypatch.setattr(loop, "FixedSteps", Counted)
    return made


@pytest.mark.parametrize("name", parity.cases("qwen3_vl"))
def test_the_same_tokens(model, taken, name) -> None:
    inputs, expected = parity.case("qwen3_vl", name)
    plain, fixed = run(model, inputs, STEPS), run(model, inputs, STEPS, fixed=True)
    assert fixed.ids == plain.ids == expected["out.greedy_ids"].tolist()
    for mine, theirs in zip(fixed.logprobs, plain.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert len(taken) == 7


def test_sampled_answers_that_end_by_themselves(model) -> None:
    inputs, _ = parity.case("qwen3_vl", "batch")
    drawn = replace(STEPS, do_sample=True, temperature=0.7, top_k=20, seed=3)
    ends = replace(drawn, eos_token_id=(run(model, inputs, drawn).ids[0][2],))
    plain, fixed = run(model, inputs, ends), run(model, inputs, ends, fixed=True)
    assert (fixed.ids, fixed.finish_reasons) == (plain.ids, plain.finish_reasons)
    assert "eos" in fixed.finish_reasons


def test_a_hook_a_hybrid_and_one_token_take_the_plain_way(model, taken) -> None:
    inputs, expected = parity.case("qwen3_vl", "text")
    seen = []
    handle = model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output))
    assert run(model, inputs, STEPS, fixed=True).ids == expected["out.greedy_ids"].tolist()
    handle.remove()
    assert len(seen) == 8
    assert len(run(model, inputs, replace(STEPS, max_new_tokens=1), fixed=True).ids[0]) == 1
    hybrid = parity.tiny("qwen3_5")
    inputs, _ = parity.case("qwen3_5", "text")
    assert run(hybrid, inputs, STEPS, fixed=True).ids == run(hybrid, inputs, STEPS).ids
    assert not taken


def test_places_never_written_do_not_count(model) -> None:
    """What an allocation left behind may be NaN, which a weight of zero would not hide."""
    inputs, _ = parity.case("qwen3_vl", "text")
    generation = Generation(model, inputs, STEPS)
    forward(model, generation)
    for buffer in (*generation.cache._keys, *generation.cache._values):
        buffer[:, :, generation.cache.length :] = float("nan")
    steps = loop.FixedSteps(model, generation.cache, generation.next_inputs())
    with torch.no_grad():
        assert bool(steps(generation.next_inputs()).isfinite().all())


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(InputError, match="keys and values of every layer"):
        FixedCache(Cache(2, 8))
