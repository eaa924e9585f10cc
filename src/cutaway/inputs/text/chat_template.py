"""Messages to a prompt: the checkpoint's own chat template, and the images and videos that messages carry.

Messages are in OpenAI's form: dicts with `role` and `content`, which is a string or a list of parts (`text`, `image`,
`image_url`, `video`, `video_url`). Their order is kept. Control tokens that a user typed are marked before the template
runs (`Tokenizer.protect`), so that they stay text while the template's own ones count.

This module does not open images and does not tokenise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cutaway.errors import CheckpointError, InputError
from cutaway.inputs.text.tokenizer import unprotect

ROLES = ("system", "user", "assistant", "tool")
_SOURCES = {
    "image": ("image", "image_url", "url", "path", "base64"),
    "video": ("video", "video_url", "url", "path", "base64"),
}
_NAMES = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "input_text": "text",
    "output_text": "text",
}

FROM_ARGUMENTS = object()
"""Stands for an image or video that a part announces and that the call's `images=` or `videos=` holds."""


class Prompt(str):
    """A rendered prompt: plain text to look at and pass on, that remembers which control tokens a user typed as text.

    `marked` is the same text with marks (see `cutaway.inputs.text.tokenizer`). Editing a prompt gives an ordinary string, in
    which every control token is itself.
    """

    marked: str

    def __new__(cls, marked: str) -> Prompt:
        """A prompt from a text with marks."""
        made = super().__new__(cls, unprotect(marked))
        made.marked = marked
        return made


@dataclass(frozen=True)
class Conversation:
    """Checked messages, each part reduced to what a template reads, and the media of the parts in order.

    An entry of `images` or `videos` is `GIVEN_APART` where the part names no source.
    """

    messages: list[dict[str, Any]]
    images: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)


def is_messages(value: Any) -> bool:
    """Whether a value is one list of messages (and not a prompt or a batch)."""
    return isinstance(value, Sequence) and bool(value) and all(isinstance(item, Mapping) for item in value)


def read_messages(messages: Any) -> Conversation:
    """Checks messages and collects their media. `InputError` says which message and part is wrong."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError(f"messages are a list of at least one dict with `role` and `content`; got {_short(messages)}.")
    conversation = Conversation([])
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InputError(f"{where} must be a dict with `role` and `content`; got {_short(message)}.")
        if message.get("role") not in ROLES:
            raise InputError(f"{where} has the role {message.get('role')!r}; roles are {', '.join(ROLES)}.")
        read = {key: value for key, value in message.items() if value is not None}
        read["content"] = _content(message, where, conversation)
        conversation.messages.append(read)
    return conversation


def _content(message: Mapping[str, Any], where: str, conversation: Conversation) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("role") == "assistant":  # a turn of tool calls alone
        return ""
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise InputError(f"{where}.content must be a string or a list of parts; got {_short(content)}.")
    return [_part(part, f"{where}.content[{index}]", conversation) for index, part in enumerate(content)]


def _part(part: Any, where: str, conversation: Conversation) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InputError(f"{where} must be a dict such as {{'type': 'text', 'text': ...}}; got {_short(part)}.")
    filled = {key: value for key, value in part.items() if value is not None}
    kind = _kind(filled, where)
    if kind == "text":
        if not isinstance(filled.get("text"), str):
            raise InputError(
                f"{where} is a text part, so its `text` must be a string; got {_short(filled.get('text'))}."
            )
        return {"type": "text", "text": filled["text"]}
    (conversation.images if kind == "image" else conversation.videos).append(_source(filled, kind, where))
    return {"type": kind}


def _kind(part: Mapping[str, Any], where: str) -> str:
    """``text``, ``image`` or ``video``, from the part's `type` or, without one, its keys."""
    stated = part.get("type")
    if stated is None:
        stated = next((key for key in ("image", "image_url", "video", "video_url", "text") if key in part), None)
    kind = _NAMES.get(stated, stated) if isinstance(stated, str) else stated
    if kind not in ("text", "image", "video"):
        raise InputError(f"{where} has the type {stated!r}; parts are text, image, image_url, video and video_url.")
    return kind


def _source(part: Mapping[str, Any], kind: str, where: str) -> Any:
    """What a media part points to; `GIVEN_APART` when it points to nothing."""
    keys = [key for key in part if key in _SOURCES[kind]]
    other = [key for key in part if key not in (*_SOURCES[kind], "type", "detail", "cache_control", "uuid")]
    if other:
        raise InputError(
            f"{where} has {', '.join(map(repr, other))}, which a part cannot set; give such options to the call, where "
            f"they hold for every {kind} of it."
        )
    if len(keys) > 1:
        raise InputError(f"{where} names more than one source: {', '.join(keys)}. Keep one.")
    if not keys:
        return FROM_ARGUMENTS
    source = part[keys[0]]
    if isinstance(source, Mapping):  # OpenAI's {"image_url": {"url": ...}}
        if not isinstance(source.get("url"), str):
            raise InputError(f"{where}.{keys[0]} is a dict, so it must have a `url` string; got {_short(source)}.")
        source = source["url"]
    return source


class ChatTemplate:
    """A chat template, run in a sandbox that can neither reach Python's internals nor change its arguments."""

    def __init__(self, source: str | Mapping[str, str]) -> None:
        """`source` is the template's text, or named texts (``default``, ``tool_use`` …)."""
        self.texts = {"default": source} if isinstance(source, str) else dict(source)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatTemplate | None:
        """The template of chat_template.jinja, chat_template.json or tokenizer_config.json; None where none has one."""
        folder = Path(folder)
        try:
            if (folder / "chat_template.jinja").exists():
                return cls((folder / "chat_template.jinja").read_text(encoding="utf-8"))
            for name in ("chat_template.json", "tokenizer_config.json"):
                if (folder / name).exists():
                    found = json.loads((folder / name).read_text(encoding="utf-8")).get("chat_template")
                    if found is not None:
                        return cls(_named(found, folder / name))
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the chat template of {folder} cannot be read: {error}. Download it again."
            ) from error
        return None

    def text(self, tools: bool = False, name: str | None = None) -> str:
        """The template's text: by `name`, else ``tool_use`` when there are tools and it exists, else ``default``."""
        wanted = name or ("tool_use" if tools and "tool_use" in self.texts else "default")
        if wanted not in self.texts:
            raise InputError(
                f"there is no chat template named {wanted!r}; this checkpoint has {', '.join(self.texts)}."
            )
        return self.texts[wanted]

    def render(
        self,
        conversation: Conversation,
        *,
        protect: Callable[[str], str] = str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        name: str | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt of checked messages. `variables` reach the template (`add_vision_id`, `enable_thinking` …).

        `protect` marks control tokens in all text that the caller gave. `InputError` carries a template's complaint.
        """
        template = _compiled(self.text(bool(tools), name))
        messages = [
            {key: value if key == "role" else _protected(value, protect) for key, value in message.items()}
            for message in conversation.messages
        ]
        given = _protected(list(tools), protect) if tools else None
        try:
            return Prompt(
                template.render(
                    messages=messages, tools=given, add_generation_prompt=add_generation_prompt, **variables
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            said = str(error).rstrip(".")
            raise InputError(
                f"the checkpoint's chat template refuses these messages: {said}. Change the messages, or write the "
                f"prompt yourself as a string."
            ) from error


def _named(found: Any, path: Path) -> str | dict[str, str]:
    """A template as files hold it: a text, or a list of ``{"name": …, "template": …}``, or a dict of texts."""
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found}
    if isinstance(found, str) or (isinstance(found, dict) and all(isinstance(v, str) for v in found.values())):
        return found
    raise CheckpointError(f"chat_template in {path} must be a text or a list of named texts; it is {_short(found)}.")


def _protected(value: Any, protect: Callable[[str], str]) -> Any:
    """`value` with every string in it, at any depth, marked."""
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, Mapping):
        return {_protected(key, protect): _protected(entry, protect) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_protected(entry, protect) for entry in value]
    return value


@lru_cache(maxsize=32)
def _compiled(text: str) -> jinja2.Template:
    """A compiled template, with what published ones use: loop controls, `raise_exception`, `strftime_now`, `tojson`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template is not valid Jinja: {error}. Download it again.") from error


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as the models were trained on it: no HTML escapes, characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _short(value: Any) -> str:
    """A value for an error message: its type, and its text where that is short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 60 else type(value).__name__
