"""Steps on fixed tensors, as a CUDA graph records them, run here without a recording: the plain loop's tokens."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch

from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.generate.cuda_graph import GraphSteps
from cutaway.generate.loop import Generation, Result, generate, run_step
from cutaway.generate.settings import Settings
from cutaway.model.cache import Cache, FixedCache

STEPS = Settings(max_new_tokens=8)


@pytest.fixture(scope="module")
def model():
    return parity.tiny("qwen3_vl")


def on_fixed_tensors(model, inputs: Inputs, settings: Settings) -> Result:
    """A generation whose steps after the prompt run on tensors that stay in place."""
    generation = Generation(model, inputs, settings)
    with torch.no_grad():
        run_step(model, generation)
        steps = GraphSteps(model, generation.cache, generation.next_inputs())
        while (batch := generation.next_inputs()) is not None:
            generation.accept(steps(batch))
    assert generation.cache.length == inputs.input_ids.shape[1] + generation.step - 1
    return generation.result


@pytest.mark.parametrize("name", parity.cases("qwen3_vl"))
def test_steps_on_fixed_tensors_choose_the_same_tokens(model, name) -> None:
    inputs, expected = parity.case("qwen3_vl", name)
    plain, fixed = generate(model, inputs, STEPS), on_fixed_tensors(model, inputs, STEPS)
    assert fixed.ids == plain.ids == expected["out.greedy_ids"].tolist()
    for ours, theirs in zip(fixed.logprobs, plain.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_long_answers_of_every_family_with_keys_alone(family) -> None:
    model, (inputs, _) = parity.tiny(family), parity.case(family, "text")
    settings = Settings(max_new_tokens=60, ignore_eos=True)
    assert on_fixed_tensors(model, inputs, settings).ids == generate(model, inputs, settings).ids


def test_sampled_answers_that_end_by_themselves(model) -> None:
    inputs, _ = parity.case("qwen3_vl", "batch")
    drawn = replace(STEPS, do_sample=True, temperature=0.7, top_k=20, seed=3)
    ends = replace(drawn, eos_token_id=(generate(model, inputs, drawn).ids[0][2],))
    plain, fixed = generate(model, inputs, ends), on_fixed_tensors(model, inputs, ends)
    assert (fixed.ids, fixed.finish_reasons) == (plain.ids, plain.finish_reasons)
    assert "eos" in fixed.finish_reasons


def test_positions_never_written_do_not_count(model) -> None:
    """What an allocation left behind may be NaN, which a weight of zero would not hide."""
    inputs, _ = parity.case("qwen3_vl", "text")
    generation = Generation(model, inputs, STEPS)
    run_step(model, generation)
    for buffer in generation.cache.buffers:
        buffer[:, :, generation.cache.length :] = float("nan")
    steps = GraphSteps(model, generation.cache, generation.next_inputs())
    with torch.no_grad():
        assert bool(steps(generation.next_inputs()).isfinite().all())


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(InputError, match="keys and values of every layer"):
        FixedCache(Cache(2, 8))


def test_a_model_on_a_cpu_refuses_to_record_before_anything_runs(nano, red) -> None:
    prompt = nano.prompt("What color is it?", images=1)
    for call in (nano.generate, nano.ask):
        with pytest.raises(InputError, match=r"recorded=True .* needs a model on a CUDA device; got one on cpu"):
            call(prompt, images=[red], recorded=True)
