"""Groups of tokens, regions, and which token of one prompt answers to which of another."""

from __future__ import annotations

import pytest
import torch

from cutaway.analysis.common import token_selection
from cutaway.analysis.common.prompts import Pair, align, question
from cutaway.analysis.common.token_selection import (
    image_regions,
    region_tokens,
    select_tokens,
    single_tokens,
    token_groups,
    word_tokens,
)
from cutaway.errors import InputError
from tests.analysis.models import BUILT, noise_image, small


@pytest.fixture(scope="module")
def model():
    return small("qwen3_vl")


def ask(model, text="What color is it?", sizes=((128, 96),)):
    return question(model, text, images=[noise_image(n, size) for n, size in enumerate(sizes)], min_pixels=1024)


@pytest.mark.parametrize("family", BUILT)
def test_groups_are_what_they_say(family) -> None:
    model = small(family)
    inputs = ask(model, sizes=((128, 96), (64, 64)))
    result = token_groups(model, inputs)
    ids = inputs.input_ids[0]
    assert model.tokenizer.decode(ids[result["question"]].tolist()) == "What color is it?"
    assert torch.equal(result["image"], (inputs.mm_token_type_ids[0] == 1).nonzero()[:, 0])
    assert torch.equal(torch.cat((result["image 0"], result["image 1"])), result["image"])
    assert len(result["image 1"]) == int(inputs.image_grid_thw[1].prod()) // 4
    assert result["last"].tolist() == [len(ids) - 1]
    assert len(result["markers"]) == 4
    assert len(result["all"]) == len(ids)


def test_groups_of_a_prompt_without_images(model) -> None:
    result = token_groups(model, question(model, "Hello there"))
    assert "image" not in result
    assert "markers" not in result


def test_groups_of_a_padded_row(model) -> None:
    batch = model.prepare([model.prompt("a"), model.prompt("a longer one")], padding_side="left")
    short, long = token_groups(model, batch, 0), token_groups(model, batch, 1)
    assert len(short["all"]) < len(long["all"]) == batch.input_ids.shape[1]
    assert short["all"][0] == batch.input_ids.shape[1] - len(short["all"])


def words_at(model, inputs, at) -> str:
    return model.tokenizer.decode(inputs.input_ids[0, at].tolist()).strip()


def test_word_is_its_tokens(model) -> None:
    inputs = ask(model, "is the colour red or the other colour?")
    first, second = (word_tokens(model, inputs, f"colour #{n}") for n in (1, 2))
    assert words_at(model, inputs, first) == words_at(model, inputs, second) == "colour"
    assert first.max() < word_tokens(model, inputs, "red").min() < second.min()


def test_a_word_said_twice_is_not_guessed(model) -> None:
    inputs = ask(model, "is the square left of the other square?")
    with pytest.raises(InputError, match=r"said 2 times: square #1 in 'is the square left of the', square #2"):
        word_tokens(model, inputs, "square")
    with pytest.raises(InputError, match=r"said 2 times, numbered from 1; got #3"):
        select_tokens(model, inputs, "square #3")


@pytest.mark.parametrize("part", ["is", "red", "user", "assistant", "a", "hundred", "purple", "helpful", "im_start"])
def test_a_part_of_a_word_and_other_turns_are_not_found(model, part) -> None:
    inputs = ask(model, "What was this hundredth bored aisle?")
    with pytest.raises(InputError, match="no word of the user's turn"):
        word_tokens(model, inputs, part)


@pytest.mark.parametrize(
    ("text", "word"), [("Is it red, or tan?", "red"), ("the 12 of 112", "12"), ("(is)", "is"), ("is it?", "it?")]
)
def test_a_whole_word_beside_signs_is_found(model, text, word) -> None:
    inputs = ask(model, text)
    assert words_at(model, inputs, word_tokens(model, inputs, word)).strip("(),? ") == word.strip("?")


@pytest.mark.parametrize("wrong", ["", "  ", None, 3])
def test_what_is_no_word_is_refused(model, wrong) -> None:
    with pytest.raises(InputError, match="A word is a text"):
        word_tokens(model, ask(model), wrong)


def test_regions_part_the_image(model) -> None:
    inputs = ask(model)
    cut = image_regions(inputs, 2, 2)
    assert list(cut) == ["r0 c0", "r0 c1", "r1 c0", "r1 c1"]
    joined = torch.cat(list(cut.values())).sort().values
    assert torch.equal(joined, token_groups(model, inputs)["image 0"])
    left = region_tokens(inputs, (0, 0, 64, 96))
    assert set(cut["r0 c0"].tolist()) <= set(left.tolist())
    assert len(image_regions(inputs, 50, 50)) == len(joined)
    with pytest.raises(InputError, match="at least one row"):
        image_regions(inputs, 0, 1)


def test_frames_of_a_video(model) -> None:
    inputs = question(
        model, "What?", videos=[[noise_image(n) for n in range(4)]], do_sample_frames=False, fps=2, min_pixels=1024
    )
    cut = token_selection.video_frames(inputs)
    assert list(cut) == ["frame 0", "frame 1"]
    assert torch.equal(torch.cat(list(cut.values())), token_groups(model, inputs)["video 0"])


def test_tokens_are_named(model) -> None:
    inputs = ask(model)
    named = single_tokens(model, inputs)
    assert len(named) == inputs.input_ids.shape[1]
    assert [int(v) for v in named.values()] == list(range(len(named)))
    assert any(name.endswith("image r0 c0") for name in named)


def test_equal_shapes_align_one_to_one(model) -> None:
    a, b = ask(model, "Is it red?"), ask(model, "Is it tan?")
    result = align(a, b)
    assert torch.equal(result.sources[:, 0], torch.arange(a.input_ids.shape[1]))
    assert not result.missing.any()
    values = torch.randn(1, b.input_ids.shape[1], 3)
    at = torch.tensor([4, 2])
    assert torch.equal(result.take(values, at), values[0, at])


def test_images_of_other_sizes_align_by_area(model) -> None:
    small_one, large_one = ask(model, sizes=((64, 64),)), ask(model, sizes=((128, 192),))
    here, there = token_groups(model, small_one)["image"], token_groups(model, large_one)["image"]
    assert (len(here), len(there)) == (4, 24)
    result = align(small_one, large_one)
    values = torch.zeros(1, large_one.input_ids.shape[1], 1)
    values[0, there, 0] = torch.arange(24.0)  # rows of four
    quarter = torch.arange(24.0).reshape(6, 4)[:3, :2].mean()
    assert result.take(values, here)[0].item() == pytest.approx(quarter.item())
    back = align(large_one, small_one)
    spread = torch.zeros(1, small_one.input_ids.shape[1], 1)
    spread[0, here, 0] = torch.arange(4.0)
    assert back.take(spread, there)[:, 0].reshape(6, 4)[0].tolist() == [0, 0, 1, 1]
    assert back.take(spread, there)[:, 0].reshape(6, 4)[-1].tolist() == [2, 2, 3, 3]
    words = token_groups(model, small_one)["question"]
    assert torch.equal(small_one.input_ids[0, words], large_one.input_ids[0, result.sources[words, 0]])


def test_sizes_that_do_not_divide_keep_every_share(model) -> None:
    a, b = ask(model, sizes=((160, 96),)), ask(model, sizes=((96, 128),))
    result = align(a, b)
    assert torch.allclose(result.weights[~result.missing].sum(1), torch.ones(1, dtype=torch.float64))
    column = torch.zeros(1, b.input_ids.shape[1], 1)
    column[0, token_groups(model, b)["image"], 0] = torch.arange(12.0) % 3
    got = result.take(column, token_groups(model, a)["image"])[:5, 0]
    assert got.tolist() == pytest.approx([0, 1 / 3, 1, 5 / 3, 2])  # five columns over three


def test_words_without_a_counterpart_are_refused(model) -> None:
    a, b = ask(model, "Is it dark green?"), ask(model, "Is it red?")
    result = align(a, b)
    lost = result.missing.nonzero()[:, 0]
    assert len(lost) > 0
    with pytest.raises(InputError, match="counterpart in the other prompt"):
        result.take(torch.zeros(1, b.input_ids.shape[1], 1), lost)
    assert not result.missing[token_groups(model, a)["last"]]


def test_a_pair_from_plain_data(model, tmp_path) -> None:
    noise_image(0).save(tmp_path / "a.png")
    spec = {"question": "What?", "images": [str(tmp_path / "a.png")]}
    pair = Pair.of(model, clean=spec, corrupt=ask(model))
    assert token_groups(model, pair.clean)["image"].numel() == int(pair.clean.image_grid_thw.prod()) // 4
    for wrong in ({"images": []}, {"question": "a", "sounds": []}, "What?"):
        with pytest.raises(InputError):
            Pair.of(model, clean=wrong, corrupt=spec)
    with pytest.raises(InputError, match="batch of one"):
        Pair.of(model, clean=spec, corrupt=model.prepare([model.prompt("a"), model.prompt("b")]))


def test_a_batch_without_geometry_is_refused(model) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="geometry of a batch; got one without"):
        token_groups(model, replace(ask(model), geometry=None))


def test_a_word_whose_characters_are_cut_into_bytes_is_found(model) -> None:
    inputs = ask(model, "is 红色 or 绿 it? 🟥")
    for text in ("红色", "绿", "🟥", " or "):
        at = word_tokens(model, inputs, text)
        assert model.tokenizer.decode(inputs.input_ids[0, at].tolist()).strip() == text.strip()
    assert word_tokens(model, inputs, "红").max() < word_tokens(model, inputs, "绿").min()
