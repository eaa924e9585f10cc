"""A head that copies one image token to the last position: lens, attention and attribution find it, controls do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cutaway.analysis.attention.text import attention_map
from cutaway.analysis.attribution.direct_logit import direct_logit_attribution
from cutaway.analysis.attribution.input_gradients import input_attribution
from cutaway.analysis.common import metrics
from cutaway.analysis.lens.logit_lens import logit_lens
from tests.analysis.planted import ANSWER, CELL, HEAD, LAYER, board, planted, question_prompt

CENTRE = (0, *CELL)


@pytest.fixture(scope="module")
def model():
    return planted()


def image_part(result) -> np.ndarray:
    """[layers heads tokens]: the weights on the image."""
    return result.weights.values[..., list(result.media["image 0"]["tokens"])]


def test_attention_finds_the_head_and_the_token(model) -> None:
    result = attention_map(model, question_prompt(model))
    most = image_part(result).max(-1)
    assert np.unravel_index(most.argmax(), most.shape) == (LAYER, HEAD)
    assert most[LAYER, HEAD] > 0.99
    assert result.peak(layer=LAYER, head=HEAD) == result.peak() == CENTRE
    assert result.sinks == ()


def test_attention_finds_nothing_on_a_black_board(model) -> None:
    weights = image_part(attention_map(model, question_prompt(model, None)))[LAYER, HEAD]
    assert weights.max() < 1.5 * weights.mean()


def test_attention_follows_the_white_token(model) -> None:
    for cell in ((0, 0), (7, 7), (3, 6)):
        assert attention_map(model, question_prompt(model, cell), layers=LAYER).peak(head=HEAD) == (0, *cell)


def test_attribution_finds_the_head_and_its_source(model) -> None:
    result = direct_logit_attribution(model, question_prompt(model), answer=ANSWER)
    (name, value), (_, second) = result.top(2)
    assert name == f"layer {LAYER} head {HEAD}"
    assert value > 0.99 * result.logit > 100 * abs(second)
    shares = result.map(layer=LAYER).values
    assert np.unravel_index(shares.argmax(), shares.shape) == CENTRE
    assert shares[CENTRE] > 0.99 * value


def test_attribution_finds_nothing_in_shuffled_weights() -> None:
    """The head still looks there, but what it writes no longer points at the answer."""
    model = planted()
    weight = model.layers[LAYER].self_attn.o_proj.weight
    right = direct_logit_attribution(model, question_prompt(model), answer=ANSWER).logit
    with torch.no_grad():
        weight.copy_(weight.roll(7, 0))
    assert attention_map(model, question_prompt(model)).peak(layer=LAYER, head=HEAD) == CENTRE
    assert (
        max(abs(value) for _, value in direct_logit_attribution(model, question_prompt(model), answer=ANSWER).top(1))
        < 0.01 * right
    )


def test_the_lens_says_where_the_answer_appears(model) -> None:
    result = logit_lens(model, question_prompt(model), tokens="last", words=[ANSWER])
    assert result.ranks is not None
    first = [result.ranks.at(word=ANSWER, layer=layer, token=0) for layer in result.probabilities.names("layer")]
    assert [rank == 0 for rank in first] == [False, False, False, True, True]
    black = logit_lens(model, question_prompt(model, None), tokens="last", words=[ANSWER])
    assert black.words[-1][0][0] != ANSWER


@pytest.mark.parametrize("baseline", ["grey", "black"])
def test_integrated_gradients_find_the_token(model, baseline) -> None:
    metric = metrics.log_probability(model.tokenizer, ANSWER)
    result = input_attribution(model, question_prompt(model), metric, baseline=baseline, steps=8)
    assert result.peak(merge=2) == CENTRE
    shares = result.map(merge=2).values
    assert shares[CENTRE] > 0.9 * np.abs(shares).sum()


def test_a_sink_is_flagged_and_counted_apart() -> None:
    model = planted(sink=True)
    result = attention_map(model, question_prompt(model))
    assert result.sinks == (0,)
    assert result.mass.at(layer=1, group="text sinks").values.min() > 0.99
    assert result.peak(layer=LAYER, head=HEAD) == CENTRE
    assert np.nanmin(result.received.at(layer=1).values[1:]) < 0.1 < 5 < result.received.at(layer=1, token=0)
    assert "0 '<|vision_start|>'" in result.summary()


def test_a_sink_in_the_image_is_left_out_when_asked(model) -> None:
    """With a factor below what the white token receives from others it counts as a sink."""
    result = attention_map(model, question_prompt(model), sink_factor=0.0)
    everywhere = result.map(sinks=False).values
    assert np.isnan(everywhere).all()
    assert result.mass.at(group="image").values.max() == 0


def test_figures_are_drawn_over_the_board(model, tmp_path) -> None:
    inputs = question_prompt(model)
    attention_map(model, inputs, layers=1).plot(tmp_path / "a.png", background=board())
    attention_map(model, inputs).plot(tmp_path / "b.png", background=board(), layer=LAYER, sinks=False)
    result = direct_logit_attribution(model, inputs, answer=ANSWER)
    for kind in ("terms", "heads", "image"):
        result.plot(tmp_path / f"{kind}.png", background=board(), kind=kind)
    read = logit_lens(model, inputs)
    logit_lens(model, inputs, tokens="where").plot(tmp_path / "c.png")
    read.plot(tmp_path / "d.png", background=board(), layer=LAYER)
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 7
