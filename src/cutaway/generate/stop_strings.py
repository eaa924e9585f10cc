"""`SampleText`: the text of one answer as its tokens come, ended by stop strings.

Stop strings are looked for in the text with special tokens, as transformers does, so ``"<|box_end|>"`` can end an
answer. Text that may turn out to be the beginning of a stop string is held back until that is known. Whole characters
are the work of the tokenizer's stream decoder. This module knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class TextDecoder(Protocol):
    """A tokenizer's decoder of one text: whole characters come out of `push`, what is left out of `finish`."""

    def push(self, ids: int, /) -> str:
        """Return the text that became certain with this token."""
        ...

    def finish(self) -> str:
        """Return what is left at the end."""
        ...


class TextTokenizer(Protocol):
    """What text needs of a tokenizer."""

    def stream(self, skip_special_tokens: bool = True) -> Any:
        """A new `TextDecoder` at the beginning of a text."""
        ...


Piece = tuple[str, str]
"""What became certain together: the text with special tokens, and the same text without them."""


class SampleText:
    """The text of one sample so far. `push` each id, then `finish`; `new` returns what is new and certain."""

    def __init__(self, tokenizer: TextTokenizer, stop: Sequence[str] = ()) -> None:
        self._decoders: tuple[TextDecoder, TextDecoder] = (tokenizer.stream(False), tokenizer.stream())
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=1)
        self._uncertain: list[Piece] = []  # may be the beginning of a stop string
        self._certain: list[Piece] = []
        self._returned = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All text that is certain so far, without special tokens and the stop string; after `finish` all of it."""
        return "".join(plain for _, plain in self._certain)

    @property
    def text_with_special_tokens(self) -> str:
        """As `text`, with special tokens and the end token."""
        return "".join(full for full, _ in self._certain)

    def push(self, token: int) -> bool:
        """Add a token. Return whether a stop string is complete; the text then ends before it."""
        full, plain = self._decoders
        return self._add((full.push(token), plain.push(token)))

    def finish(self, end_token: int | None = None) -> bool:
        """End the text: no token follows. Return whether it ended at a stop string.

        `end_token` is the end token that was chosen: part of the text with special tokens alone, and in no stop string.
        """
        full, plain = self._decoders
        if self.stopped or self._add((full.finish(), plain.finish())):
            return True
        self._certain += self._uncertain
        self._uncertain = []
        if end_token is not None:
            self._certain.append((full.push(end_token), ""))
        return False

    def new(self) -> str:
        """The text without special tokens that became certain since the last call."""
        pieces = self._certain[self._returned :]
        self._returned = len(self._certain)
        return "".join(plain for _, plain in pieces)

    def _add(self, piece: Piece) -> bool:
        """Move text that cannot belong to a stop string to `_certain`. Return whether a stop string is complete."""
        self._uncertain.append(piece)
        waiting = "".join(full for full, _ in self._uncertain)
        starts = [start for start in (waiting.find(stop) for stop in self._stop) if start >= 0]
        self.stopped = bool(starts)
        before, after = _split(self._uncertain, min(starts) if starts else len(waiting) - self._overlap(waiting))
        self._certain += [piece for piece in before if any(piece)]
        self._uncertain = [] if self.stopped else after
        return self.stopped

    def _overlap(self, text: str) -> int:
        """The length of the longest end of `text` that is the beginning of a stop string."""
        most = min(len(text), self._longest - 1)
        return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)


def _split(pieces: Sequence[Piece], length: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces before and after `length` characters of the text with special tokens.

    A special token that is cut has no plain text to cut with it.
    """
    before: list[Piece] = []
    for index, (full, plain) in enumerate(pieces):
        if len(full) > length:
            cut = length if full == plain else 0
            return [*before, (full[:length], plain[:cut])], [(full[length:], plain[cut:]), *pieces[index + 1 :]]
        before.append((full, plain))
        length -= len(full)
    return before, []
