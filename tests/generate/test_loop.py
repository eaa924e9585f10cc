"""The step loop on a scripted model: when rows end, what is fed, what comes back, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutaway.errors import InputError, LimitError
from cutaway.generate.loop import Generation, generate, run_step, stream
from cutaway.generate.settings import Settings
from tests.generate.scripted import END, PAD, VOCAB, Bytes, Scripted, spelled, words

SETTINGS = Settings(max_new_tokens=6, eos_token_id=(END, 2), pad_token_id=PAD)


def test_samples_end_each_for_its_own_reason_and_are_fed_padding() -> None:
    model = Scripted([50, 51, END], spelled("ab;cde"), [60])
    settings = replace(SETTINGS, stop=(";",))
    result = generate(model, words([5, 6, 7], [8], [9, 9]), settings, tokenizer=Bytes())
    assert result.ids == [[50, 51, END], spelled("ab;"), [60] * 6]
    assert result.finish_reasons == ["eos", "stop", "length"]
    assert result.texts is not None
    assert result.texts[1] == "ab"
    fed = [step.input_ids[:, 0].tolist() for step in model.seen[1:]]
    assert fed[2] == [END, spelled(";")[0], 60]
    assert fed[3:] == [[PAD, PAD, 60]] * 2
    assert [len(row) for row in result.logprobs] == [3, 3, 6]
    expected = float(torch.tensor([9.0] + [0.0] * (VOCAB - 1)).log_softmax(0)[0])
    assert result.logprobs[0] == pytest.approx([expected] * 3, rel=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_inputs_of_a_step(side) -> None:
    model = Scripted([50, 51, 52], [60, 61, 62])
    prompt = words([5, 6, 7], [8], padding_side=side)
    generate(model, prompt, replace(SETTINGS, max_new_tokens=3))
    assert model.seen[0] is prompt
    for count, step in enumerate(model.seen[1:], 1):
        assert step.input_ids.tolist() == [[49 + count], [59 + count]]
        assert step.attention_mask.tolist() == [row + [1] * count for row in prompt.attention_mask.tolist()]
        assert step.position_ids.tolist() == [[[2 + count], [count]]] * 3
        assert step.next_position.tolist() == [3 + count, 1 + count]
        assert step.mm_token_type_ids.tolist() == [[0], [0]]
        assert not step.keys() & {"pixel_values", "image_grid_thw"}


def test_the_cache_has_room_and_holds_what_was_fed() -> None:
    generation = Generation(model := Scripted([50, 51, 52]), words([5, 6, 7]), replace(SETTINGS, max_new_tokens=3))
    while run_step(model, generation):
        pass
    assert generation.cache.capacity == 6
    assert generation.cache.length == 5  # the last chosen token is not read


def test_ignore_eos_goes_on() -> None:
    result = generate(Scripted([END]), words([5]), replace(SETTINGS, ignore_eos=True))
    assert result.ids == [[END] * 6]
    assert result.finish_reasons == ["length"]


def test_an_end_token_gives_no_text_and_no_stop_string() -> None:
    result = generate(Scripted([*spelled("ok"), 2]), words([5]), SETTINGS, tokenizer=Bytes())
    assert result.text == "ok"
    assert result.finish_reasons == ["eos"]


def test_the_loop_as_a_caller_turns_it() -> None:
    model, settings = Scripted([50, 51, END]), SETTINGS
    generation = Generation(model, words([5, 6]), settings)
    new = []
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            assert generation.next_inputs() is batch
            new.append(generation.accept(model(batch, cache=generation.cache, last_only=True)).tolist())
    assert new == [[50], [51], [END]]
    assert (generation.step, generation.done) == (3, True)
    with pytest.raises(InputError, match="Every sample has ended"):
        generation.accept(torch.zeros(1, 1, VOCAB))


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_all_positions_are_read_at_the_last_token(side) -> None:
    generation = Generation(Scripted([0]), words([5, 6, 7], [8], padding_side=side), SETTINGS)
    logits = torch.zeros(2, 3, VOCAB)
    logits[0, 2, 77], logits[1, 2 if side == "left" else 0, 88] = 1.0, 1.0
    assert generation.accept(logits).tolist() == [77, 88]


@pytest.mark.parametrize("shape", [(2, 2, VOCAB), (1, 1, VOCAB), (2, VOCAB)])
def test_logits_of_another_shape_are_refused(shape) -> None:
    generation = Generation(Scripted([0]), words([5, 6, 7], [8]), SETTINGS)
    with pytest.raises(InputError, match=r"\[2 1 …\] or \[2 3 …\]"):
        generation.accept(torch.zeros(shape))


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 1}])
def test_nan_is_an_error_and_not_a_token(options) -> None:
    generation = Generation(Scripted([0]), words([5, 6]), replace(SETTINGS, **options))
    with pytest.raises(InputError, match="sample 0 hold NaN at step 0"):
        generation.accept(torch.full((1, 1, VOCAB), torch.nan))


def test_gradients_of_edited_logits_do_not_leak() -> None:
    generation = Generation(Scripted([0]), words([5, 6]), SETTINGS)
    token = generation.accept(torch.zeros(1, 1, VOCAB, requires_grad=True) * 2)
    assert not token.requires_grad
    assert torch.is_grad_enabled()


def test_too_long_is_refused_before_anything_is_computed() -> None:
    model = Scripted([50], max_positions=8)
    with pytest.raises(
        LimitError, match="has 8 positions; this prompt takes 3 and max_new_tokens=6 would take it to 9"
    ):
        generate(model, words([5, 6, 7]), SETTINGS)
    assert not model.seen
    assert generate(model, words([5, 6]), SETTINGS).finish_reasons == ["length"]


def test_wrong_prompts_are_refused() -> None:
    model, good = Scripted([50]), words([5, 6])
    with pytest.raises(InputError, match="begins with the whole prompt"):
        generate(model, replace(good, attention_mask=torch.ones(1, 5, dtype=torch.int64)), SETTINGS)
    with pytest.raises(InputError, match=r"got none for sample\(s\) \[1\]"):
        generate(model, words([5], []), SETTINGS)
    with pytest.raises(InputError, match="no tokenizer to make it"):
        generate(model, good, replace(SETTINGS, stop=("a",)))
    with pytest.raises(InputError, match="one per sample"):
        generate(model, good, replace(SETTINGS, do_sample=True, seed=(1, 2)))
    assert not model.seen


def test_text_needs_a_tokenizer_and_one_row() -> None:
    generation = Generation(Scripted([50]), words([5]), SETTINGS)
    assert generation.result.texts is None
    with pytest.raises(InputError, match="needs a tokenizer"):
        generation.texts()
    with pytest.raises(InputError, match="needs a tokenizer"):
        _ = generation.result.text
    with pytest.raises(InputError, match="got 2 samples"):
        _ = generate(Scripted([50], [51]), words([5], [6]), SETTINGS, tokenizer=Bytes()).text


def test_a_stream_gives_the_text_in_pieces() -> None:
    text = "né中 ok"
    settings = replace(SETTINGS, max_new_tokens=50)
    model = Scripted([*spelled(text), END])
    pieces = list(stream(model, Generation(model, words([5]), settings, tokenizer=Bytes())))
    assert pieces == list(text)


def test_a_stream_checks_at_the_call_and_leaves_the_callers_grad_mode_alone() -> None:
    model = Scripted(spelled("abc"))
    with pytest.raises(InputError, match="got a batch of 2"):
        stream(model, Generation(model, words([5], [6]), SETTINGS, tokenizer=Bytes()))
    for _ in stream(model, Generation(model, words([5]), SETTINGS, tokenizer=Bytes())):
        assert torch.is_grad_enabled()


def test_a_recorded_generation_on_a_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="needs a model on a CUDA device; got one on cpu"):
        Generation(Scripted([5]), words([5]), replace(SETTINGS, recorded=True))


def test_prefill_chunk_reaches_the_model() -> None:
    model = Scripted([50])
    generate(model, words([5, 6]), replace(SETTINGS, prefill_chunk=7, max_new_tokens=2))
    assert model.chunks == [7, 7]


def test_results_so_far() -> None:
    generation = Generation(model := Scripted(spelled("abc")), words([5]), SETTINGS, tokenizer=Bytes())
    run_step(model, generation)
    first = generation.result
    run_step(model, generation)
    assert first.ids == [spelled("a")]
    assert first.finish_reasons == [None]
    assert generation.texts() == ["ab"]
    assert generation.new_text() == ["ab"]
    assert generation.new_text() == [""]
