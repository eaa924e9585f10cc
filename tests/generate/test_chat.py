"""Conversations of several turns on a tiny Qwen3-VL: warm equals cold, later images, streams, interleaving."""

from __future__ import annotations

import numpy as np
import parity
import pytest
from PIL import Image

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import InputError
from cutaway.generate.chat import Chat
from cutaway.generate.settings import Settings
from cutaway.inputs.processor import Processor

FAMILY = "qwen3_vl"


@pytest.fixture(scope="module")
def model():
    return parity.tiny(FAMILY)


@pytest.fixture(scope="module")
def processor():
    place = parity.DATA / "ckpt" / FAMILY
    return Processor.from_folder(place, read_config(place))


@pytest.fixture(scope="module")
def three_images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for size in ((64, 64, 3), (70, 40, 3))]


def conversation(model, processor, **given) -> Chat:
    settings = Settings(max_new_tokens=5)
    return Chat(model, lambda messages: processor(text=messages), settings, processor.tokenizer, **given)


TURNS = [("What is this?", [0]), ("And now?", []), ("Compare these", [1, 0]), ("Why?", [])]


def told(chat: Chat, three_images) -> list[list[int]]:
    """The ids of every answer."""
    ids = []
    for text, shown in TURNS:
        chat.ask(text, images=[three_images[i] for i in shown])
        ids.append(chat.result.ids[0])
    return ids


def test_warm_and_cold_give_the_same_answers(model, processor, three_images) -> None:
    read = []
    hook = model.language_model.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    try:
        warm = told(conversation(model, processor), three_images)
        warm_read, read = sum(read), []
        cold = told(conversation(model, processor, reuse=False), three_images)
    finally:
        hook.remove()
    assert warm == cold
    assert warm_read < 0.7 * sum(read)


def test_turns_and_answers_become_messages(model, processor, three_images) -> None:
    chat = conversation(model, processor, messages=[{"role": "system", "content": "Answer briefly."}])
    answer = chat.ask("What is this?", images=[three_images[0]])
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    assert chat.messages[1]["content"] == [
        {"type": "image", "image": three_images[0]},
        {"type": "text", "text": "What is this?"},
    ]
    assert chat.messages[2]["content"] == answer == chat.result.text
    assert chat.result.finish_reasons == ["length"]


def test_a_conversation_equals_its_messages_asked_at_once(model, processor, three_images) -> None:
    chat = conversation(model, processor)
    told(chat, three_images)
    *before, question, _ = chat.messages
    again = conversation(model, processor, messages=before)
    last = chat.result.ids
    again.ask(question["content"][-1]["text"])
    assert again.result.ids == last


def test_conversations_do_not_see_each_other(model, processor, three_images) -> None:
    alone = told(conversation(model, processor), three_images)
    first, second = conversation(model, processor), conversation(model, processor)
    ids = ([], [])
    for text, shown in TURNS:
        for chat, kept, order in ((first, ids[0], three_images), (second, ids[1], three_images[::-1])):
            chat.ask(text, images=[order[i] for i in shown])
            kept.append(chat.result.ids[0])
    assert ids[0] == alone
    assert ids[1] == told(conversation(model, processor), three_images[::-1])


def test_a_stream_is_the_answer_in_pieces(model, processor, three_images) -> None:
    whole, streamed = conversation(model, processor), conversation(model, processor)
    for text, shown in TURNS[:2]:
        images = [three_images[i] for i in shown]
        assert "".join(streamed.ask(text, images, stream=True)) == whole.ask(text, images)
    assert streamed.messages == whole.messages


def test_a_dropped_stream_leaves_the_conversation_as_it_was(model, processor, three_images) -> None:
    chat, expected = conversation(model, processor), conversation(model, processor)
    chat.ask("What is this?", [three_images[0]])
    expected.ask("What is this?", [three_images[0]])
    before = list(chat.messages)
    for _ in chat.ask("Say much", stream=True, max_new_tokens=40):
        break
    assert chat.messages == before
    assert chat.ask("And now?") == expected.ask("And now?")


def test_two_streams_of_one_conversation_do_not_mix(model, processor) -> None:
    chat = conversation(model, processor)
    expected = [conversation(model, processor).ask(text) for text in ("one", "two")]
    first, second = chat.ask("one", stream=True), chat.ask("two", stream=True)
    assert ["".join(second), "".join(first)] == expected[::-1]


def test_arguments_are_for_one_turn(model, processor) -> None:
    chat = conversation(model, processor)
    chat.ask("one", max_new_tokens=2)
    assert len(chat.result.ids[0]) == 2
    chat.ask("two")
    assert len(chat.result.ids[0]) == 5
    with pytest.raises(InputError, match="Did you mean max_new_tokens"):
        chat.ask("three", max_tokens=2)
    assert len(chat.messages) == 4
