"""Going on from a past: how much of it a prompt shares, what is left to read, that warm equals cold."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch

from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.generate.loop import Generation, forward
from cutaway.generate.past import Past, after, visuals
from cutaway.generate.settings import Settings

FAMILY, MERGE = "qwen3_vl", 2
STEPS = Settings(max_new_tokens=4)


@pytest.fixture(scope="module")
def model():
    return parity.tiny(FAMILY)


def finished(model, inputs: Inputs, past: Past | None = None) -> tuple[Generation, list[torch.Tensor], int]:
    """A generation run to its end, its logits, and how many tokens its first step read."""
    generation, logits = Generation(model, inputs, STEPS, past=past), []
    first = generation.next_inputs().input_ids.shape[1]
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            logits.append(model(batch, cache=generation.cache, last_only=True))
            generation.accept(logits[-1])
    return generation, logits, first


def continued(inputs: Inputs, ids: list[int]) -> Inputs:
    """The prompt with more text behind it."""
    new = torch.tensor([ids])
    places = inputs.next_position[:, None] + torch.arange(len(ids))
    return replace(
        inputs,
        input_ids=torch.cat((inputs.input_ids, new), 1),
        attention_mask=torch.cat((inputs.attention_mask, torch.ones_like(new)), 1),
        mm_token_type_ids=torch.cat((inputs.mm_token_type_ids, torch.zeros_like(new)), 1),
        position_ids=torch.cat((inputs.position_ids, places.expand(3, -1, -1)), 2),
        next_position=inputs.next_position + len(ids),
    )


def cut(inputs: Inputs, length: int) -> Inputs:
    """The first `length` tokens, with the images that end before."""
    kept = [v for v in visuals(inputs, MERGE) if v.last < length]
    return replace(
        inputs,
        input_ids=inputs.input_ids[:, :length],
        attention_mask=inputs.attention_mask[:, :length],
        mm_token_type_ids=inputs.mm_token_type_ids[:, :length],
        position_ids=inputs.position_ids[..., :length],
        next_position=inputs.position_ids[:, :, :length].amax((0, 2)) + 1,
        pixel_values=torch.cat([v.patches for v in kept]) if kept else None,
        image_grid_thw=torch.stack([v.grid for v in kept]) if kept else None,
    )


def assert_equal_to_cold(model, inputs: Inputs, past: Past, read: int) -> None:
    """The warm generation reads `read` tokens first, and says what a cold one says."""
    cold, expected, _ = finished(model, inputs)
    warm, logits, first = finished(model, inputs, past)
    assert first == read
    assert warm.result.ids == cold.result.ids
    for ours, theirs in zip(logits, expected, strict=True):
        assert parity.difference(ours, theirs) < 1e-5


def test_a_prompt_with_its_answer_goes_on_where_it_stopped(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation, _, _ = finished(model, inputs)
    longer = continued(inputs, [*generation.result.ids[0], 40, 41])
    assert_equal_to_cold(model, longer, generation.past, 3)  # the last token of the answer was never read


def test_an_image_in_a_later_turn(model) -> None:
    inputs, _ = parity.case(FAMILY, "multi_turn")
    second = visuals(inputs, MERGE)[1]
    beginning = cut(inputs, second.first - 1)
    generation, _, _ = finished(model, beginning)
    shared = beginning.input_ids.shape[1]
    assert_equal_to_cold(model, inputs, generation.past, inputs.input_ids.shape[1] - shared)


@pytest.mark.parametrize("name", ["multi_turn", "two_images", "image_and_video", "video_long"])
def test_another_image_is_read_again_from_its_first_token(model, name) -> None:
    inputs, _ = parity.case(FAMILY, name)
    length = inputs.input_ids.shape[1]
    for visual in visuals(inputs, MERGE):
        generation, _, _ = finished(model, inputs)
        changed = {}
        for key in ("pixel_values", "pixel_values_videos"):
            patches = getattr(inputs, key)
            if patches is not None:
                same = (patches == visual.patches[-1]).all(1, keepdim=True)  # its last patch alone differs
                changed[key] = torch.where(same, -patches, patches)
        assert_equal_to_cold(model, replace(inputs, **changed), generation.past, length - visual.first)


def test_another_word_is_read_again_from_there(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    length = inputs.input_ids.shape[1]
    for place in (0, 3, length - 2, length - 1):
        generation, _, _ = finished(model, inputs)
        ids = inputs.input_ids.clone()
        ids[0, place] = 33
        assert_equal_to_cold(model, replace(inputs, input_ids=ids), generation.past, length - place)


def test_other_positions_are_read_again_from_there(model) -> None:
    inputs, _ = parity.case(FAMILY, "text")
    generation, _, _ = finished(model, inputs)
    moved = inputs.position_ids.clone()
    moved[2, 0, 20:] += 1
    assert_equal_to_cold(model, replace(inputs, position_ids=moved), generation.past, moved.shape[2] - 20)


def test_the_same_prompt_reads_its_last_token_again(model) -> None:
    inputs, _ = parity.case(FAMILY, "video_long")
    generation, _, _ = finished(model, inputs)
    assert_equal_to_cold(model, inputs, generation.past, 1)


def test_a_prompt_that_ends_in_the_middle_of_a_video_takes_nothing_of_it() -> None:
    inputs, _ = parity.case(FAMILY, "video")
    video = visuals(inputs, MERGE)[0]
    ids = inputs.input_ids.clone()
    ids[0, video.last - 1] = 5  # between the first and the last frame
    generation, _, _ = finished(parity.tiny(FAMILY), inputs)
    assert generation.past.common(replace(inputs, input_ids=ids), MERGE) == video.first


def test_a_stopped_generation_can_be_gone_on_from(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation = Generation(model, inputs, STEPS)
    forward(model, generation)
    forward(model, generation)
    longer = continued(inputs, [*generation.result.ids[0], 40])
    assert_equal_to_cold(model, longer, generation.past, 2)


def test_a_past_is_used_once_and_a_clone_goes_on_by_itself(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation, _, _ = finished(model, inputs)
    past = generation.past
    other = past.clone()
    assert_equal_to_cold(model, continued(inputs, [30]), past, 1)
    for again in (past, generation.past):
        with pytest.raises(InputError, match="used up"):
            Generation(model, inputs, STEPS, past=again)
    assert_equal_to_cold(model, continued(inputs, [31, 32]), other, 2)


def test_a_generation_whose_past_was_taken_does_not_go_on(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation = Generation(model, inputs, STEPS)
    forward(model, generation)
    finished(model, continued(inputs, [40]), generation.past)
    with pytest.raises(InputError, match="has its cache"):
        generation.next_inputs()


def test_a_batch_has_no_past(model) -> None:
    inputs, _ = parity.case(FAMILY, "batch")
    generation, _, _ = finished(model, inputs)
    with pytest.raises(InputError, match="batch of one without padding"):
        _ = generation.past
    single, _ = parity.case(FAMILY, "image")
    alone, _, _ = finished(model, single)
    with pytest.raises(InputError, match="batch of one without padding"):
        Generation(model, inputs, STEPS, past=alone.past)


def test_a_recurrent_state_is_gone_on_from_whole_or_not_at_all() -> None:
    inputs, _ = parity.case(FAMILY, "text")
    generation, _, _ = finished(parity.tiny(FAMILY), inputs)
    generation.cache.set_state(0, (torch.ones(1),))
    generation.cache.advance(0)
    whole = continued(inputs, [*generation.result.ids[0], 40])
    assert generation.past.clone().take(whole, MERGE)[1].input_ids.shape[1] == 2
    cache, left = generation.past.take(inputs, MERGE)
    assert cache.length == 0
    assert left is inputs


@pytest.mark.parametrize("name", ["two_images", "image_and_video"])
def test_what_is_left_has_the_images_that_are_left(name) -> None:
    inputs, _ = parity.case(FAMILY, name)
    for visual in visuals(inputs, MERGE):
        left = after(inputs, visual.first, MERGE)
        again = visuals(left, MERGE)
        behind = [v for v in visuals(inputs, MERGE) if v.first >= visual.first]
        assert [(v.kind, v.first + visual.first) for v in again] == [(v.kind, v.first) for v in behind]
        assert all(torch.equal(a.patches, b.patches) for a, b in zip(again, behind, strict=True))


def test_fewer_placeholders_than_the_grids_need_are_refused() -> None:
    inputs, _ = parity.case(FAMILY, "image")
    with pytest.raises(InputError, match="placeholder tokens"):
        visuals(replace(inputs, mm_token_type_ids=torch.zeros_like(inputs.mm_token_type_ids)), MERGE)
