"""Chat templates beside transformers: conversations, tools, variables, continued turns and functions as tools."""

from __future__ import annotations

import enum
import random
from pathlib import Path
from typing import Any, Literal

import pytest
from conversation import IMAGE, PUBLISHED, VIDEO, text
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.messages import read_messages
from cutaway.inputs.text.tokenizer import Tokenizer
from cutaway.inputs.text.tool_schemas import function_schema

DATA = Path(__file__).parents[1] / "data" / "oracle" / "ckpt"
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
THINKING = """
{%- set ns = namespace(last=messages|length - 1, multi=true) -%}
{%- for message in messages[::-1] -%}
    {%- set index = (messages|length - 1) - loop.index0 -%}
    {%- if ns.multi and message.role == "user" and message.content is string
        and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) -%}
        {%- set ns.multi = false -%}{%- set ns.last = index -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set content = '' -%}
    {%- if message.content is string -%}{%- set content = message.content -%}{%- endif -%}
    {%- if message.role == 'assistant' -%}
        {%- set reasoning = '' -%}
        {%- if message.reasoning_content is string -%}{%- set reasoning = message.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) -%}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') -}}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
        {%- else -%}{{- '<|im_start|>assistant\\n' + content -}}{%- endif -%}
        {%- for call in message.tool_calls -%}
            {%- if call.function -%}{%- set call = call.function -%}{%- endif -%}
            {{- '\\n<tool_call>{"name": "' + call.name + '", "arguments": ' -}}
            {%- if call.arguments is string -%}{{- call.arguments -}}
            {%- else -%}{{- call.arguments | tojson -}}{%- endif -%}
            {{- '}' -}}
        {%- endfor -%}
        {{- eos_token + '\\n' -}}
    {%- else -%}{{- '<|im_start|>' + message.role + '\\n' + content + eos_token + '\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{% generation %}<|im_start|>assistant
{% endgeneration %}{%- endif -%}
"""


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    tokens = Tokenizer.from_folder(DATA / "qwen3_vl").special_tokens
    return PreTrainedTokenizerFast(tokenizer_file=str(DATA / "qwen3_vl" / "tokenizer.json"), **tokens)


def conversation(chance: random.Random) -> list[dict[str, Any]]:
    """A conversation with what callers give: parts, reasoning, tool calls, keys that are None."""
    words = [
        "hi",
        " two  words ",
        "é <b> 'q' \"x\"",
        "<think>\nwhy\n</think>\n\nso",
        "line\nline\n",
        "",
        "日本 👩‍👩‍👧",
        "{{ x }}",
    ]
    turns = [{"role": "system", "content": chance.choice(words)}] if chance.random() < 0.4 else []
    for _ in range(chance.randint(1, 4)):
        parts = [chance.choice([text(chance.choice(words)), IMAGE, VIDEO]) for _ in range(chance.randint(1, 4))]
        turns.append(
            {"role": "user", "content": [dict(p) for p in parts] if chance.random() < 0.5 else chance.choice(words)}
        )
        turn: dict[str, Any] = {"role": "assistant", "content": chance.choice(words), "name": None}
        if chance.random() < 0.4:
            turn[chance.choice(["reasoning", "thinking", "reasoning_content"])] = chance.choice(words)
        if chance.random() < 0.3:
            arguments = {"x": chance.choice([1, 1.5, None, True, "é<", [1, {"a": ()}]])}
            turn["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
        turns.append(turn)
        if "tool_calls" in turn:
            turns.append({"role": "tool", "content": '{"result": 3}'})
    return turns if chance.random() < 0.5 or turns[-1]["role"] != "assistant" else turns[:-1] or turns


def sources() -> dict[str, str]:
    published = {family: ChatTemplate.from_folder(DATA / family) for family in FAMILIES}
    return {name: t.text() for name, t in published.items() if t} | {"tools": PUBLISHED, "thinking": THINKING}


@pytest.mark.parametrize("name", sources())
def test_generated_conversations(theirs, name: str) -> None:
    source, chance = sources()[name], random.Random(name)
    ours, tokens = ChatTemplate(source), Tokenizer.from_folder(DATA / "qwen3_vl").special_tokens
    for _ in range(150):
        turns, options = conversation(chance), {"add_generation_prompt": chance.random() < 0.5}
        if chance.random() < 0.3:
            options["tools"] = [{"name": "f", "description": "é<"}]
        if chance.random() < 0.2 and name == "tools":
            options |= {"add_vision_id": True, "enable_thinking": False}
        expected = theirs.apply_chat_template(turns, chat_template=source, tokenize=False, **options)
        assert ours.render(read_messages(turns), **{**tokens, **options}) == expected


@pytest.mark.parametrize("name", sources())
def test_continued_turns(theirs, name: str) -> None:
    source, chance = sources()[name], random.Random(name)
    ours, tokens = ChatTemplate(source), Tokenizer.from_folder(DATA / "qwen3_vl").special_tokens
    for _ in range(60):
        turns = [*conversation(chance), {"role": "user", "content": "go"}]
        turns.append(
            {"role": "assistant", "content": chance.choice(["begun", "begun ", " a\n", [text("a"), text("b ")]])}
        )
        settings = {"add_generation_prompt": False, "continue_final_message": True}
        try:
            expected = theirs.apply_chat_template(turns, chat_template=source, tokenize=False, **settings)
        except ValueError:  # the template leaves the message out
            with pytest.raises(ValueError, match="continue_final_message"):
                ours.render(read_messages(turns), **tokens, **settings)
            continue
        assert ours.render(read_messages(turns), **tokens, **settings) == expected


class Color(enum.Enum):
    RED = "red"
    BLUE = 3


def plain(x: float, y: int = 3):
    """
    Multiply two numbers.

    Over two lines.

    Args:
        x: The first number
            goes on here: with a colon
        y (int): The second (choices: [1, 2, 3])
    Returns:
        the product
    """


def typed(
    a: list[int], b: dict[str, list[str]], c: str | None, d: int | str | None, e: Literal["x", 1], f: Color,
    g: tuple[int, str], h: int | float, i: list, j: Any, k: bool = True, m: list[int] | dict | None = None,
) -> str:  # fmt: skip
    """Do things.

    Args:
        a: one
        b: two
        c: three
        d: four
        e: five
        f: six
        g: seven
        h: eight
        i: nine
        j: ten
        k: eleven
        m: twelve

    Returns:
        text

    Raises:
        nothing
    """


class Tools:
    def method(self, city: str) -> object:
        """Say the weather.

        Args:
            city: where (choices: ["a", " b "])
        """


def bare() -> None:
    """Do nothing."""


@pytest.mark.parametrize("function", [plain, typed, Tools().method, bare], ids=lambda f: f.__name__)
def test_functions_as_tools(theirs, function) -> None:
    assert function_schema(function) == get_json_schema(function)
    source = PUBLISHED
    turns = [{"role": "user", "content": "q"}]
    expected = theirs.apply_chat_template(turns, chat_template=source, tools=[function], tokenize=False)
    ours = ChatTemplate(source).render(read_messages(turns), tools=[function], add_generation_prompt=False)
    assert ours == expected
