"""Conversations of several turns: cached turns equal a full recompute, answers are kept as ids, turns can be undone."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import parity
import pytest
import torch
from PIL import Image

import cutaway
from cutaway.batch import GeneratedText, Inputs
from cutaway.errors import InputError, LimitError, Unavailable
from cutaway.generate.conversation import CachedPrefix, Chat, media_of, remaining
from cutaway.generate.loop import Generation, run_step
from cutaway.generate.settings import Settings

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
FAMILY, MERGE = "qwen3_vl", 2
STEPS = Settings(max_new_tokens=4)
CLOSE = 1e-5
TURNS = [("What is this?", [0], []), ("And now?", [], []), ("Compare these", [1, 0], [0]), ("Why?", [], [])]


@pytest.fixture(scope="module")
def model(oracle) -> cutaway.Model:
    return cutaway.load(oracle / "ckpt" / FAMILY, device="cpu")


@pytest.fixture(scope="module")
def tree():
    return parity.tiny(FAMILY)


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for size in ((64, 64, 3), (70, 40, 3))]


@pytest.fixture(scope="module")
def videos() -> list[np.ndarray]:
    return [np.random.default_rng(1).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)]


# -- cached turns


@pytest.mark.filterwarnings("ignore:.*24 frames")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_turn_equals_a_full_recompute_in_ids_and_logits(family, oracle, images, videos) -> None:
    model = cutaway.load(oracle / "ckpt" / family, device="cpu")
    logits: list[torch.Tensor] = []
    handle = model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output[:, -1]))
    chats = [model.chat(max_new_tokens=5, fps=2, reuse=reuse) for reuse in (True, False)]
    for text, image_indices, video_indices in TURNS:
        of_turn = []
        for chat in chats:
            logits.clear()
            chat.ask(text, [images[i] for i in image_indices], [videos[i] for i in video_indices])
            of_turn.append((chat.result.ids, torch.stack(logits)))
        (ids, cached), (again, recomputed) = of_turn
        assert ids == again
        assert parity.difference(cached, recomputed) < CLOSE
    handle.remove()
    assert [str(m["content"]) for m in chats[0].messages[1::2]] == [str(m["content"]) for m in chats[1].messages[1::2]]


def test_a_cached_turn_reads_only_what_is_new(model, images) -> None:
    read: list[int] = []
    handle = model.language_model.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    chat = model.chat(max_new_tokens=5)
    chat.ask("What is this?", images=[images[0]])
    prompt = read[0]
    read.clear()
    chat.ask("And now?")
    handle.remove()
    new = model.prepare(chat.messages[:-1]).input_ids.shape[1] - prompt - 4  # 5 tokens, the last of them not read yet
    assert read[0] == new


# -- answers are kept as ids


def test_the_next_prompt_has_exactly_the_ids_that_were_generated(model, images) -> None:
    chat = model.chat(max_new_tokens=6, temperature=5.0, seed=3, top_k=0)  # strange ids, special tokens among them
    for text in ("one", "two", "three"):
        chat.ask(text, images=[images[0]])
    answers = [message["content"] for message in chat.messages if message["role"] == "assistant"]
    ids = model.prepare([*chat.messages, {"role": "user", "content": "four"}]).input_ids[0].tolist()
    start = 0
    for answer in answers:
        generated = list(answer.ids)
        start = next(i for i in range(start, len(ids)) if ids[i : i + len(generated)] == generated) + len(generated)


def test_special_tokens_of_an_answer_stay_what_they_are(model) -> None:
    tokenizer = model.tokenizer
    box = [tokenizer.id_of("<|image_pad|>"), *tokenizer.encode("3,4"), tokenizer.id_of("<|vision_end|>")]
    answer = GeneratedText(tokenizer.decode(box), box)
    before, after = {"role": "user", "content": "Where?"}, {"role": "user", "content": "Sure?"}
    inputs = model.prepare([before, {"role": "assistant", "content": answer}, after])
    ids = inputs.input_ids[0].tolist()
    start = ids.index(box[0])
    assert ids[start : start + len(box)] == box
    assert not inputs.mm_token_type_ids.any()  # a placeholder that the model wrote is text
    plain = model.prepare([before, {"role": "assistant", "content": str(answer)}, after])
    assert box[0] not in plain.input_ids


def test_ids_that_are_not_those_of_the_text_and_half_characters_are_kept(model) -> None:
    tokenizer = model.tokenizer
    letters = [tokenizer.encode(letter)[0] for letter in "word"]
    half = [*letters, *tokenizer.encode("é")[:1]]
    for ids in (letters, half):
        answer = GeneratedText(tokenizer.decode(ids), ids)
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        prompt = model.prepare(turns, add_generation_prompt=False).input_ids[0].tolist()
        assert any(prompt[i : i + len(ids)] == ids for i in range(len(prompt)))


THINKING = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- set text = m.content -%}"
    "{%- if m.role == 'assistant' and '</think>' in text -%}{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}{{ (text | trim) + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def test_thinking_that_the_template_drops_is_dropped_and_the_rest_keeps_its_ids(model, monkeypatch) -> None:
    tokenizer = model.tokenizer
    monkeypatch.setitem(model.processor.template.texts, "default", THINKING)
    thought = [tokenizer.encode(letter)[0] for letter in "hm so</think>\n\n"]
    answer = [tokenizer.encode(letter)[0] for letter in "it is red"]
    end = tokenizer.encode("\n")
    for tail in ([], end):
        ids = [*thought, *answer, *tail]
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": GeneratedText("x", ids)}]
        turns += [{"role": "user", "content": "Sure?"}]
        prompt = model.prepare(turns).input_ids[0].tolist()
        words = tokenizer.decode(prompt, skip_special_tokens=False)
        assert "hm so" not in words
        assert "assistant\nit is red<|im_end|>" in words
        assert any(prompt[i : i + len(answer)] == answer for i in range(len(prompt)))


def test_a_cache_goes_on_only_as_far_as_the_prompt_is_the_same(model, monkeypatch) -> None:
    """The template drops the thinking of earlier turns, so what the cache has read behind it is read again."""
    monkeypatch.setitem(model.processor.template.texts, "default", THINKING)
    tokenizer = model.tokenizer
    script = tokenizer.encode("hm</think>\n\nred")
    answers = []
    for reuse in (True, False):
        chat = model.chat(max_new_tokens=4, reuse=reuse)
        chat.ask("?")
        chat.messages[-1] = {"role": "assistant", "content": GeneratedText("hm\n\nred", script)}
        answers.append([chat.ask("Sure?"), chat.result.ids, chat.result.logprobs])
    assert answers[0][:2] == answers[1][:2]
    assert answers[0][2][0] == pytest.approx(answers[1][2][0], abs=1e-4)


def test_an_answer_that_was_changed_is_taken_as_the_new_text(model) -> None:
    chat = model.chat(max_new_tokens=3)
    chat.ask("?")
    chat.messages[-1]["content"] = "quite another answer"
    chat.ask("Sure?")
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "quite another answer"}]
    again = model.chat(max_new_tokens=3, messages=messages)
    again.ask("Sure?")
    assert chat.result.ids == again.result.ids


def test_generated_text_is_a_string_that_can_be_copied_and_saved() -> None:
    text = GeneratedText("red", [1, 2])
    assert text == "red"
    assert json.dumps({"content": text}) == '{"content": "red"}'
    for other in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert (other, other.ids) == ("red", (1, 2))


# -- turns and messages


def test_turns_and_answers_become_messages(model, images) -> None:
    chat = model.chat(system="Answer briefly.", max_new_tokens=5)
    answer = chat.ask("What is this?", images=[images[0]])
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    assert chat.messages[1]["content"] == [
        {"type": "image", "image": images[0]},
        {"type": "text", "text": "What is this?"},
    ]
    assert chat.messages[2]["content"] == answer == chat.text == chat.result.text
    assert chat.result.finish_reasons == ["length"]
    assert answer == model.ask("What is this?", images=[images[0]], system="Answer briefly.", max_new_tokens=5)


def test_a_conversation_equals_its_messages_asked_at_once(model, images) -> None:
    chat = model.chat(max_new_tokens=5)
    for text, indices, _ in TURNS:
        chat.ask(text, images=[images[i] for i in indices])
    *before, question, _ = chat.messages
    again = model.chat(messages=before, max_new_tokens=5)
    again.ask(question["content"][-1]["text"])
    assert again.result.ids == chat.result.ids


def test_undo_takes_the_last_turn_back(model, images) -> None:
    chat, expected = model.chat(max_new_tokens=5), model.chat(max_new_tokens=5)
    first = chat.ask("What is this?", images=[images[0]])
    expected.ask("What is this?", images=[images[0]])
    before = list(chat.messages)
    chat.ask("Say more", images=[images[1]])
    chat.undo()
    assert (chat.messages, chat.text) == (before, first)
    assert chat.ask("And now?") == expected.ask("And now?")
    for _ in range(2):
        chat.undo()
    assert chat.messages == []
    with pytest.raises(InputError, match="no turn to undo"):
        chat.undo()
    with pytest.raises(InputError, match="no answer yet"):
        _ = chat.text


def test_undo_keeps_the_system_message(model) -> None:
    chat = model.chat(system="Be brief.", max_new_tokens=2)
    chat.ask("?")
    chat.undo()
    assert [message["role"] for message in chat.messages] == ["system"]


def test_conversations_do_not_influence_each_other(model, images) -> None:
    def answers(order: list[Image.Image], *others: Chat) -> list[list[int]]:
        chat, ids = model.chat(max_new_tokens=5), []
        for text, indices, _ in TURNS:
            chat.ask(text, images=[order[i] for i in indices])
            ids.append(chat.result.ids[0])
            for other in others:
                other.ask("Meanwhile?", images=order)
        return ids

    assert answers(images, model.chat(max_new_tokens=3)) == answers(images)


def test_a_stream_is_the_answer_in_pieces(model, images) -> None:
    whole, streamed = model.chat(max_new_tokens=5), model.chat(max_new_tokens=5)
    for text, indices, _ in TURNS[:2]:
        of_turn = [images[i] for i in indices]
        assert "".join(streamed.ask(text, of_turn, stream=True)) == whole.ask(text, of_turn)
    assert streamed.messages == whole.messages


def test_a_stream_left_early_leaves_the_conversation_as_it_was(model, images) -> None:
    chat, expected = model.chat(max_new_tokens=5), model.chat(max_new_tokens=5)
    chat.ask("What is this?", [images[0]])
    expected.ask("What is this?", [images[0]])
    before = list(chat.messages)
    for _ in chat.ask("Say much", stream=True, max_new_tokens=40):
        break
    assert chat.messages == before
    assert chat.ask("And now?") == expected.ask("And now?")


def test_two_streams_of_one_conversation_do_not_mix(model) -> None:
    chat = model.chat(max_new_tokens=5)
    expected = [model.chat(max_new_tokens=5).ask(text) for text in ("one", "two")]
    first, second = chat.ask("one", stream=True), chat.ask("two", stream=True)
    assert ["".join(second), "".join(first)] == expected[::-1]


def test_arguments_of_a_turn_are_for_that_turn_alone(model) -> None:
    chat = model.chat(max_new_tokens=5, ignore_eos=True)
    chat.ask("one", max_new_tokens=2)
    assert len(chat.result.ids[0]) == 2
    chat.ask("two")
    assert len(chat.result.ids[0]) == 5
    with pytest.raises(InputError, match=r"Use `max_new_tokens`"):
        chat.ask("three", max_tokens=2)
    assert len(chat.messages) == 4


def test_what_a_chat_refuses(model, images) -> None:
    with pytest.raises(InputError, match="with `system` or with `messages`"):
        model.chat(system="a", messages=[{"role": "user", "content": "b"}])
    with pytest.raises(InputError, match="A turn is a text"):
        model.chat().ask([{"role": "user", "content": "b"}])
    with pytest.raises(InputError, match="belongs to the whole conversation"):
        model.chat().ask("?", images=images, max_pixels=5000)
    with pytest.raises(LimitError, match="max_new_tokens"):
        model.chat(max_new_tokens=10**6).ask("?")
    bare = cutaway.load("nano", dispatch=False)
    with pytest.raises(Unavailable, match="A conversation is unavailable"):
        bare.chat()


# -- what a cache has in common with a prompt


def finished(model, inputs: Inputs, prefix: CachedPrefix | None = None) -> tuple[Generation, list[torch.Tensor], int]:
    """A generation run to its end, its logits, and how many tokens its first step read."""
    cache, unread = (None, None) if prefix is None else prefix.continued(inputs)
    generation, logits = Generation(model, inputs, STEPS, cache=cache, unread=unread), []
    first = generation.next_inputs().input_ids.shape[1]
    with torch.no_grad():
        while (batch := generation.next_inputs()) is not None:
            logits.append(model(batch, cache=generation.cache, last_only=True))
            generation.accept(logits[-1])
    return generation, logits, first


def longer(inputs: Inputs, ids: list[int]) -> Inputs:
    """The prompt with more text behind it."""
    new = torch.tensor([ids])
    positions = inputs.next_position[:, None] + torch.arange(len(ids))
    return replace(
        inputs,
        input_ids=torch.cat((inputs.input_ids, new), 1),
        attention_mask=torch.cat((inputs.attention_mask, torch.ones_like(new)), 1),
        mm_token_type_ids=torch.cat((inputs.mm_token_type_ids, torch.zeros_like(new)), 1),
        position_ids=torch.cat((inputs.position_ids, positions.expand(3, -1, -1)), 2),
        next_position=inputs.next_position + len(ids),
    )


def assert_equal_to_a_recompute(model, inputs: Inputs, generation: Generation, read: int) -> None:
    """Going on from a generation reads `read` tokens first, and gives what a generation from nothing gives."""
    plain, expected, _ = finished(model, inputs)
    cached, logits, first = finished(model, inputs, CachedPrefix.of(generation, MERGE))
    assert first == read
    assert cached.result.ids == plain.result.ids
    for ours, theirs in zip(logits, expected, strict=True):
        assert parity.difference(ours, theirs) < CLOSE


def test_a_prompt_with_its_answer_goes_on_where_it_stopped(tree) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation, _, _ = finished(tree, inputs)
    after = longer(inputs, [*generation.result.ids[0], 40, 41])
    assert_equal_to_a_recompute(tree, after, generation, 3)  # the last token of the answer was never read


@pytest.mark.parametrize("name", ["multi_turn", "two_images", "image_and_video", "video_long"])
def test_another_image_is_read_again_from_its_first_token(tree, name) -> None:
    inputs, _ = parity.case(FAMILY, name)
    for medium in media_of(inputs, MERGE):
        generation, _, _ = finished(tree, inputs)
        changed = {}
        for key in ("pixel_values", "pixel_values_videos"):
            patches = getattr(inputs, key)
            if patches is not None:
                same = (patches == medium.patches[-1]).all(1, keepdim=True)  # its last patch alone differs
                changed[key] = torch.where(same, -patches, patches)
        read = inputs.input_ids.shape[1] - medium.first
        assert_equal_to_a_recompute(tree, replace(inputs, **changed), generation, read)


def test_another_word_is_read_again_from_there(tree) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    length = inputs.input_ids.shape[1]
    for position in (0, 3, length - 2, length - 1):
        generation, _, _ = finished(tree, inputs)
        ids = inputs.input_ids.clone()
        ids[0, position] = 33
        assert_equal_to_a_recompute(tree, replace(inputs, input_ids=ids), generation, length - position)


def test_other_positions_are_read_again_from_there(tree) -> None:
    inputs, _ = parity.case(FAMILY, "text")
    generation, _, _ = finished(tree, inputs)
    moved = inputs.position_ids.clone()
    moved[2, 0, 20:] += 1
    assert_equal_to_a_recompute(tree, replace(inputs, position_ids=moved), generation, moved.shape[2] - 20)


def test_the_same_prompt_reads_its_last_token_again(tree) -> None:
    inputs, _ = parity.case(FAMILY, "video_long")
    generation, _, _ = finished(tree, inputs)
    assert_equal_to_a_recompute(tree, inputs, generation, 1)


def test_a_prompt_that_ends_in_the_middle_of_a_video_has_nothing_of_it_in_common(tree) -> None:
    inputs, _ = parity.case(FAMILY, "video")
    video = media_of(inputs, MERGE)[0]
    ids = inputs.input_ids.clone()
    ids[0, video.last - 1] = 5  # between the first and the last frame
    generation, _, _ = finished(tree, inputs)
    assert CachedPrefix.of(generation, MERGE).common(replace(inputs, input_ids=ids)) == video.first


def test_a_generation_stopped_on_the_way_can_be_gone_on_from(tree) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    generation = Generation(tree, inputs, STEPS)
    run_step(tree, generation)
    run_step(tree, generation)
    assert_equal_to_a_recompute(tree, longer(inputs, [*generation.result.ids[0], 40]), generation, 2)


def test_a_recurrent_state_is_gone_on_from_whole_or_not_at_all(tree) -> None:
    inputs, _ = parity.case(FAMILY, "text")
    generation, _, _ = finished(tree, inputs)
    generation.cache.set_state(0, (torch.ones(1),))
    generation.cache.advance(0)
    prefix = CachedPrefix.of(generation, MERGE)
    whole = longer(inputs, [*generation.result.ids[0], 40])
    kept = replace(prefix, cache=prefix.cache.clone())
    assert kept.continued(whole)[1].input_ids.shape[1] == 2
    cache, unread = prefix.continued(inputs)
    assert cache.length == 0
    assert unread is inputs


@pytest.mark.parametrize("name", ["two_images", "image_and_video"])
def test_the_inputs_that_remain_have_the_images_that_remain(name) -> None:
    inputs, _ = parity.case(FAMILY, name)
    for medium in media_of(inputs, MERGE):
        again = media_of(remaining(inputs, medium.first, MERGE), MERGE)
        behind = [m for m in media_of(inputs, MERGE) if m.first >= medium.first]
        assert [(m.kind, m.first + medium.first) for m in again] == [(m.kind, m.first) for m in behind]
        assert all(torch.equal(a.patches, b.patches) for a, b in zip(again, behind, strict=True))


def test_fewer_placeholders_than_the_grids_need_are_refused() -> None:
    inputs, _ = parity.case(FAMILY, "image")
    with pytest.raises(InputError, match="placeholder tokens"):
        media_of(replace(inputs, mm_token_type_ids=torch.zeros_like(inputs.mm_token_type_ids)), MERGE)
