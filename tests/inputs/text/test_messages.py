"""Message objects, reasoning, tool calls, continued turns, special tokens and what a template does not read."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conversation import PUBLISHED, text, user

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import CheckpointError, InputError
from cutaway.inputs.processor import Processor
from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.messages import is_messages, read_messages
from cutaway.inputs.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[2] / "data" / "oracle" / "ckpt" / "qwen3_vl"


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_folder(FOLDER, read_config(FOLDER))


@pytest.fixture
def published(processor: Processor) -> Processor:
    """The processor with the published template of tools and thinking."""
    return Processor(processor.config, processor.tokenizer, ChatTemplate(PUBLISHED))


@dataclass
class Message:
    role: str
    content: object
    tool_calls: object = None


class Model:
    def __init__(self, **values: object) -> None:
        self._values = values

    def model_dump(self) -> dict:
        return self._values


def test_objects_are_messages_as_dicts_are() -> None:
    turns = [Message("user", [Model(type="text", text="a")]), Model(role="assistant", content="b")]
    assert is_messages(turns)
    expected = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]
    assert read_messages(turns).messages == expected
    calls = [Model(function=Model(name="f", arguments={"x": np.int64(3)}))]
    read = read_messages([Message("assistant", None, calls)]).messages[0]
    assert read["tool_calls"] == [{"function": {"name": "f", "arguments": {"x": 3}}}]
    assert read_messages([{"role": "user", "content": "a", "extra": object()}]).messages[0]["extra"] == "<object>"


@pytest.mark.parametrize("other", [3, "user", object(), ["user"], None])
def test_other_objects_are_named(other: object) -> None:
    with pytest.raises(InputError, match=r"messages\[1\] must be a dict"):
        read_messages([{"role": "user", "content": "a"}, other])


def nested(depth: int, wrap) -> object:
    value: object = "x"
    for _ in range(depth):
        value = wrap(value)
    return value


def cyclic() -> list:
    items: list = []
    items.append(items)
    return items


def shared() -> list:
    items: list = [1]
    for _ in range(40):
        items = [items, items]
    return items


@pytest.mark.parametrize(
    "value",
    [nested(3000, lambda v: [v]), nested(3000, lambda v: {"a": v}), nested(3000, lambda v: (v,)), cyclic(), shared()],
)
def test_nesting_is_bounded_wherever_it_stands(published: Processor, value: object) -> None:
    call = {"function": {"name": "f", "arguments": {"x": value}}}
    for messages, options in (
        ([{"role": "user", "content": "a", "extra": value}], {}),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}], {}),
        ([{"role": "user", "content": value}], {}),
        ([{"role": "user", "content": [value]}], {}),
        ([{"role": value, "content": "a"}], {}),
        ([{"role": "user", "content": [{"type": value}]}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": value}]}], {}),
        ([{"role": "user", "content": "a"}], {"tools": [{"function": value}]}),
        ([{"role": "user", "content": "a"}], {"enable_thinking": value}),
    ):
        with pytest.raises(InputError):
            published.apply_chat_template(messages, **options)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_reaches_the_template_by_any_of_its_names(key: str) -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}/{{ messages[0].thinking }}")
    message = {"role": "assistant", "content": "b", key: "because"}
    assert template.render(read_messages([message])) == "because/because"


def test_arguments_as_json_text_are_as_the_dict() -> None:
    template = ChatTemplate("{% for c in messages[0].tool_calls %}{{ c.function.arguments|items|list }}{% endfor %}")

    def rendered(arguments: object) -> str:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return template.render(read_messages([{"role": "assistant", "content": "", "tool_calls": [call]}]))

    assert rendered('{"x": "é", "n": [1]}') == rendered({"x": "é", "n": [1]})
    for bad in ("{", "[1]", "3", "", '{"a": ' * 3000):
        with pytest.raises(InputError, match=r"messages\[0\]\.tool_calls\[0\]\.function\.arguments"):
            rendered(bad)


def test_a_name_is_taken_only_where_the_template_reads_it(processor: Processor, published: Processor) -> None:
    messages = [user(text("q"))]
    for name in ("any_variable", "add_vison_id", "enable_thinkin", "documents_", "sanitize_control_tokens"):
        with pytest.raises(InputError, match=f"does not read '{name}'"):
            published.apply_chat_template(messages, **{name: True})
        with pytest.raises(InputError, match=f"does not read '{name}'"):
            published.prompt("q", **{name: True})
        with pytest.raises(InputError, match=f"does not read '{name}'"):
            published.apply_chat_template(messages, variables={name: True})
    with pytest.raises(InputError, match="Did you mean 'system'"):
        published.prompt("q", sytem="be brief")
    with pytest.raises(InputError, match="Did you mean 'max_pixels'"):
        published.prompt("q", max_pixel=3)
    with pytest.raises(InputError, match="Did you mean 'add_vision_id'"):
        published.prompt("q", add_vison_id=True)
    with pytest.raises(InputError, match="does not read 'enable_thinking'"):
        processor.prompt("q", enable_thinking=False)
    with pytest.raises(InputError, match="does not read 'range'"):
        published.prompt("q", range=3)


def test_processor_kwargs_are_options_of_the_call(processor: Processor) -> None:
    messages = [user(text("q"))]
    inputs = processor.apply_chat_template(
        messages, tokenize=True, processor_kwargs={"padding": "max_length", "max_length": 40}
    )
    assert inputs.input_ids.shape == (1, 40)
    with pytest.raises(InputError, match="no option 'max_lenght'"):
        processor.apply_chat_template(messages, tokenize=True, processor_kwargs={"max_lenght": 40})
    with pytest.raises(InputError, match="processor_kwargs"):
        processor.apply_chat_template(messages, tokenize=True, processor_kwargs=3)


def test_the_last_message_is_continued(processor: Processor) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer <|im_end|> is "}]
    prompt = processor.apply_chat_template(turns, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nThe answer <|im_end|> is ")
    ids = processor.apply_chat_template(turns, continue_final_message=True, tokenize=True).input_ids[0].tolist()
    assert ids.count(processor.tokenizer.id_of("<|im_end|>")) == 1
    parts = [turns[0], {"role": "assistant", "content": [text("a"), text("b")]}]
    assert processor.apply_chat_template(parts, continue_final_message=True).endswith("assistant\nab")
    with pytest.raises(InputError, match="Give one"):
        processor.apply_chat_template(turns, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InputError, match="does not read"):
        processor.apply_chat_template(
            [turns[0], {"role": "assistant", "content": "a", "other": "b"}], continue_final_message="other"
        )
    with pytest.raises(InputError, match="which has none"):
        processor.apply_chat_template(turns, continue_final_message="tool_calls")


def test_templates_get_the_named_special_tokens() -> None:
    folder_tokens = Tokenizer.from_folder(FOLDER).special_tokens
    assert folder_tokens["eos_token"] == "<|im_end|>"
    config = read_config(FOLDER)
    template = ChatTemplate("{{ eos_token }}{{ pad_token }}{{ bos_token is defined }}{{ messages[0].content }}")
    processor = Processor(config, Tokenizer.from_folder(FOLDER), template)
    assert processor.prompt("q").startswith(f"<|im_end|>{folder_tokens['pad_token']}")
    assert processor.prompt("q", eos_token="E").startswith("E")


def test_generation_blocks_and_options_of_json_are_as_in_transformers() -> None:
    conversation = read_messages([{"role": "user", "content": "é"}])
    assert ChatTemplate("{% generation %}{{ messages[0].content }}{% endgeneration %}!").render(conversation) == "é!"
    source = "{{ messages[0]|tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}"
    assert ChatTemplate(source).render(conversation) == '{"content":"\\u00e9","role":"user"}'
    with pytest.raises(InputError, match="underscore"):
        ChatTemplate("{% set n = namespace(_a=1) %}").render(conversation)


def test_what_a_template_leaves_out_is_a_warning(processor: Processor) -> None:
    template = ChatTemplate("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    narrow = Processor(processor.config, processor.tokenizer, template)
    turns = [
        {"role": "user", "content": "hello there"},
        {"role": "system", "content": "be brief from now on"},
        {"role": "user", "content": "well"},
    ]
    with pytest.warns(UserWarning, match=r"leaves out messages\[1\] \(system\)"):
        narrow(turns)
    with pytest.warns(UserWarning, match="leaves out the tools"):
        narrow(turns[:1], tools=[{"name": "f"}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        narrow(turns[:1])
        processor(turns)
        processor([{"role": "user", "content": " \n "}, {"role": "assistant", "content": "  trimmed  "}])


@pytest.mark.parametrize(
    "content",
    ['{"a": ' * 3000 + "1" + "}" * 3000, '{"padding_side": ' + "9" * 5000 + "}", "\x00\xff", '{"eos_token": NaN}'],
)
def test_damaged_settings_of_the_tokenizer_are_the_checkpoints_fault(tmp_path: Path, content: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json"):
        before = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else b"{}"
        (tmp_path / name).write_text(content, encoding="utf-8")
        reader = ChatTemplate if name == "chat_template.json" else Tokenizer
        with pytest.raises(CheckpointError):
            reader.from_folder(tmp_path)
        (tmp_path / name).write_bytes(before)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?<n>a\\g<n>)", "(" * 5000, "(?:(?:a*)*)*b", "\\p{Nope}", "["])
def test_a_pathological_expression_is_the_checkpoints_fault(tmp_path: Path, pattern: str) -> None:
    content = json.loads((FOLDER / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with suppress(CheckpointError):  # anything else, such as a panic of the library, fails the test
        Tokenizer.from_folder(tmp_path).encode("a" * 40 + "!")
