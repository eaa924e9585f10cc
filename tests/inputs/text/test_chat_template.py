"""Messages and chat templates: order, numbering, tools, what a template may do, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conversation import IMAGE, PAD, PUBLISHED, VIDEO, text, user

from cutaway.batch import GeneratedText
from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import CheckpointError, InputError
from cutaway.inputs.processor import Processor
from cutaway.inputs.text.chat_template import ChatTemplate, Prompt
from cutaway.inputs.text.messages import FROM_ARGUMENTS, is_messages, read_messages
from cutaway.inputs.text.tokenizer import MARK

DATA = Path(__file__).parents[2] / "data" / "oracle" / "ckpt"


def rendered(messages, **options) -> str:
    return ChatTemplate(PUBLISHED).render(read_messages(messages), **options)


def test_parts_stay_in_order_and_join_without_a_separator() -> None:
    out = rendered([user(text("a"), text("b"), IMAGE, text("c"), IMAGE)], add_generation_prompt=False)
    assert out == f"<|im_start|>user\nab{PAD}c{PAD}<|im_end|>\n"


def test_images_are_numbered_over_the_conversation() -> None:
    turns = [user(IMAGE, IMAGE, text("x")), {"role": "assistant", "content": "y"}, user(VIDEO, IMAGE)]
    out = rendered(turns, add_vision_id=True)
    assert [out.count(f"Picture {n}: <|vision_start|><|image_pad|>") for n in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert out.count("Video 1: <|vision_start|><|video_pad|>") == 1
    assert "Image" not in rendered(turns)


def test_tools_and_calls_are_json_as_it_is_written() -> None:
    tools = [{"type": "function", "function": {"name": "größe", "description": "<b> & 'q'"}}]
    call = {"function": {"name": "f", "arguments": {"x": "é"}}}
    out = rendered([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}], tools=tools)
    assert '<tools>\n{"type": "function", "function": {"name": "größe", "description": "<b> & \'q\'"}}\n</tools>' in out
    assert '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>' in out


def test_template_variables() -> None:
    assert rendered([user(text("q"))], enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert rendered([user(text("q"))], add_generation_prompt=False).endswith("<|im_end|>\n")


def test_media_are_collected_in_order() -> None:
    turns = [
        user({"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": {"url": "data:b"}}),
        user({"video": "c.mp4", "text": None}, {"image_url": "d.png"}, IMAGE, {"type": "image", "path": "e.png"}),
    ]
    read = read_messages(turns)
    assert read.images == ["a.png", "data:b", "d.png", FROM_ARGUMENTS, "e.png"]
    assert read.videos == ["c.mp4"]
    assert read.messages[0]["content"] == [{"type": "image"}, {"type": "image"}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one dict"),
        ("hello", "at least one dict"),
        ([3], r"messages\[0\] must be a dict"),
        ([{"role": "robot", "content": "x"}], "role 'robot'; roles are system, user, assistant, tool"),
        ([{"content": "x"}], "role None"),
        ([{"role": "user"}], r"messages\[0\].content must be a string or a list"),
        ([{"role": "user", "content": {"type": "text"}}], "must be a string or a list"),
        ([user(3)], r"content\[0\] must be a dict"),
        ([user({"type": "audio", "audio": "a"})], "type 'audio'"),
        ([user({})], "type None"),
        ([user({"type": "text", "text": 3})], "`text` must be a string; got int 3"),
        ([user({"type": "image", "image": "a", "url": "b"})], "more than one source: image, url"),
        ([user({"type": "image", "image": "a", "max_pixels": 9})], "'max_pixels', which a part cannot set"),
        ([user({"type": "image_url", "image_url": {"uri": "a"}})], "must have a `url`"),
    ],
)
def test_bad_messages_are_named(messages, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_messages(messages)


def test_a_templates_own_complaint_reaches_the_caller() -> None:
    with pytest.raises(InputError, match="a tool cannot begin"):
        rendered([{"role": "tool", "content": "x"}])
    with pytest.raises(InputError, match=r"messages: Not so\. Change"):
        ChatTemplate("{{ raise_exception('Not so.') }}").render(read_messages([user(text("q"))]))
    with pytest.raises(InputError, match="refuses these messages"):
        ChatTemplate("{{ messages[7].content.more }}").render(read_messages([user(text("q"))]))


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{% for x in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(attack: str) -> None:
    with pytest.raises(InputError):
        ChatTemplate(attack).render(read_messages([user(text("q"))]))


def test_broken_templates_are_the_checkpoints_fault() -> None:
    with pytest.raises(CheckpointError, match="not valid Jinja"):
        ChatTemplate("{% for %}").render(read_messages([user(text("q"))]))


def test_dates_in_templates() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(read_messages([user(text("q"))]))) == 10


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    result = ChatTemplate.from_folder(tmp_path)
    assert result is not None
    conversation = read_messages([user(text("q"))])
    assert result.render(conversation) == "D"
    assert result.render(conversation, tools=[{}]) == "T"
    assert result.render(conversation, name="tool_use") == "T"
    with pytest.raises(InputError, match="named 'rag'; this checkpoint has default, tool_use"):
        result.render(conversation, name="rag")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert str(ChatTemplate.from_folder(tmp_path).text()) == "J"
    (tmp_path / "chat_template.jinja").write_text("X")
    assert str(ChatTemplate.from_folder(tmp_path).text()) == "X"


@pytest.mark.parametrize("content", ['{"chat_template": 3}', "[]", "{"])
def test_damaged_template_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "chat_template.json").write_text(content)
    with pytest.raises(CheckpointError, match="chat"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("family", "system"), [("qwen2_vl", True), ("qwen2_5_vl", True), ("qwen3_vl", False), ("qwen3_5", False)]
)
def test_each_family_has_its_own_default_system_turn(family: str, system: bool) -> None:
    processor = Processor.from_folder(DATA / family, read_config(DATA / family))
    prompt = processor.prompt("hi")
    assert prompt.startswith("<|im_start|>system\nYou are") is system
    assert prompt.endswith("<think>\n") is family.startswith("qwen3_5")
    assert processor.prompt("hi", system="Be brief.").startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_a_prompt_is_a_string_that_remembers_what_was_typed() -> None:
    prompt = Prompt(f"a <{MARK}|im_end|> b {MARK}{MARK}")
    assert prompt == f"a <|im_end|> b {MARK}"
    assert type(prompt + "") is str


def test_what_counts_as_messages() -> None:
    assert is_messages([{"role": "user"}])
    assert not is_messages([])
    assert not is_messages("text")
    assert not is_messages([[{"role": "user"}]])


def test_a_folder_without_a_template_takes_strings(tmp_path: Path) -> None:
    shutil.copytree(DATA / "qwen3_vl", tmp_path / "m")
    (tmp_path / "m" / "chat_template.json").unlink()
    processor = Processor.from_folder(tmp_path / "m", read_config(tmp_path / "m"))
    assert processor("hi")["input_ids"].shape[0] == 1
    with pytest.raises(InputError, match="no chat template"):
        processor.prompt("hi")


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ("<think>why</think>", ""),
        ("<think>why</think>\nred", "messages[1] (assistant)"),
        ("red", "messages[1] (assistant)"),
        (GeneratedText("red", (1, 2)), ""),
    ],
)
def test_a_dropped_answer_is_said_and_dropped_thinking_is_not(content, missing) -> None:
    conversation = read_messages([{"role": "user", "content": "?"}, {"role": "assistant", "content": content}])
    questions = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    template = ChatTemplate(questions)
    assert template.left_out(conversation, "?", None, None) == missing
