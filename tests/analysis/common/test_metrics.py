"""Answer metrics against hand calculation, and whole answers against step by step."""

from __future__ import annotations

import math

import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import question
from cutaway.errors import InputError
from tests.analysis.models import BUILT, noise_image, small


@pytest.fixture(scope="module")
def tokenizer():
    return small("qwen3_vl").tokenizer


def test_single_token_metrics(tokenizer) -> None:
    logits = torch.zeros(2, 1, len(tokenizer))
    a, b = metrics.one_id(tokenizer, "a"), metrics.one_id(tokenizer, "b")
    logits[1, 0, a], logits[1, 0, b] = 3.0, 1.0
    assert metrics.logit_difference(tokenizer, "a", "b")(logits).tolist() == [0.0, 2.0]
    total = math.exp(3) + math.exp(1) + len(tokenizer) - 2
    assert metrics.probability(tokenizer, "a")(logits)[1] == pytest.approx(math.exp(3) / total)
    assert metrics.log_probability(tokenizer, a)(logits)[1] == pytest.approx(3 - math.log(total))
    assert metrics.custom_metric(lambda x: x[:, -1, b])(logits).tolist() == [0.0, 1.0]


def test_kl_is_zero_at_home_and_known_elsewhere() -> None:
    here, there = torch.tensor([[[0.0, 0.0]]]), torch.tensor([[[math.log(3.0), 0.0]]])
    assert metrics.kl_divergence()(there, there).item() == pytest.approx(0, abs=1e-12)
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert metrics.kl_divergence()(here, there).item() == pytest.approx(expected)
    with pytest.raises(InputError, match="reference"):
        metrics.kl_divergence()(here)


def test_words_of_several_tokens_are_named(tokenizer) -> None:
    with pytest.raises(InputError, match=r"'abc', which is 3: \['a', 'b', 'c'\]"):
        metrics.logit_difference(tokenizer, "abc", "b")
    with pytest.raises(InputError, match="same one"):
        metrics.logit_difference(tokenizer, "a", "a")
    for wrong in ("", [], -1, len(tokenizer), 1.5):
        with pytest.raises(InputError):
            metrics.probability(tokenizer, wrong)  # type: ignore[arg-type]


def test_a_custom_function_must_return_a_number_per_sample() -> None:
    with pytest.raises(InputError, match="a number per sample"):
        metrics.custom_metric(lambda logits: logits.sum())(torch.zeros(2, 1, 4))
    with pytest.raises(InputError, match=r"reads logits \[samples 1 vocab\]"):
        metrics.custom_metric(lambda logits: logits[:, 0, 0])(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("family", BUILT)
def test_a_whole_answer_equals_its_tokens_one_by_one(family) -> None:
    model = small(family)
    inputs = question(model, "Which color?", images=[noise_image(0)], min_pixels=1024)
    answer = model.tokenizer.encode("red")
    whole = metrics.measure(model, inputs, metrics.log_probability(model.tokenizer, "red"))
    total, grown = 0.0, inputs
    for id in answer:
        total += float(model(grown)[0, -1].double().log_softmax(-1)[id])
        grown = metrics.append_tokens(grown, (id,))
    assert len(answer) == 3
    assert float(whole) == pytest.approx(total, abs=1e-4)
    plain = model.prepare({**inputs, **{k: grown[k] for k in ("input_ids", "attention_mask", "mm_token_type_ids")}})
    assert torch.equal(grown.position_ids, plain.position_ids)
    assert torch.equal(grown.next_position, plain.next_position)


def test_answers_are_appended_to_left_padded_samples_only() -> None:
    model = small("qwen3_vl")
    prompts = [model.prompt("a longer question"), model.prompt("short")]
    metric = metrics.probability(model.tokenizer, "red")
    rows = metrics.measure(model, model.prepare(prompts, padding_side="left"), metric)
    for prompt, row in zip(prompts, rows, strict=True):
        assert float(metrics.measure(model, model.prepare(prompt), metric)) == pytest.approx(float(row), rel=1e-4)
    with pytest.raises(InputError, match="padded on the right"):
        metrics.measure(model, model.prepare(prompts, padding_side="right"), metric)


def test_edits_change_what_is_measured() -> None:
    model = small("qwen3_vl")
    inputs = model.prepare(model.prompt("hello"))
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    plain = metrics.measure(model, inputs, metric)
    assert float(plain) == pytest.approx(float(metric(model(inputs)[:, -1:])), rel=1e-5)
    assert not torch.equal(
        plain, metrics.measure(model, inputs, metric, edit={"layers.1.mlp.mlp_output": lambda v: v * 0})
    )


def test_from_spec(tokenizer) -> None:
    spec = {"name": "logit_difference", "answer": "a", "foil": "b"}
    assert metrics.metric_from_spec(tokenizer, spec).name == "logit difference, 'a' less 'b'"
    assert metrics.metric_from_spec(tokenizer, {"name": "kl"}).needs_reference
    for wrong in ({"name": "accuracy"}, {"name": "probability"}, {"name": "kl", "answer": "a"}, {}):
        with pytest.raises(InputError):
            metrics.metric_from_spec(tokenizer, wrong)
