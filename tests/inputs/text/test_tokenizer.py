"""The tokenizer on Qwen's real vocabularies: ids, typed control tokens, streaming, fallback files, bad files."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from qwen_vocabulary import FIRST, PLAIN, SECOND, SETTINGS, build, pattern, ranks
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import CheckpointError, InputError
from cutaway.inputs.text.tokenizer import MARK, Tokenizer, unprotect

DATA = Path(__file__).parents[2] / "data" / "oracle" / "ckpt"
SAMPLES = [
    "Hello, world!", "  leading and  double  spaces", "tabs\tand\nnew\r\nlines\n\n\n", "don't I'LL we'Ve", "12345 6.78",
    "中文字符与English混排。", "日本語のテキスト", "Привет, мир!", "مرحبا بالعالم", "👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "e\u0301 vs \u00e9", "<0.5 seconds>", "x = {'a': [1, 2]}  # code", "\u200b\ufeff zero width",
    "한국어 문장입니다", "हिन्दी पाठ",
    "\x00\x01\x7f control", "a" * 300, " " * 90, "\n" * 40, "",
]  # fmt: skip


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer(build(), SETTINGS)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_folder(DATA / "qwen3_vl")


@pytest.mark.parametrize("file", [FIRST, pytest.param(SECOND, marks=pytest.mark.slow)])
def test_ids_equal_tiktoken(file: str) -> None:
    ours, known = Tokenizer(build(file), SETTINGS), ranks(file)
    theirs = tiktoken.Encoding(
        "qwen", pat_str=pattern(file.startswith("qwen3")), mergeable_ranks=known, special_tokens={}
    )
    for text in SAMPLES:
        normal = unicodedata.normalize("NFC", text)
        assert ours.encode(text) == theirs.encode(normal, disallowed_special=()), text
        assert ours.decode(ours.encode(text)) == normal


def test_published_ids(real: Tokenizer) -> None:
    assert real.encode("<0.3 seconds>") == [27, 15, 13, 18, 6486, 29]
    assert (real.eos_token_id, real.pad_token_id) == (151645, 151643)
    assert real.token_to_id("<|image_pad|>") == 151655
    assert real.id_of("</think>") == 151668
    assert real.padding_side is None
    assert len(real) == 151669


def test_skipping_keeps_thinking_and_tools(real: Tokenizer) -> None:
    ids = real.encode("<think>a</think><tool_call><|im_end|>")
    assert real.decode(ids) == "<think>a</think><tool_call>"
    assert real.decode(ids, skip_special_tokens=False) == "<think>a</think><tool_call><|im_end|>"
    assert real.batch_decode([ids[:2], ids[-1:]]) == ["<think>a", ""]


def test_typed_control_tokens_are_text(real: Tokenizer) -> None:
    text = "see <|image_pad|> and <|im_end|>!"
    assert real.id_of("<|image_pad|>") in real.encode(text)
    ids = real.encode(text, special=False)
    assert not set(ids) & real.special_ids
    assert real.decode(ids) == text


def test_marked_text_is_split_as_if_it_had_no_marks(real: Tokenizer) -> None:
    """Only what is a control token changes: the pieces beside it are those of the plain text."""
    marked = "<|im_start|>user\nHi " + real.protect("there<|im_end|> you") + "<|im_end|>"
    ids = real.encode_marked(marked)
    plain = Tokenizer(_without_control()).encode("user\nHi there<|im_end|> you")
    assert ids == [151644, *plain, 151645]


def _without_control() -> Backend:
    full = build()
    bare = Backend(full.model)
    bare.normalizer, bare.pre_tokenizer, bare.decoder = full.normalizer, full.pre_tokenizer, decoders.ByteLevel()
    return bare


pieces = st.sampled_from(
    ["<", "<|", "<|im", "_end|>", "<|im_end|>", "<|image_pad|>", "image_pad|>", MARK, "|", ">", "a", " ", "\n", "é"]
)


@given(st.lists(pieces, max_size=8))
def test_no_way_of_joining_parts_makes_a_control_token(parts: list[str]) -> None:
    tokenizer = Tokenizer(build(), SETTINGS)
    joined = "".join(map(tokenizer.protect, parts))
    assert unprotect(joined) == "".join(parts)
    ids = tokenizer.encode_marked(joined)
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", "".join(parts))


@given(st.text(max_size=40), st.booleans())
def test_streamed_pieces_join_to_the_whole(text: str, skip: bool) -> None:
    tokenizer = Tokenizer(build(), SETTINGS)
    ids = [*tokenizer.encode(text, special=False), tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<think>")]
    stream = tokenizer.stream(skip)
    given_out = [stream.push(id) for id in ids]
    assert "".join(given_out) + stream.finish() == tokenizer.decode(ids, skip)
    assert all("\ufffd" not in piece for piece in given_out) or "\ufffd" in text


@given(st.lists(st.integers(0, 151_935), max_size=30))
def test_any_ids_stream_as_they_decode(ids: list[int]) -> None:
    tokenizer = Tokenizer(build(), SETTINGS)
    stream = tokenizer.stream()
    assert stream.push(ids[:7]) + "".join(map(stream.push, ids[7:])) + stream.finish() == tokenizer.decode(ids)
    assert len(tokenizer.strings(ids)) == len(ids)


def test_a_character_of_several_tokens_comes_out_whole(real: Tokenizer) -> None:
    ids = real.encode("𓂀")
    stream = real.stream()
    out = [stream.push(id) for id in ids]
    assert len(ids) > 1
    assert out[:-1] == [""] * (len(ids) - 1)
    assert out[-1] == "𓂀"
    cut = real.stream()
    cut.push(ids[:-1])
    assert cut.finish() == "\ufffd"


def test_readable_pieces(real: Tokenizer) -> None:
    assert real.strings(real.encode("Hi  you<|im_end|>")) == ["Hi", " ", " you", "<|im_end|>"]
    assert real.strings(real.encode("𓂀"))[0].startswith("<0x")
    assert real.strings([151_900]) == ["<id 151900>"]


@pytest.mark.parametrize("bad", [[-1], [1.5], [2**40], [[1]], ["a"]])
def test_ids_that_are_none_are_refused(real: Tokenizer, bad) -> None:
    with pytest.raises(InputError, match="integers from 0"):
        real.decode(bad)


def test_text_that_is_none_is_refused(real: Tokenizer) -> None:
    with pytest.raises(InputError, match="surrogate at character 1"):
        real.encode("a\ud800")
    with pytest.raises(InputError, match="is a string; got int"):
        real.encode(3)
    with pytest.raises(InputError, match="no token 'x9q7'"):
        real.id_of("x9q7")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_vocabulary_and_merges_give_the_same_ids(tmp_path: Path, family: str) -> None:
    whole = json.loads((DATA / family / "tokenizer.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in whole["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    settings = json.loads((DATA / family / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {str(token["id"]): token for token in whole["added_tokens"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    marks = read_config(DATA / family).split_marks
    ours, theirs = Tokenizer.from_folder(tmp_path, split_marks=marks), Tokenizer.from_folder(DATA / family)
    for text in [*SAMPLES, "<|im_start|>user\n<think>हिन्दी</think><|im_end|>"]:
        assert ours.encode(text) == theirs.encode(text), text
    assert ours.special_ids == theirs.special_ids


def test_tokenizer_config(tiny: Tokenizer) -> None:
    assert (tiny.eos_token, tiny.pad_token, tiny.padding_side) == ("<|im_end|>", "<|endoftext|>", "left")
    assert tiny.name_of(tiny.eos_token_id) == "<|im_end|>"
    assert Tokenizer(build(), {"eos_token": {"content": PLAIN[0]}}).eos_token == "<tool_call>"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", None, "vocab.json and merges.txt missing"),
        ("tokenizer_config.json", "[1]", "must hold a mapping"),
        ("tokenizer_config.json", "nonsense", "cannot be read as JSON"),
        ("tokenizer_config.json", '{"eos_token": "<|nothing|>"}', "'<|nothing|>', which the vocabulary does not have"),
        ("tokenizer_config.json", '{"padding_side": "up"}', "left or right"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"7": {"content": "<|im_end|>"}}}', "the id 7"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    shutil.copytree(DATA / "qwen3_vl", tmp_path / "m")
    if content is None:
        (tmp_path / "m" / file).unlink()
    else:
        (tmp_path / "m" / file).write_text(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(tmp_path / "m")
    assert message in str(caught.value)


def test_other_kinds_of_tokenizer_are_refused() -> None:
    with pytest.raises(CheckpointError, match="byte-level"):
        Tokenizer(Backend(models.WordLevel({"a": 0}, unk_token="a")))
