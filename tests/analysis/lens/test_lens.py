"""Lenses: equal to the logits at the end, on every family; trained, saved and loaded; words near features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cutaway.analysis.common import prompts as pairs
from cutaway.analysis.common.result import Array, Result
from cutaway.analysis.lens.logit_lens import logit_lens
from cutaway.analysis.lens.nearest_tokens import nearest_tokens
from cutaway.analysis.lens.residual_stream import accumulated_residual, unembed
from cutaway.analysis.lens.tuned_lens import TunedLens, train_tuned_lens
from cutaway.analysis.plots.images import legible
from cutaway.batch import IMAGE
from cutaway.errors import CheckpointError, InputError
from cutaway.trace.run import run_values
from tests.analysis.models import BUILT, noise_image, small


def question_prompt(family: str, seed: int = 0):
    return pairs.question(small(family), "Which color?", [noise_image(seed, (64, 64))])


@pytest.mark.parametrize("family", BUILT)
def test_the_last_block_says_the_logits(family) -> None:
    model, inputs = small(family), question_prompt(family)
    names, streams = accumulated_residual(model, inputs)
    assert names == ("embeddings", *map(str, range(model.num_layers)))
    logits = model(inputs)
    assert torch.equal(unembed(model, streams[-1]), logits)
    result = logit_lens(model, inputs, top=3)
    probabilities, ids = logits[0].softmax(-1).topk(3)
    np.testing.assert_allclose(result.probabilities.values[-1], probabilities.double(), rtol=1e-4)
    assert result.words[-1] == tuple(tuple(model.tokenizer.strings(row)) for row in ids.tolist())


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_the_stream_has_the_deepstack_terms_and_layer_output_has_not(family) -> None:
    model, inputs = small(family), question_prompt(family)
    _, whole = accumulated_residual(model, inputs, [0])
    _, without = accumulated_residual(model, inputs, [0], at="layer_output")
    added = run_values(model.root, lambda: model.root(inputs), read="layers.0.deepstack_output")
    mask = inputs.mm_token_type_ids == IMAGE
    assert torch.equal(whole[0][mask], without[0][mask] + added["layers.0.deepstack_output"])
    assert torch.equal(whole[0][~mask], without[0][~mask])


def test_followed_words_have_their_probabilities_and_ranks() -> None:
    model, inputs = small("qwen3_vl"), question_prompt("qwen3_vl")
    result = logit_lens(model, inputs, tokens="last", layers=[1, 3], words=["a", "b"])
    log = model(inputs)[0, -1].float().log_softmax(-1)
    (a,) = model.tokenizer.encode("a")
    assert result.tracked is not None
    assert result.ranks is not None
    assert result.tracked.at(word="a", layer="3", token=0) == pytest.approx(float(log[a].exp()), rel=1e-4)
    assert result.ranks.at(word="a", layer="3", token=0) == int((log > log[a]).sum())
    assert result.probabilities.names("layer") == ("1", "3")


def test_an_edit_is_seen_by_the_lens() -> None:
    model, inputs = small("qwen3_vl"), question_prompt("qwen3_vl")
    plain, edited = (
        logit_lens(model, inputs, tokens="last", edit=edit).entropy.values
        for edit in (None, {"layers.1.mlp.mlp_output": lambda v: v * 0})
    )
    np.testing.assert_array_equal(plain[:2], edited[:2])
    assert np.abs(plain[2:] - edited[2:]).max() > 1e-4


def test_cells_lie_over_the_image() -> None:
    model = small("qwen3_vl")
    inputs = pairs.question(model, "Which?", [noise_image(0, (320, 256))])
    result = logit_lens(model, inputs, tokens="image 0", layers=2)
    values = np.arange(len(result.positions), dtype=float)
    assert result.media["image 0"]["grid"] == (1, 8, 10)
    np.testing.assert_array_equal(result.on_image(values), values.reshape(8, 10))
    last = logit_lens(model, inputs, tokens="last", layers=2)
    assert np.isnan(last.on_image(np.ones(1))).all()


def test_a_result_comes_back_from_json() -> None:
    result = logit_lens(small("qwen2_vl"), question_prompt("qwen2_vl"), words=["a"])
    back = Result.from_json(result.to_json())
    assert back.words == result.words
    assert back.media == result.media
    np.testing.assert_array_equal(back.probabilities.values, result.probabilities.values)


def test_wrong_places_and_options_are_refused() -> None:
    model, inputs = small("qwen2_vl"), question_prompt("qwen2_vl")
    for options, message in (
        ({"tokens": "nonsense"}, "is not a group of tokens here"),
        ({"tokens": [999]}, "Positions are whole numbers"),
        ({"layers": 7}, "`layers` must be a whole number from 0 to 2"),
        ({"at": "output"}, "`at` must be one of"),
        ({"top": 0}, "`top` must be a whole number of at least 1"),
        ({"words": ["several tokens"]}, "One token is wanted"),
        ({"sample": 1}, "`sample` must be a whole number from 0 to 0"),
        ({"tokens": {"box": (500, 500, 600, 600)}}, "No token lies in"),
    ):
        with pytest.raises(InputError, match=message):
            logit_lens(model, inputs, **options)


@pytest.fixture(scope="module")
def trained() -> TunedLens:
    return train_tuned_lens(
        small("qwen2_vl"), [question_prompt("qwen2_vl", seed) for seed in range(6)], epochs=6, learning_rate=3e-3
    )


def test_training_brings_held_out_prompts_closer(trained) -> None:
    resident = trained.notes["divergence"]
    assert set(resident["tuned"]) == set(trained.names) == {"embeddings", "0", "1"}
    assert all(resident["tuned"][name] < 0.9 * resident["logit"][name] for name in trained.names)


def test_a_tuned_lens_is_saved_and_loaded(trained, tmp_path) -> None:
    path = trained.save(tmp_path / "lens.safetensors")
    back = TunedLens.load(path)
    assert torch.equal(back.weights, trained.weights)
    assert torch.equal(back.biases, trained.biases)
    assert back.notes == trained.notes
    assert back.names == trained.names
    model, inputs = small("qwen2_vl"), question_prompt("qwen2_vl", 9)
    tuned, plain = logit_lens(model, inputs, tuned=path), logit_lens(model, inputs)
    np.testing.assert_array_equal(tuned.entropy.values[-1], plain.entropy.values[-1])  # the last layer needs no map
    assert np.abs(tuned.entropy.values[:-1] - plain.entropy.values[:-1]).max() > 1e-3
    assert tuned.kind == "tuned"


def test_an_untrained_lens_is_the_logit_lens(trained) -> None:
    model, inputs = small("qwen2_vl"), question_prompt("qwen2_vl")
    still = replace(trained, weights=torch.zeros_like(trained.weights), biases=torch.zeros_like(trained.biases))
    np.testing.assert_array_equal(
        logit_lens(model, inputs, tuned=still).entropy.values, logit_lens(model, inputs).entropy.values
    )


def test_a_lens_of_another_model_is_refused(trained, tmp_path) -> None:
    with pytest.raises(InputError, match="was trained on a model of"):
        logit_lens(small("qwen2_5_vl"), question_prompt("qwen2_5_vl"), tuned=trained)
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no readable safetensors file"):
        TunedLens.load(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="There is no file"):
        TunedLens.load(tmp_path / "y.safetensors")
    with pytest.raises(InputError, match="`prompts` has at least 2"):
        train_tuned_lens(small("qwen2_vl"), [question_prompt("qwen2_vl")])


def test_the_nearest_word_of_a_word_s_own_embedding_is_that_word() -> None:
    model = small("qwen3_vl")
    inputs = question_prompt("qwen3_vl")
    (a,) = model.tokenizer.encode("a")
    table = model.language_model.embed_tokens.weight.detach()
    merger = model.projector
    kept = {name: value.clone() for name, value in merger.state_dict().items()}
    try:
        with torch.no_grad():
            merger.linear_fc2.weight.zero_()
            merger.linear_fc2.bias.copy_(3 * table[a])
        result = nearest_tokens(model, inputs)
    finally:
        merger.load_state_dict(kept)
    assert {row[0] for row in result.words} == {"a"}
    np.testing.assert_allclose(result.similarity.values[:, 0], 1, atol=1e-5)
    assert result.chance < 0.9


def test_random_features_are_no_nearer_than_chance() -> None:
    result = nearest_tokens(small("qwen3_vl"), question_prompt("qwen3_vl"))
    counts = [int(line.split()[-2]) for line in result.summary().splitlines()[3:-1]]
    assert counts == sorted(counts, reverse=True)
    few = replace(result, words=(("b",), ("a",), ("a",), ("c",)), similarity=Array(np.zeros((4, 1)), ("token", "rank")))
    assert [line.split()[0] for line in few.summary().splitlines()[3:-1]] == ["'a'", "'b'", "'c'"]  # ties as they come
    assert result.similarity.values[:, 0].mean() < result.chance + 0.1
    assert result.grid == (1, 8, 8)
    assert len(result.words) == 64


def test_a_figure_shows_what_the_font_has() -> None:
    assert legible(" red ", 9) == "red"
    assert legible("a$b", 9) == r"a\$b"
    assert legible("世", 9) == "u4e16"
    assert legible("abcdefghijkl", 5) == "abcd…"
    assert legible("  ", 9) == "'  '"


def test_a_rank_that_was_not_kept_is_refused() -> None:
    model = small("qwen3_vl")
    result = logit_lens(model, pairs.question(model, "Hello"), top=2)
    for rank in (2, -1):
        with pytest.raises(InputError, match="`rank` must be from 0 to 1"):
            result.figure(rank=rank)
