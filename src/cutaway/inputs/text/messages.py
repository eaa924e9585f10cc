"""Messages: the checks of a conversation, and the images and videos that its parts carry.

Messages are in OpenAI's form: dicts (or dataclasses, and objects with `model_dump`) with `role` and `content`, which is
a string or a list of parts (`text`, `image`, `image_url`, `video`, `video_url`). Their order is kept. `read_messages`
gives what a chat template reads: plain data, media taken out of it. Nothing is opened, rendered or tokenised here.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutaway.errors import InputError

ROLES = ("system", "user", "assistant", "tool")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The keys that a message's reasoning comes under; templates read the first."""

DEPTH_LIMIT, ENTRY_LIMIT = 48, 200_000
"""Levels of nesting, and entries in all, of what a template reads."""

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


@dataclass(frozen=True)
class Conversation:
    """Checked messages, each part reduced to what a template reads, and the media of the parts in order.

    An entry of `images` or `videos` is `FROM_ARGUMENTS` where the part names no source.
    """

    messages: list[dict[str, Any]]
    images: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)


def is_messages(value: Any) -> bool:
    """Return whether a value is one list of messages (and not a prompt or a batch)."""
    return isinstance(value, Sequence) and bool(value) and all(_as_mapping(item) is not None for item in value)


def read_messages(messages: Any) -> Conversation:
    """Check messages and collect their media. Raises `InputError` that says which message and key is wrong."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError(f"Messages are a list of at least one dict with `role` and `content`; got {short(messages)}.")
    conversation = Conversation([])
    for index, entry in enumerate(messages):
        where, message = f"messages[{index}]", _as_mapping(entry)
        if message is None:
            raise InputError(f"{where} must be a dict with `role` and `content`; got {short(entry)}.")
        if message.get("role") not in ROLES:
            raise InputError(f"{where} has the role {short(message.get('role'))}; roles are {', '.join(ROLES)}.")
        content = _content(message, where, conversation)
        read = {
            key: content if key == "content" else plain_data(value, f"{where}.{key}")
            for key, value in message.items()
            if value is not None
        }
        reasoning = next((read[key] for key in REASONING if key in read), None)
        if reasoning is not None:
            read = {"thinking": reasoning, **read, "reasoning_content": reasoning}
        conversation.messages.append({"content": content} | read)
    return conversation


def plain_data(value: Any, where: str) -> Any:
    """Return data for a template: texts, numbers, lists and dicts at any depth, and a type's name for anything else.

    A template is code that came with a checkpoint, so it gets no object with methods of its own. Raises `InputError`
    for data nested more than `DEPTH_LIMIT` deep, such as a list that holds itself, and for more than `ENTRY_LIMIT`
    entries.
    """
    return _Plain(where).read(value, 0)


class _Plain:
    def __init__(self, where: str) -> None:
        self._where, self._entries = where, 0

    def read(self, value: Any, depth: int) -> Any:
        self._entries += 1
        if depth > DEPTH_LIMIT:
            raise InputError(f"{self._where} is nested more than {DEPTH_LIMIT} deep, or holds itself. Flatten it.")
        if self._entries > ENTRY_LIMIT:
            raise InputError(f"{self._where} has more than {ENTRY_LIMIT:,} entries. Shorten it.")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, (list, tuple)):
            entries = [self.read(entry, depth + 1) for entry in value]
            return tuple(entries) if isinstance(value, tuple) else entries
        mapping = _as_mapping(value)
        if mapping is None:
            return f"<{type(value).__name__}>"
        return {self.read(key, depth + 1): self.read(entry, depth + 1) for key, entry in mapping.items()}


def _as_mapping(value: Any) -> Mapping[Any, Any] | None:
    """Return a mapping, dataclass or pydantic model as a mapping; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    for name in ("model_dump", "dict"):
        if callable(getattr(value, name, None)):
            dumped = getattr(value, name)()
            return dumped if isinstance(dumped, Mapping) else None
    return None


def _content(message: Mapping[str, Any], where: str, conversation: Conversation) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("role") == "assistant":  # a turn of tool calls alone
        return ""
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise InputError(f"{where}.content must be a string or a list of parts; got {short(content)}.")
    return [_part(part, f"{where}.content[{index}]", conversation) for index, part in enumerate(content)]


def _part(entry: Any, where: str, conversation: Conversation) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"type": "text", "text": entry}
    part = _as_mapping(entry)
    if part is None:
        raise InputError(f"{where} must be a dict such as {{'type': 'text', 'text': ...}}; got {short(entry)}.")
    filled = {key: value for key, value in part.items() if value is not None}
    kind = _kind(filled, where)
    if kind == "text":
        if not isinstance(filled.get("text"), str):
            raise InputError(
                f"{where} is a text part, so its `text` must be a string; got {short(filled.get('text'))}."
            )
        return {"type": "text", "text": filled["text"]}
    (conversation.images if kind == "image" else conversation.videos).append(_source(filled, kind, where))
    return {"type": kind}


def _kind(part: Mapping[str, Any], where: str) -> str:
    """Return ``text``, ``image`` or ``video``, from the part's `type` or, without one, its keys."""
    stated = part.get("type")
    if stated is None:
        stated = next((key for key in ("image", "image_url", "video", "video_url", "text") if key in part), None)
    kind = _NAMES.get(stated, stated) if isinstance(stated, str) else None
    if kind not in ("text", "image", "video"):
        raise InputError(f"{where} has the type {short(stated)}; parts are {', '.join(('text', *_SOURCES, *_NAMES))}.")
    return kind


def _source(part: Mapping[str, Any], kind: str, where: str) -> Any:
    """Return what a media part points to; `FROM_ARGUMENTS` when it points to nothing."""
    keys = [key for key in part if key in _SOURCES[kind]]
    other = [key for key in part if key not in (*_SOURCES[kind], "type", "detail", "cache_control", "uuid")]
    if other:
        raise InputError(
            f"{where} has {', '.join(map(short, other))}, which a part cannot set. Give such options to the call, "
            f"where they hold for every {kind} of it."
        )
    if len(keys) > 1:
        raise InputError(f"{where} names more than one source: {', '.join(keys)}. Keep one.")
    if not keys:
        return FROM_ARGUMENTS
    source = part[keys[0]]
    inner = None if isinstance(source, (str, bytes)) else _as_mapping(source)
    if inner is not None:  # OpenAI's {"image_url": {"url": ...}}
        if not isinstance(inner.get("url"), str):
            raise InputError(f"{where}.{keys[0]} is a dict, so it must have a `url` string; got {short(source)}.")
        source = inner["url"]
    return source


def short(value: Any) -> str:
    """Return a value for an error message: its type, and its text where that is short."""
    describe = reprlib.Repr()
    describe.maxstring = describe.maxother = describe.maxlong = 70
    try:
        text = describe.repr(value)
    except Exception:  # a value's own repr may raise anything
        text = " " * 61
    kind = type(value).__name__
    if isinstance(value, str) or value is None:
        return text if len(text) <= 60 else f"a text of {len(value):,} characters" if value else text
    return f"{kind} {text}" if len(text) <= 60 else kind
