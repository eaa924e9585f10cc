"""The loop on a tiny Qwen3-VL with the reference's weights: every step, batches, chunks, placeholders, gradients."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch
from parity import one_row, right_padded

from cutaway.batch import Inputs
from cutaway.generate.loop import Generation, generate
from cutaway.generate.settings import Settings

FAMILY = "qwen3_vl"
STEPS = Settings(max_new_tokens=8)
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model():
    return parity.tiny(FAMILY)


def followed(
    model, inputs: Inputs, settings: Settings = STEPS, **options
) -> tuple[list[list[int]], torch.Tensor, list]:
    """Ids, logits [batch steps vocab] and inputs of every step, the loop turned by hand."""
    generation, logits, fed = Generation(model, inputs, settings), [], []
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            fed.append(batch)
            logits.append(model(batch, cache=generation.cache, last_only=True, **options))
            generation.accept(logits[-1])
    return generation.result.ids, torch.cat(logits, 1), fed


@pytest.mark.parametrize("name", parity.cases(FAMILY))
def test_every_step_equals_the_references(model, name) -> None:
    inputs, expected = parity.case(FAMILY, name)
    ids, logits, fed = followed(model, inputs)
    assert ids == expected["out.greedy_ids"].tolist()
    assert parity.difference(logits, expected["out.greedy_logits"]) < CLOSE
    positions = torch.cat([step.position_ids for step in fed[1:]], -1)
    assert torch.equal(positions, expected["pos.generate_decode"][1:])


@pytest.mark.parametrize("name", ["image", "image_and_video", "video_long"])
def test_cached_steps_equal_a_full_recompute(model, name) -> None:
    inputs, _ = parity.case(FAMILY, name)
    ids, logits, _ = followed(model, inputs)
    new = torch.tensor(ids)[:, :-1]
    positions = inputs.next_position[:, None] + torch.arange(new.shape[1])
    whole = replace(
        inputs,
        input_ids=torch.cat((inputs.input_ids, new), 1),
        attention_mask=torch.cat((inputs.attention_mask, torch.ones_like(new)), 1),
        mm_token_type_ids=torch.cat((inputs.mm_token_type_ids, torch.zeros_like(new)), 1),
        position_ids=torch.cat((inputs.position_ids, positions.expand(3, -1, -1)), 2),
    )
    with torch.no_grad():
        again = model(whole)[:, -len(ids[0]) :]
    assert parity.difference(logits, again) < CLOSE
    assert torch.equal(again.argmax(-1), torch.tensor(ids))


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_batch_equal_themselves_alone(model, side) -> None:
    inputs, _ = parity.case(FAMILY, "batch")
    ids, logits, _ = followed(model, inputs if side == "left" else right_padded(inputs))
    for row in range(3):
        alone_ids, alone_logits, _ = followed(model, one_row(inputs, row))
        assert alone_ids[0] == ids[row]
        assert parity.difference(alone_logits[0], logits[row]) < CLOSE


def test_a_row_that_ended_does_not_touch_the_others(model) -> None:
    inputs, expected = parity.case(FAMILY, "batch")
    end = int(expected["out.greedy_ids"][1, 2])
    ids = generate(model, inputs, replace(STEPS, eos_token_id=(end,))).ids
    for row, full in enumerate(expected["out.greedy_ids"].tolist()):
        assert ids[row] == (full[: full.index(end) + 1] if end in full else full)


def test_rows_draw_the_same_alone_and_together(model) -> None:
    inputs, _ = parity.case(FAMILY, "batch")
    settings = replace(STEPS, do_sample=True, top_k=0, temperature=1.5)
    ids = generate(model, inputs, replace(settings, seed=(3, 4, 5))).ids
    for row in range(3):
        assert generate(model, one_row(inputs, row), replace(settings, seed=3 + row)).ids == [ids[row]]
    assert ids != generate(model, inputs, replace(settings, seed=(6, 7, 8))).ids


@pytest.mark.parametrize("name", ["image", "image_and_video", "batch"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 500])
def test_reading_the_prompt_in_chunks_changes_nothing(model, name, chunk) -> None:
    inputs, expected = parity.case(FAMILY, name)
    ids, logits, _ = followed(model, inputs, chunk=chunk)
    assert ids == expected["out.greedy_ids"].tolist()
    assert parity.difference(logits, expected["out.greedy_logits"]) < CLOSE


def test_the_head_sees_one_row_per_step(model) -> None:
    """A prompt's other positions would cost its length times the vocabulary."""
    inputs, _ = parity.case(FAMILY, "batch")
    rows = []
    hook = model.lm_head.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[:-1].numel()))
    try:
        generate(model, inputs, STEPS)
    finally:
        hook.remove()
    assert rows == [3] * 8


def test_placeholders_that_the_model_chooses_are_text(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    pad = model.config.image_token_id
    generation = Generation(model, inputs, STEPS)
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            logits = model(batch, cache=generation.cache, last_only=True)
            biased = logits.index_add(2, torch.tensor([pad]), torch.full((1, 1, 1), 1000.0))
            generation.accept(biased)
    assert generation.result.ids == [[pad] * 8]


def test_two_generations_turned_in_step_equal_themselves(model) -> None:
    """Nothing is kept on the model: an image and a video, alternating, then a text."""
    cases = {name: parity.case(FAMILY, name) for name in ("image", "video", "text")}
    running = {name: Generation(model, inputs, STEPS) for name, (inputs, _) in cases.items()}
    with torch.no_grad():
        while not all(generation.done for generation in running.values()):
            for generation in running.values():
                if (batch := generation.next_inputs()) is not None:
                    generation.accept(model(batch, cache=generation.cache, last_only=True))
    for name, (_, expected) in cases.items():
        assert running[name].result.ids == expected["out.greedy_ids"].tolist()


def test_gradients_through_a_hand_turned_loop(model) -> None:
    """With gradients recorded the cache joins instead of writing, and a step's logits reach the prompt's image."""
    inputs, expected = parity.case(FAMILY, "image")
    pixels = inputs.pixel_values.clone().requires_grad_()
    generation = Generation(model, replace(inputs, pixel_values=pixels), replace(STEPS, max_new_tokens=3))
    logits = []
    while (batch := generation.next_inputs()) is not None:
        logits.append(model(batch, cache=generation.cache, last_only=True))
        generation.accept(logits[-1])
    assert generation.result.ids[0] == expected["out.greedy_ids"][0, :3].tolist()
    logits[-1].square().sum().backward()
    assert bool(pixels.grad.abs().sum(-1).all())


def test_a_run_gives_the_tokens_and_probabilities_of_the_loop_turned_by_hand(model) -> None:
    """A run by itself is in inference mode; what it chooses, and how sure it is, does not change."""
    inputs, expected = parity.case(FAMILY, "image_and_video")
    generation = Generation(model, inputs, STEPS)
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            generation.accept(model(batch, cache=generation.cache, last_only=True))
    by_itself = generate(model, inputs, STEPS)
    assert by_itself.ids == generation.result.ids == expected["out.greedy_ids"].tolist()
    assert by_itself.logprobs == generation.result.logprobs


def test_a_hook_on_a_run_keeps_tensors_that_can_be_trained_on(model) -> None:
    inputs, _ = parity.case(FAMILY, "text")
    kept = []
    handle = model.layers[1].register_forward_hook(lambda module, args, output: kept.append(output))
    generate(model, inputs, STEPS)
    handle.remove()
    assert len(kept) == STEPS.max_new_tokens
    assert not any(output.is_inference() for output in kept)
