"""Earlier answers put into a prompt as the ids they were generated as, not as ids of their text.

Text that is tokenized again can give other ids, and special tokens that the model wrote would be lost. Which part of a
rendered prompt is an answer is found out by rendering once more with a mark behind it, so that any chat template works:
an answer that the template shows in part (without its thinking, say) keeps the ids of that part, and one that it
rewrites is tokenized as text. This module knows no media.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from cutaway.batch import GeneratedText
from cutaway.inputs.text.tokenizer import MARK, Tokenizer, unprotect

END = "\U0010fffc"
"""Marks the end of an answer. A prompt that has the character itself is tokenized as text."""

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class GeneratedSpan:
    """The part of a prompt with marks, from character `start` to `end`, that is to be these `ids`."""

    start: int
    end: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class RenderedPrompt:
    """One sample: its prompt with marks, the media of its messages (None for a string prompt), and earlier answers."""

    marked: str
    images: list[Any] | None = None
    videos: list[Any] | None = None
    answers: tuple[GeneratedSpan, ...] = ()

    def pieces(self) -> Iterator[str | tuple[int, ...]]:
        """The prompt in order: text with marks, and ids that were generated."""
        end = 0
        for answer in self.answers:
            yield self.marked[end : answer.start]
            yield answer.ids
            end = answer.end
        yield self.marked[end:]


def render_answers(
    messages: Messages, render: Callable[[Messages], str], tokenizer: Tokenizer
) -> tuple[str, tuple[GeneratedSpan, ...]]:
    """The prompt with marks that `render` makes of the messages, and the parts of it that are generated ids."""
    answers = {
        index: message["content"]
        for index, message in enumerate(messages)
        if isinstance(message["content"], GeneratedText) and message["content"].ids
    }
    if not answers:
        return render(messages), ()
    words = {index: [tokenizer.token_bytes(id) for id in answer.ids] for index, answer in answers.items()}
    shown = _with_content(messages, {index: _text(b"".join(parts)) for index, parts in words.items()})
    marked = render(shown)
    spans = []
    for index, answer in answers.items():
        content = shown[index]["content"]
        kept = len(content.rstrip())
        ended = unprotect(render(_with_content(shown, {index: f"{content[:kept]}{END}{content[kept:]}"})))
        span = _span(unprotect(marked), ended, content, words[index])
        if span is not None:
            start, end, first, last = span
            spans.append(GeneratedSpan(*_marked_offsets(marked, (start, end)), answer.ids[first:last]))
    return re.sub("[\udc80-\udcff]", "\ufffd", marked), tuple(spans)


def _span(prompt: str, ended: str, content: str, words: Sequence[bytes]) -> tuple[int, int, int, int] | None:
    """Characters of the prompt and the answer's tokens that they are, each from and to; None where there are none."""
    if ended.count(END) != 1 or ended.replace(END, "") != prompt:
        return None
    end, kept = ended.index(END), len(content.rstrip())
    if prompt[end:].startswith(content[kept:]):  # the template keeps the white space at the end
        end, kept = end + len(content) - kept, len(content)
    length = len(_bytes(content[:kept]))
    ends = list(accumulate(map(len, words)))
    last = sum(stop <= length for stop in ends)  # tokens that end within the part shown
    if not last:
        return None
    before = _bytes(prompt[:end])
    stop = start = len(before) - (length - ends[last - 1])
    first = last
    while first and before.endswith(words[first - 1], 0, start):
        first -= 1
        start -= len(words[first])
    while first < last and not (_whole(before, start) and _whole(before, stop)):
        start += len(words[first])
        first += 1
    if first == last:
        return None
    return len(_text(before[:start])), len(_text(before[:stop])), first, last


def _whole(text: bytes, offset: int) -> bool:
    """Whether no character of the text lies across this offset."""
    return len(_text(text[:offset])) + len(_text(text[offset:])) == len(_text(text))


def _marked_offsets(marked: str, offsets: tuple[int, int]) -> tuple[int, int]:
    """Offsets into the prompt with marks, from offsets into the prompt without."""
    positions = []  # of every character of the prompt without marks
    at = 0
    while at < len(marked):
        at += marked[at] == MARK  # the character behind a mark is itself, a mark too
        positions.append(at)
        at += 1
    positions.append(len(marked))
    start, end = offsets
    return positions[start], positions[end - 1] + 1


def _with_content(messages: Messages, contents: dict[int, str]) -> Messages:
    return [
        {**message, "content": contents[index]} if index in contents else message
        for index, message in enumerate(messages)
    ]


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
