"""Recorded steps: the plain loop's tokens and bits, and the plain loop where they cannot be had."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch

from cutaway.errors import InputError
from cutaway.generate import loop
from cutaway.generate.cuda_graph import FixedSteps
from cutaway.generate.loop import Generation, forward, run
from cutaway.generate.settings import Settings
from cutaway.model.cache import Cache, FixedCache

STEPS = Settings(max_new_tokens=8)


def recorded(settings: Settings) -> Settings:
    return replace(settings, recorded=True)


@pytest.fixture(scope="module")
def model():
    return parity.tiny("qwen3_vl")


@pytest.fixture
def taken(monkeypatch):
    """The steps that were replayed."""
    made, recording = [], loop.recording

    def counted(*given):
        steps = recording(*given)
        return None if steps is None else lambda batch: made.append(batch) or steps(batch)

    monkeypatch.setattr(loop, "recording", counted)
    return made


@pytest.fixture
def in_place(monkeypatch):
    """What a GPU records, run unrecorded: steps on tensors that stay in place."""
    monkeypatch.setattr(loop, "recording", FixedSteps)


@pytest.mark.parametrize("name", parity.cases("qwen3_vl"))
def test_the_same_tokens_and_bits(model, taken, name) -> None:
    inputs, expected = parity.case("qwen3_vl", name)
    plain, replayed = run(model, inputs, STEPS), run(model, inputs, recorded(STEPS))
    assert replayed == plain
    assert replayed.ids == expected["out.greedy_ids"].tolist()
    assert len(taken) == 7


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_answers_of_every_family_and_dtype(family, dtype, taken) -> None:
    """A trace of the second token is good for the hundredth."""
    model, (inputs, _) = parity.tiny(family).to(dtype), parity.case(family, "text")
    settings = Settings(max_new_tokens=100, ignore_eos=True)
    assert run(model, inputs, recorded(settings)) == run(model, inputs, settings)
    assert len(taken) == 99


@pytest.mark.parametrize("name", parity.cases("qwen3_vl"))
def test_steps_in_place_have_the_same_tokens(model, in_place, name) -> None:
    inputs, expected = parity.case("qwen3_vl", name)
    plain, fixed = run(model, inputs, STEPS), run(model, inputs, recorded(STEPS))
    assert fixed.ids == plain.ids == expected["out.greedy_ids"].tolist()
    for mine, theirs in zip(fixed.logprobs, plain.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_sampled_answers_that_end_by_themselves(model) -> None:
    inputs, _ = parity.case("qwen3_vl", "batch")
    drawn = replace(STEPS, do_sample=True, temperature=0.7, top_k=20, seed=3)
    ends = replace(drawn, eos_token_id=(run(model, inputs, drawn).ids[0][2],))
    plain, fixed = run(model, inputs, ends), run(model, inputs, recorded(ends))
    assert (fixed.ids, fixed.finish_reasons) == (plain.ids, plain.finish_reasons)
    assert "eos" in fixed.finish_reasons


def test_a_hook_a_hybrid_a_mixture_and_one_token_take_the_plain_way(model, taken) -> None:
    inputs, expected = parity.case("qwen3_vl", "text")
    seen = []
    handle = model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output))
    assert run(model, inputs, recorded(STEPS)).ids == expected["out.greedy_ids"].tolist()
    handle.remove()
    assert len(seen) == 8
    assert len(run(model, inputs, recorded(replace(STEPS, max_new_tokens=1))).ids[0]) == 1
    longer = Settings(max_new_tokens=40, ignore_eos=True)
    for family in ("qwen3_5", "qwen3_vl_moe"):
        inputs, _ = parity.case(family, "text")
        assert run(parity.tiny(family), inputs, recorded(longer)) == run(parity.tiny(family), inputs, longer)
    assert not taken


def test_a_part_that_decides_by_what_it_computes_takes_the_plain_way(taken) -> None:
    """A trace would keep the decision of the token that it was made with."""
    model, (inputs, _) = parity.tiny("qwen3_vl"), parity.case("qwen3_vl", "text")
    mlp = model.layers[1].mlp
    kept = mlp.forward
    mlp.forward = lambda x: kept(x) * (1 + int(x.abs().sum() * 1000) % 7)
    assert run(model, inputs, recorded(STEPS)) == run(model, inputs, STEPS)
    assert not taken


def test_a_part_that_no_trace_can_hold_takes_the_plain_way(taken) -> None:
    model, (inputs, _) = parity.tiny("qwen3_vl"), parity.case("qwen3_vl", "text")
    mlp = model.layers[1].mlp
    kept = mlp.forward

    def untraceable(x):
        if torch._C._get_tracing_state() is not None:
            raise TypeError("must be bool, not Tensor")
        return kept(x)

    mlp.forward = untraceable
    assert run(model, inputs, recorded(STEPS)) == run(model, inputs, STEPS)
    assert not taken


def test_a_hook_set_between_two_pieces_sees_every_step_from_there(taken) -> None:
    model, (inputs, expected) = parity.tiny("qwen3_vl"), parity.case("qwen3_vl", "text")
    ids, seen = expected["out.greedy_ids"][0].tolist(), []

    class Numbers:
        """A tokenizer that says each id as it comes."""

        def stream(self, skip_special_tokens: bool = True):
            return self

        def push(self, token: int) -> str:
            return f"{token} "

        def finish(self) -> str:
            return ""

    generation = Generation(model, inputs, recorded(STEPS), tokenizer=Numbers())
    for step, _ in enumerate(loop.pieces(model, generation)):
        if step == 3:
            handle = model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output))
        if step == 5:
            handle.remove()
    assert generation.result == run(model, inputs, STEPS, tokenizer=Numbers())
    assert generation.result.ids == [ids]
    assert (len(taken), len(seen)) == (3, 2)
    assert generation.cache.length == inputs.input_ids.shape[1] + 7


def test_places_never_written_do_not_count(model) -> None:
    """What an allocation left behind may be NaN, which a weight of zero would not hide."""
    inputs, _ = parity.case("qwen3_vl", "text")
    generation = Generation(model, inputs, STEPS)
    forward(model, generation)
    for buffer in (*generation.cache._keys, *generation.cache._values):
        buffer[:, :, generation.cache.length :] = float("nan")
    steps = FixedSteps(model, generation.cache, generation.next_inputs())
    with torch.no_grad():
        assert bool(steps(generation.next_inputs()).isfinite().all())


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(InputError, match="keys and values of every layer"):
        FixedCache(Cache(2, 8))


@pytest.fixture
def traces(monkeypatch):
    """The scripts that were made."""
    made, trace = [], torch.jit.trace

    def counted(*args, **options):
        made.append(trace(*args, **options))
        return made[-1]

    monkeypatch.setattr(torch.jit, "trace", counted)
    return made


def test_a_recording_serves_the_next_answer_of_about_that_length(traces) -> None:
    model = parity.tiny("qwen3_vl")
    inputs, expected = parity.case("qwen3_vl", "text")
    for tokens in (8, 7, 8):
        settings = recorded(replace(STEPS, max_new_tokens=tokens))
        assert run(model, inputs, settings).ids[0] == expected["out.greedy_ids"][0, :tokens].tolist()
    assert len(traces) == 1
    batch, expected = parity.case("qwen3_vl", "batch")
    assert run(model, batch, recorded(STEPS)).ids == expected["out.greedy_ids"].tolist()
    assert len(traces) == 2
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("change", ["a weight", "in place", "a module", "a setting", "a forward"])
def test_a_changed_model_is_recorded_anew(change) -> None:
    model = parity.tiny("qwen3_vl")
    inputs, _ = parity.case("qwen3_vl", "text")
    before = run(model, inputs, recorded(STEPS))
    attention = model.layers[0].self_attn
    if change == "a weight":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().roll(1, 0))
    elif change == "in place":
        model.lm_head.weight.data.copy_(model.lm_head.weight.roll(1, 0))
    elif change == "a module":
        attention.q_norm = torch.nn.Identity()
    elif change == "a setting":
        attention.scale *= 20
    else:
        kept = attention.forward
        attention.forward = lambda *args, **options: -kept(*args, **options)
    plain, after = run(model, inputs, STEPS), run(model, inputs, recorded(STEPS))
    assert after == plain
    assert after.logprobs[0] != pytest.approx(before.logprobs[0], abs=1e-4)


def test_a_subject_records_when_it_is_asked_to(nano, red, taken) -> None:
    asked = {"images": red, "max_new_tokens": 4, "ignore_eos": True, "temperature": 0}
    prompt = nano.prompt("What color is it?", images=1)
    plain = nano.generate(prompt, **asked).ids
    assert not taken
    assert nano.generate(prompt, **asked, recorded=True).ids == plain
    assert len(taken) == 3
    said = nano.ask("What color is it?", images=red, recorded=True, max_new_tokens=4)
    assert "".join(nano.ask("What color is it?", images=red, recorded=True, max_new_tokens=4, stream=True)) == said
    taken.clear()
    edited = nano.generate(prompt, **asked, recorded=True, edit={"layers.2.layer_output": lambda x: x * 0})
    assert edited.ids == nano.generate(prompt, **asked, edit={"layers.2.layer_output": lambda x: x * 0}).ids
    with nano.generate(prompt, **asked, recorded=True) as steps:
        assert len([step.logits.save() for step in steps]) == 4
    assert steps.ids == plain
    assert not taken
