"""Text as it comes: whole characters, stop strings wherever the tokens are cut, pieces that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.generate.stop_strings import SampleText
from tests.generate.scripted import Bytes, spelled

ALPHABET = st.text(alphabet="ab<|é中🙂", max_size=14)


def texts_of(text: str | bytes, stop: tuple[str, ...] = ()) -> tuple[SampleText, list[str]]:
    """A row that is pushed a text byte by byte until it stops, and the pieces that were taken on the way."""
    row, pieces = SampleText(Bytes(), stop), []
    for token in spelled(text):
        stopped = row.push(token)
        pieces.append(row.new())
        if stopped:
            break
    row.finish()
    return row, [*pieces, row.new()]


@given(ALPHABET, st.lists(st.text(alphabet="ab<é中", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text, stop) -> None:
    row, pieces = texts_of(text, tuple(stop))
    ends = [text.index(s) + len(s) for s in stop if s in text]
    if ends:  # the one that is complete first ends the text
        first = min(ends)
        start = min(text[:first].index(s) for s in stop if s in text[:first])
        assert row.text == text[:start]
    else:
        assert row.text == text
    assert row.stopped == bool(ends)
    assert "".join(pieces) == row.text


@given(ALPHABET)
def test_no_piece_cuts_a_character(text) -> None:
    _, pieces = texts_of(text)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_text_is_returned_at_once_where_no_stop_string_can_begin() -> None:
    _, pieces = texts_of("xaab!", ("aab?",))
    assert pieces == ["x", "", "", "", "aab!", ""]


def test_what_looked_like_a_stop_string_is_returned_in_the_end() -> None:
    row, pieces = texts_of("yes <|en", ("<|end|>",))
    assert row.text == "yes <|en"
    assert pieces[-1] == "<|en"
    assert not row.stopped


def test_a_character_that_never_became_whole_is_marked() -> None:
    row, _ = texts_of("中".encode()[:2])
    assert row.text == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", ["中", "é中"])
def test_a_stop_string_of_several_bytes(stop) -> None:
    row, _ = texts_of("né中n", (stop,))
    assert row.stopped
    assert row.text == "né中n"[: "né中n".index(stop)]


# -- special tokens


def of_tokens(tokens: list[int], stop: tuple[str, ...] = (), end: int | None = None) -> SampleText:
    sample = SampleText(Bytes(), stop)
    for token in tokens:
        if sample.push(token):
            break
    sample.finish(end)
    return sample


def test_text_has_no_special_tokens_and_there_is_one_with_them() -> None:
    sample = of_tokens([*spelled("a"), 2, *spelled("b")], end=3)
    assert (sample.text, sample.text_with_special_tokens) == ("ab", "a<2>b<3>")


@pytest.mark.parametrize(
    ("stop", "text", "full"),
    [
        ("<2>", "yes", "yes"),  # a special token whole
        ("2>b", "yes", "yes<"),  # its end, and text behind it
        ("s<2", "ye", "ye"),  # text before it, and its beginning
        ("s<2>bo", "ye", "ye"),
        ("box", "yes", "yes<2>"),
        ("sb", "yesbox", "yes<2>box"),  # only without special tokens would it be there
    ],
)
def test_a_stop_string_is_looked_for_in_the_text_with_special_tokens(stop, text, full) -> None:
    sample = of_tokens([*spelled("yes"), 2, *spelled("box")], (stop,))
    assert (sample.text, sample.text_with_special_tokens) == (text, full)
    assert sample.stopped == (stop != "sb")


def test_an_end_token_is_in_no_stop_string() -> None:
    sample = of_tokens(spelled("ok"), ("<3>", "k<3"), end=3)
    assert (sample.text, sample.text_with_special_tokens, sample.stopped) == ("ok", "ok<3>", False)


def test_a_character_with_a_special_token_in_its_middle_is_whole_in_the_plain_text() -> None:
    first, second = spelled("é")
    assert of_tokens([first, 2, second]).text == "é"
