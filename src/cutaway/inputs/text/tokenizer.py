"""Text to ids and back: the checkpoint's own tokenizer, read from its folder.

A *control token* is an added token that the file marks special (`<|im_end|>`, `<|image_pad|>` …). In a text that a user
typed it is text; in a prompt it is itself. Which is which is told by a *mark*, a private-use character that `protect`
puts inside a typed control token and that encoding takes out again.

This module does not know messages, images or the model; ids beyond the vocabulary only get a readable stand-in.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cutaway.errors import CheckpointError, InputError
from cutaway.storage import read_bytes, read_json

MARK = "\U0010fffd"
"""Stands after the first character of a control token that is meant as text; a mark in the text itself is doubled."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_LETTERS = {False: r"\p{L}", True: r"\p{L}\p{M}"}


def _splitter(marks: bool) -> str:
    """The published split pattern; Qwen3.5's counts combining marks as letters."""
    letters = _LETTERS[marks]
    word = f"[{letters}]+" if marks else r"\p{L}+"
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?" + word + r"|\p{N}| ?[^\s" + letters + r"\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def byte_table() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = byte_table()


@contextmanager
def _rust_errors(problem: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises into a `CheckpointError`; it panics on some split patterns."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{problem}: {str(error)[:300]}. Download the tokenizer files again.") from error


def _name(entry: Any) -> str | None:
    """A token's text, written as a string or as a dict with `content`."""
    return entry.get("content") if isinstance(entry, dict) else entry


class Tokenizer:
    """The checkpoint's tokenizer.

    - `eos_token`, `pad_token` and `eos_token_id`, `pad_token_id`: from tokenizer_config.json; None where it names none.
    - `padding_side`: ``"left"``, ``"right"``, or None when the file does not set one.
    - `special_tokens`: all named ones (`eos_token`, `bos_token` …) by their names, as chat templates get them.
    - `special_ids`: ids of the control tokens.
    """

    def __init__(self, backend: Backend, settings: dict[str, Any] | None = None) -> None:
        """`backend` is a byte-level tokenizer; `settings` the content of tokenizer_config.json."""
        if not isinstance(backend.decoder, decoders.ByteLevel):
            raise CheckpointError(
                f"only byte-level tokenizers are supported, which all Qwen models have; this one decodes with "
                f"{type(backend.decoder).__name__}."
            )
        settings = settings or {}
        self._backend = backend
        self._backend.no_padding()
        self._backend.no_truncation()
        self._add(settings.get("added_tokens_decoder") or {})
        self._added = self._backend.get_added_tokens_decoder()
        # the same vocabulary without added tokens: what a control token is encoded with when it is meant as text
        self._plain = Backend(backend.model)
        if backend.normalizer is not None:
            self._plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._plain.pre_tokenizer = backend.pre_tokenizer
        self.special_ids = frozenset(id for id, token in self._added.items() if token.special)
        self._control = sorted((self._added[id].content for id in self.special_ids), key=len, reverse=True)
        self._find_control = re.compile("|".join(map(re.escape, self._control)) or r"(?!)")
        self._find_added = re.compile(self._added_pattern())
        self.special_tokens = {
            key: name for key in _SPECIAL_TOKENS if isinstance(name := _name(settings.get(key)), str) and name
        }
        self.eos_token, self.pad_token = _name(settings.get("eos_token")), _name(settings.get("pad_token"))
        self.eos_token_id = self._optional(self.eos_token)
        self.pad_token_id = self._optional(self.pad_token)
        self.padding_side: str | None = settings.get("padding_side")
        if self.padding_side not in (None, "left", "right"):
            raise CheckpointError(
                f"padding_side in tokenizer_config.json is left or right; it is {self.padding_side!r}."
            )

    @classmethod
    def from_folder(cls, folder: str | Path, *, split_marks: bool = False) -> Tokenizer:
        """Reads tokenizer.json, or vocab.json and merges.txt where there is none, with tokenizer_config.json.

        `split_marks` is the model's (`cutaway.config.Config`), for the split pattern of vocab.json and merges.txt.
        Raises `CheckpointError` when files are missing or damaged.
        """
        folder = Path(folder)
        path = folder / "tokenizer_config.json"
        settings = read_json(path) if path.exists() else {}
        whole = folder / "tokenizer.json"
        with _rust_errors(f"The tokenizer files of {folder} cannot be read"):
            if whole.exists():
                return cls(Backend.from_buffer(read_bytes(whole)), settings)
            return cls(_from_merges(folder, marks=split_marks), settings)

    def _add(self, listed: dict[str, Any]) -> None:
        """Adds tokens that tokenizer_config.json lists and the tokenizer lacks; an id that does not fit is an error."""
        for wanted, entry in sorted(listed.items(), key=lambda pair: int(pair[0])):
            flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            if self._backend.token_to_id(entry["content"]) is None:
                self._backend.add_tokens([AddedToken(entry["content"], **flags)])
            if self._backend.token_to_id(entry["content"]) != int(wanted):
                raise CheckpointError(
                    f"tokenizer_config.json gives {entry['content']!r} the id {wanted}, the vocabulary gives "
                    f"{self._backend.token_to_id(entry['content'])}. The tokenizer files are not of one checkpoint."
                )

    def _added_pattern(self) -> str:
        """A pattern of all added tokens, with the whitespace that a token's flags let it swallow."""
        parts = []
        for token in sorted(self._added.values(), key=lambda token: len(token.content), reverse=True):
            before, after = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
            parts.append(f"{before}{re.escape(token.content)}{after}")
        return "(" + ("|".join(parts) or r"(?!)") + ")"

    def _optional(self, name: str | None) -> int | None:
        if name is None:
            return None
        result = self._backend.token_to_id(name)
        if result is None:
            raise CheckpointError(
                f"tokenizer_config.json names the token {name!r}, which the vocabulary does not have."
            )
        return result

    def __len__(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def token_to_id(self, name: str) -> int | None:
        """The id of a token by its exact name; None when there is none."""
        return self._backend.token_to_id(name)

    def name_of(self, id: int) -> str | None:
        """A token's exact name in the vocabulary (byte-level characters for ordinary ones); None when there is none."""
        return self._backend.id_to_token(id)

    def id_of(self, name: str) -> int:
        """The id of a token by its exact name; `InputError` when there is none."""
        result = self._backend.token_to_id(name)
        if result is None:
            raise InputError(
                f"the vocabulary has no token {name!r}. To see how a text is cut, use `strings(encode(...))`."
            )
        return result

    def protect(self, text: str) -> str:
        """`text` with a mark in every control token and in any end that could become one by joining, so that
        `encode_marked` reads them as text.
        """
        text = self._find_control.sub(lambda m: m[0][0] + MARK + m[0][1:], protect_nothing(text))
        for size in range(min(len(text), max(map(len, self._control), default=1) - 1), 0, -1):
            if any(len(token) > size and token.startswith(text[-size:]) for token in self._control):
                cut = len(text) - size + 1
                return text[:cut] + MARK + text[cut:]
        return text

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of `text`. With `special` control tokens in it are themselves, without they are encoded as text."""
        return self._ids(text) if special else self.encode_marked(self.protect(text))

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text in which `protect` has marked what is not to be read as control tokens."""
        if MARK not in text:
            return self._ids(text)
        ids: list[int] = []
        for index, piece in enumerate(self._find_added.split(text)):
            if index % 2 or MARK not in piece:
                ids += self._ids(piece)
            else:
                ids += self._ids(unprotect(piece), plain=True)
        return ids

    def _ids(self, text: str, plain: bool = False) -> list[int]:
        if not isinstance(text, str):
            raise InputError(f"text to encode is a string; got {type(text).__name__}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text must be valid Unicode; it has a lone surrogate at character {error.start}."
            ) from error
        with _rust_errors("The checkpoint's tokenizer cannot encode this text"):
            return (self._plain if plain else self._backend).encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids` (a list or 1-D tensor); incomplete characters become U+FFFD, unknown ids nothing."""
        return self._backend.decode(_id_list(ids), skip_special_tokens=skip_special_tokens)

    def batch_decode(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """`decode` of every row."""
        return [self.decode(row, skip_special_tokens) for row in rows]

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for; none for an id beyond the vocabulary."""
        name = self._backend.id_to_token(id)
        if name is None:
            return b""
        if all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return name.encode()

    def strings(self, ids: Iterable[int]) -> list[str]:
        """A readable piece per id: its text, bytes that are no whole character as ``<0xE4>``, an unknown id as
        ``<id 9>``.
        """
        return [self._readable(id) for id in _id_list(ids)]

    def _readable(self, id: int) -> str:
        content = self.token_bytes(id)
        if not content:
            return f"<id {id}>"
        text = content.decode("utf-8", errors="surrogateescape")
        return re.sub("[\udc80-\udcff]", lambda m: f"<0x{ord(m[0]) - 0xDC00:02X}>", text)

    def stream(self, skip_special_tokens: bool = True) -> StreamDecoder:
        """A decoder for ids that arrive one by one."""
        return StreamDecoder(self, skip_special_tokens)


class StreamDecoder:
    """Turns ids into text as they arrive, never cutting a character: the pieces joined are what `decode` gives."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: int | Iterable[int]) -> str:
        """The text that became certain with these ids; empty while a character is incomplete."""
        kept = [id for id in _id_list([ids] if isinstance(ids, int) else ids) if not self._skipped(id)]
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, kept)))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)

    def _skipped(self, id: int) -> bool:
        return self._skip and id in self._tokenizer.special_ids


def unprotect(text: str) -> str:
    """The text without the marks of `Tokenizer.protect`."""
    return re.sub(f"{MARK}({MARK}?)", r"\1", text)


def protect_nothing(text: str) -> str:
    """The text in the form that `encode_marked` reads, every control token in it being itself."""
    return text.replace(MARK, MARK + MARK)


def _id_list(ids: Any) -> list[int]:
    """Ids as a list of plain, non-negative ints."""
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if isinstance(listed, int):
        listed = [listed]
    for id in listed:
        if not isinstance(id, int) or not 0 <= id < 2**32:
            raise InputError(f"token ids are integers from 0; got {id!r}. For a batch use `batch_decode`.")
    return listed


def _from_merges(folder: Path, *, marks: bool) -> Backend:
    """A byte-level BPE tokenizer from vocab.json and merges.txt, with the published normaliser and split pattern."""
    files = [folder / "vocab.json", folder / "merges.txt"]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise CheckpointError(
            f"{folder} has no tokenizer: it needs tokenizer.json, or vocab.json and merges.txt; "
            f"{' and '.join(missing)} missing as well."
        )
    backend = Backend(models.BPE.from_file(str(files[0]), str(files[1])))
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_splitter(marks)), behavior="isolated", invert=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend
