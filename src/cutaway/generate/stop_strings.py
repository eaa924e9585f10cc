"""`RowText`: the text of one row as its tokens come, ended by stop strings.

It never hands out text that may turn out to be the beginning of a stop string; that no character is cut is the
tokenizer's stream decoder's work. It knows nothing else of tokenizers, and nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Decoding(Protocol):
    """A tokenizer's decoder for one row: whole characters come out of `push`, what is left out of `finish`."""

    def push(self, ids: int, /) -> str:
        """The text that became certain with this token."""
        ...

    def finish(self) -> str:
        """What is left at the end."""
        ...


class Decoder(Protocol):
    """What text needs of a tokenizer."""

    def stream(self, skip_special_tokens: bool = True) -> Any:
        """A new `Decoding` at the beginning of a text."""
        ...


class RowText:
    """The text of one row so far. `push` each id, then `finish`; `take` gives what is new and certain."""

    def __init__(self, tokenizer: Decoder, stop: Sequence[str] = ()) -> None:
        self._decoding: Decoding = tokenizer.stream()
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=1)
        self._held = ""  # text that may be the beginning of a stop string
        self._pieces: list[str] = []
        self._taken = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All text that is certain so far, without the stop string; after `finish` the whole of it."""
        return "".join(self._pieces)

    def push(self, token: int) -> bool:
        """Adds a token. Returns whether a stop string is complete; the text then ends before it."""
        return self._add(self._decoding.push(token))

    def finish(self) -> bool:
        """No token follows: hands on what was held back. Returns whether the text ends at a stop string."""
        if not self.stopped and not self._add(self._decoding.finish()) and self._held:
            self._pieces.append(self._held)
            self._held = ""
        return self.stopped

    def take(self) -> str:
        """The text that became certain since the last call."""
        fresh = self._pieces[self._taken :]
        self._taken = len(self._pieces)
        return "".join(fresh)

    def _add(self, fresh: str) -> bool:
        """Hands on the part of the text that cannot belong to a stop string. Returns whether one is complete."""
        held = self._held + fresh
        found = [place for place in (held.find(stop) for stop in self._stop) if place >= 0]
        self.stopped = bool(found)
        certain = min(found) if found else len(held) - self._overlap(held)
        if certain:
            self._pieces.append(held[:certain])
        self._held = "" if found else held[certain:]
        return self.stopped

    def _overlap(self, text: str) -> int:
        """The length of the longest end of `text` that is the beginning of a stop string."""
        most = min(len(text), self._longest - 1)
        return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
