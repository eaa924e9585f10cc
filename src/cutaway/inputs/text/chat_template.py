"""Messages to a prompt: the checkpoint's own chat template, run in a sandbox with bounds.

`ChatTemplate.from_folder` finds the template, `render` gives the prompt that transformers' `apply_chat_template` gives.
Control tokens that a user typed are marked before the template runs (`Tokenizer.protect`), so that they stay text while
the template's own ones count. This module does not check messages (`messages`), open images or tokenise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension

from cutaway.batch import GeneratedText
from cutaway.errors import CheckpointError, InputError
from cutaway.inputs.text.messages import REASONING, Conversation, plain_data, short
from cutaway.inputs.text.template_limits import (
    BoundedEnvironment,
    Budget,
    OverLimit,
    TemplateNamespace,
    bounded_filter,
    limits,
    measure,
)
from cutaway.inputs.text.tokenizer import unprotect
from cutaway.inputs.text.tool_schemas import read_tools
from cutaway.storage import read_json, read_text

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Put behind the last message while it is rendered, to find where it ends."""


class Prompt(str):
    """A rendered prompt: plain text to look at and pass on, that remembers which control tokens a user typed as text.

    `marked` is the same text with marks (see `cutaway.inputs.text.tokenizer`). Editing a prompt gives an ordinary
    string, in which every control token is itself.
    """

    marked: str

    def __new__(cls, marked: str) -> Prompt:
        """Return a prompt from a text with marks."""
        prompt = super().__new__(cls, unprotect(marked))
        prompt.marked = marked
        return prompt


class ChatTemplate:
    """A chat template, run in a sandbox that can neither reach Python's internals nor change its arguments.

    Time, memory and output are bounded: a template that goes beyond is the checkpoint's fault (`CheckpointError`).
    """

    def __init__(self, source: str | Mapping[str, str]) -> None:
        """`source` is the template's text, or named texts (``default``, ``tool_use`` …)."""
        self.texts = {"default": source} if isinstance(source, str) else dict(source)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatTemplate | None:
        """Return the template of chat_template.jinja, chat_template.json or tokenizer_config.json; None without one."""
        folder = Path(folder)
        if (folder / "chat_template.jinja").exists():
            return cls(read_text(folder / "chat_template.jinja"))
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (folder / name).exists():
                content = read_json(folder / name).get("chat_template")
                if content is not None:
                    return cls(_named(content, folder / name))
        return None

    def text(self, tools: bool = False, name: str | None = None) -> str:
        """Return the template's text: by `name`, else ``tool_use`` with tools if it exists, else ``default``.

        A `name` with Jinja's braces in it is a template itself.
        """
        if name is not None and not isinstance(name, str):
            raise InputError(f"`chat_template` is the name of a template, or its text; got {short(name)}.")
        if name and ("{{" in name or "{%" in name):
            return name
        key = name or ("tool_use" if tools and "tool_use" in self.texts else "default")
        if key not in self.texts:
            raise InputError(f"There is no chat template named {key!r}; this checkpoint has {', '.join(self.texts)}.")
        return self.texts[key]

    def reads(self, tools: bool = False, name: str | None = None) -> frozenset[str]:
        """Return the names of the variables that the template reads."""
        return _compiled(self.text(tools, name))[1]

    def render(
        self,
        conversation: Conversation,
        *,
        protect: Callable[[str], str] = str,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        name: str | None = None,
        **variables: Any,
    ) -> Prompt:
        """Return the prompt of checked messages.

        - `protect` marks control tokens in all text that the caller gave.
        - `tools`: JSON schemas, and functions (`cutaway.inputs.text.tool_schemas`).
        - `continue_final_message`: end the prompt inside the last message, so that the model continues it; a string
          names the key to continue (``"reasoning_content"``).
        - `variables` reach the template (`add_vision_id`, `enable_thinking`, `eos_token` …).

        Raises `InputError` with a template's complaint, `CheckpointError` for a template beyond bounds.
        """
        source = self.text(bool(tools), name)
        messages = [
            {key: value if key == "role" else _protected(value, protect) for key, value in message.items()}
            for message in _with_arguments(conversation.messages, source)
        ]
        schemas = _protected(plain_data(read_tools(tools), "`tools`"), protect)
        variables = {key: plain_data(value, f"`{key}`") for key, value in variables.items()}
        final = _tag_final(messages, continue_final_message, source) if continue_final_message else None
        text = _run(
            _compiled(source)[0],
            {"documents": None, **variables, "messages": messages, "tools": schemas}
            | {"add_generation_prompt": add_generation_prompt},
        )
        return Prompt(text if final is None else _cut_at_tag(text, final))

    def left_out(self, conversation: Conversation, prompt: str, tools: Sequence[Any] | None, name: str | None) -> str:
        """Return in words what the template did not put into a prompt: messages and tools; empty when all is there.

        Thinking that an assistant's message begins with is left out by design, and generated answers are put in as ids.
        """
        missing = []
        for index, message in enumerate(conversation.messages):
            content = message["content"]
            if isinstance(content, GeneratedText):
                continue
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            if message["role"] == "assistant":
                texts = [text.rpartition("</think>")[2] for text in texts]
            if any(text.strip() and not _shown(text, prompt) for text in texts):
                missing.append(f"messages[{index}] ({message['role']})")
        if tools and "tools" not in self.reads(True, name):
            missing.append("the tools")
        return ", ".join(missing)


def _shown(text: str, prompt: str) -> bool:
    """Return whether a prompt has a text, or a line of it: templates trim, and leave out earlier thinking."""
    return text.strip() in prompt or any(line.strip() in prompt for line in text.splitlines() if line.strip())


def _run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Return what a template writes."""
    try:
        with limits(Budget(*measure(*variables.values()))) as budget:
            pieces = []
            for piece in template.generate(variables):
                budget.spend(len(piece))
                pieces.append(piece)
    except (OverLimit, RecursionError, MemoryError) as error:
        raise CheckpointError(
            f"The checkpoint's chat template goes beyond the bounds of one: {error or 'it nests too deep'}. Use the "
            f"template of the original checkpoint."
        ) from error
    except Exception as error:  # a template is a program: it can raise anything
        complaint = str(error).rstrip(".")
        complaint = complaint if len(complaint) <= 300 else f"{complaint[:300]}…"
        raise InputError(
            f"The checkpoint's chat template refuses these messages: {complaint}. Change the messages, or write the "
            f"prompt yourself as a string."
        ) from error
    return "".join(pieces)


def _with_arguments(messages: Sequence[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Return messages with the `arguments` of tool calls as dicts, unless the template takes them as JSON text too."""
    if re.search(r"arguments\s+is\s+(not\s+)?(string|mapping)", source):
        return list(messages)
    return [
        {**message, "tool_calls": [_with_dict(call, f"messages[{n}].tool_calls[{m}]") for m, call in enumerate(calls)]}
        if isinstance(calls := message.get("tool_calls"), list)
        else message
        for n, message in enumerate(messages)
    ]


def _with_dict(call: Any, where: str) -> Any:
    if not isinstance(call, dict):
        raise InputError(f"{where} is a dict with a `function`; got {short(call)}.")
    if isinstance(call.get("function"), dict):
        return {**call, "function": _with_dict(call["function"], f"{where}.function")}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}.arguments is a dict, or JSON of one; got text that is not JSON ({error})."
        ) from error
    if not isinstance(read, dict):
        raise InputError(f"{where}.arguments is a dict, or JSON of one; got JSON of {short(read)}.")
    return {**call, "arguments": plain_data(read, f"{where}.arguments")}


def _tag_final(messages: list[dict[str, Any]], field: bool | str, source: str) -> str:
    """Put the tag behind what the last message says under `field`; return that text. As transformers does."""
    field, last = field if isinstance(field, str) else "content", messages[-1]
    fields = [name for name in REASONING if last.get(name) == last.get(field)] if field in REASONING else [field]
    text = last.get(field)
    if text is None:
        raise InputError(f"`continue_final_message` continues {field!r} of the last message, which has none.")
    if not any(name in source for name in fields):
        raise InputError(f"`continue_final_message` continues {field!r}, which the chat template does not read.")
    if isinstance(text, list):
        part = next((part for part in reversed(text) if isinstance(part, dict) and "text" in part), None)
        if part is None:
            raise InputError("`continue_final_message` continues text, and the last message has no part with text.")
        text = part["text"]
        part["text"] += _TAG
    elif not isinstance(text, str):
        raise InputError(f"`continue_final_message` continues text; {field!r} of the last message is {short(text)}.")
    else:
        for name in fields:
            last[name] += _TAG
    return text


def _cut_at_tag(text: str, final: str) -> str:
    """Return the prompt up to the end of the last message's text."""
    if final.strip() not in text or _TAG.strip() not in text:
        raise InputError(
            "`continue_final_message` needs the last message in the prompt, and the chat template leaves it out or "
            "changes it. Write the prompt yourself as a string."
        )
    end = text.rindex(_TAG.strip())
    return text[:end] if text.startswith(_TAG, end) else text[:end].rstrip()


def _named(content: Any, path: Path) -> str | dict[str, str]:
    """Return a template as files hold it: a text, a list of ``{"name": …, "template": …}``, or a dict of texts."""
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        content = {entry.get("name"): entry.get("template") for entry in content}
    if isinstance(content, str):
        return content
    if isinstance(content, dict) and all(isinstance(part, str) for pair in content.items() for part in pair):
        return content
    raise CheckpointError(f"chat_template in {path} must be a text or a list of named texts; got {short(content)}.")


def _protected(value: Any, protect: Callable[[str], str]) -> Any:
    """Return `value` with every string in it, at any depth, marked."""
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, Mapping):
        return {_protected(key, protect): _protected(entry, protect) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_protected(entry, protect) for entry in value)
    return value


@lru_cache(maxsize=32)
def _compiled(text: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return a compiled template, and the names that it reads; with the extensions and functions of transformers'."""
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlocks]
    )
    environment.filters["tojson"] = bounded_filter("tojson", _to_json)
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "dict": _TemplateDict(),
        "namespace": TemplateNamespace,
    }
    try:
        template = environment.bounded(text)
        names = meta.find_undeclared_variables(environment.parse(text))
    except OverLimit as error:
        raise CheckpointError(
            f"The chat template goes beyond the bounds of one: {error}. Use the template of the original checkpoint."
        ) from error
    except (jinja2.TemplateError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"The chat template is not valid Jinja: {str(error)[:300]}. Download it again."
        ) from error
    return template, frozenset(names - set(environment.globals))


class _GenerationBlocks(Extension):
    """Accepts ``{% generation %}``, which marks what a model is trained on; its content is written as it is."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """The `dict` of a template: a function, which gives no way to the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as the models were trained on it: no HTML escapes, characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    if len(form) > 1000:
        raise OverLimit("it asks for a date of more than 1,000 characters")
    return datetime.now().strftime(form)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
