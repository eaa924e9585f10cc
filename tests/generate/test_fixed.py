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


def recorded(settings: Settings) -> Settings:
    return replace(settings, recorded=True)


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
    plain, fixed = run(model, inputs, STEPS), run(model, inputs, recorded(STEPS))
    assert fixed.ids == plain.ids == expected["out.greedy_ids"].tolist()
    for mine, theirs in zip(fixed.logprobs, plain.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert len(taken) == 7


def test_sampled_answers_that_end_by_themselves(model) -> None:
    inputs, _ = parity.case("qwen3_vl", "batch")
    drawn = replace(STEPS, do_sample=True, temperature=0.7, top_k=20, seed=3)
    ends = replace(drawn, eos_token_id=(run(model, inputs, drawn).ids[0][2],))
    plain, fixed = run(model, inputs, ends), run(model, inputs, recorded(ends))
    assert (fixed.ids, fixed.finish_reasons) == (plain.ids, plain.finish_reasons)
    assert "eos" in fixed.finish_reasons


def test_a_hook_a_hybrid_and_one_token_take_the_plain_way(model, taken) -> None:
    inputs, expected = parity.case("qwen3_vl", "text")
    seen = []
    handle = model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output))
    assert run(model, inputs, recorded(STEPS)).ids == expected["out.greedy_ids"].tolist()
    handle.remove()
    assert len(seen) == 8
    assert len(run(model, inputs, recorded(replace(STEPS, max_new_tokens=1))).ids[0]) == 1
    hybrid = parity.tiny("qwen3_5")
    inputs, _ = parity.case("qwen3_5", "text")
    assert run(hybrid, inputs, recorded(STEPS)).ids == run(hybrid, inputs, STEPS).ids
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
    assert after.ids == plain.ids
    assert after.logprobs[0] == pytest.approx(plain.logprobs[0], abs=1e-4)
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
