"""Direct attribution adds up on every family; gradients are the metric's; integrated gradients are complete."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cutaway.analysis.attention.patterns import full_attention_layers
from cutaway.analysis.attribution.direct_logit import direct_logit_attribution
from cutaway.analysis.attribution.input_gradients import input_attribution
from cutaway.analysis.common import metrics
from cutaway.analysis.common import prompts as pairs
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import token_groups
from cutaway.analysis.lens.residual_stream import unembed
from cutaway.errors import InputError
from tests.analysis.models import BUILT, noise_image, small


def question_prompt(family: str):
    model = small(family)
    video = np.random.default_rng(5).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    return model, pairs.question(
        model,
        "Which color is it?",
        [noise_image(0, (96, 64))],
        [video],
        video_metadata=[{"fps": 2.0, "total_num_frames": 4}],
    )


@pytest.mark.parametrize("family", BUILT)
def test_the_terms_add_up_to_the_logit(family) -> None:
    model, inputs = question_prompt(family)
    logits = model(inputs)[0]
    scale = float(logits.abs().max())
    a, b = model.tokenizer.encode("ab")
    groups_by_name = token_groups(model, inputs)
    for position in (-1, int(groups_by_name["image 0"][2]), int(groups_by_name["video 0"][-1])):
        one = direct_logit_attribution(model, inputs, answer="a", position=position)
        two = direct_logit_attribution(model, inputs, answer="a", foil="b", position=position)
        for result, expected in ((one, logits[position, a]), (two, logits[position, a] - logits[position, b])):
            assert result.logit == pytest.approx(float(expected), abs=1e-5 * scale)
            assert abs(result.terms.values.sum() - float(expected)) < 1e-4 * scale
            assert abs(result.remainder) < 1e-4 * scale
        visual = position != -1
        assert ("image feature" in one.kinds) == visual
        assert ("embedding" in one.kinds) != visual
        assert ("deepstack" in one.kinds) == (visual and family in ("qwen3_vl", "qwen3_vl_moe"))


@pytest.mark.parametrize("family", BUILT)
def test_the_kinds_are_those_of_the_family(family) -> None:
    model, inputs = question_prompt(family)
    kinds = set(direct_logit_attribution(model, inputs, answer="a").kinds)
    assert ("linear head" in kinds) == (family in ("qwen3_5", "qwen3_5_moe"))
    assert ("expert" in kinds) == ("moe" in family) != ("mlp" in kinds)
    assert ("shared expert" in kinds) == (family == "qwen3_5_moe")


@pytest.mark.parametrize("family", BUILT)
def test_what_heads_read_from_tokens_adds_up_to_the_heads(family) -> None:
    model, inputs = question_prompt(family)
    result = direct_logit_attribution(model, inputs, answer="a")
    full = full_attention_layers(model)
    for layer in range(model.num_layers):
        sources = result.sources.at(layer=layer).values
        assert np.isfinite(sources).all() == (layer in full)
        if layer in full:
            heads = result.heads().at(layer=layer).values
            assert np.nansum(heads) == pytest.approx(sources.sum(), abs=1e-5)


def test_a_row_of_a_padded_batch_equals_that_row_alone() -> None:
    model = small("qwen3_vl")
    prompts = [model.prompt("Which color is it?", images=1), model.prompt("What?", images=1)]
    media = [noise_image(0, (96, 64)), noise_image(1, (64, 64))]
    both = direct_logit_attribution(
        model, model.prepare(prompts, images=media, padding_side="left"), answer="a", sample=1
    )
    alone = direct_logit_attribution(model, model.prepare(prompts[1], images=media[1:]), answer="a")
    np.testing.assert_allclose(both.terms.values, alone.terms.values, atol=1e-4)


def test_alone_is_the_logit_without_the_term() -> None:
    model, inputs = question_prompt("qwen3_vl")
    result = direct_logit_attribution(model, inputs, answer="a")
    stream = {}
    (a,) = model.tokenizer.encode("a")
    metrics.answer_logits(
        model, inputs, edit={"language_model.norm.input": lambda v: stream.setdefault("x", v.clone())}
    )
    term = {}
    metrics.answer_logits(model, inputs, edit={"layers.2.mlp.mlp_output": lambda v: term.setdefault("x", v.clone())})
    without = unembed(model, stream["x"][0, -1] - term["x"][0, -1])[a]
    assert result.alone.at(term="layer 2 mlp") == pytest.approx(result.logit - float(without.detach()), abs=1e-4)


def test_blocks_and_kinds_sum_up() -> None:
    model, inputs = question_prompt("qwen3_vl")
    result = direct_logit_attribution(model, inputs, answer="a", foil="b")
    table = result.by_kind()
    assert table.values.sum() == pytest.approx(result.logit, abs=1e-5)
    assert table.at(layer="before", kind="embedding") == pytest.approx(result.terms.at(term="embedding"))
    assert Result.from_json(result.to_json()).summary() == result.summary()
    with pytest.raises(InputError, match="belongs to one position"):
        direct_logit_attribution(model, inputs, answer="a", position="question")
    with pytest.raises(InputError, match="`kind` must be one of"):
        result.plot(kind="other")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_integrated_gradients_are_complete(family) -> None:
    model = small(family)
    inputs = pairs.question(model, "Which?", [noise_image(0, (40, 40))])
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    result = input_attribution(model, inputs, metric, baseline="black", steps=24)
    rise = result.value - result.start
    assert abs(rise) > 1e-3
    assert abs(result.gap) < 0.02 * abs(rise) + 1e-4
    total = result.patches["image 0"].values.sum()
    assert total == pytest.approx(rise - result.gap, abs=1e-6)
    assert float(metrics.measure(model, inputs, metric)) == pytest.approx(result.value, abs=1e-6)


@pytest.mark.parametrize("family", BUILT)
def test_a_gradient_is_the_slope_of_the_metric(family) -> None:
    """Gradient times input, with a baseline close by, is the change from there to first order; and it is complete."""
    model = small(family)
    inputs = pairs.question(model, "Which?", [noise_image(0, (64, 64))])
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    near = replace(inputs, pixel_values=inputs.pixel_values - 3e-4 * torch.sign(torch.randn_like(inputs.pixel_values)))
    for method, steps in (("gradient", 1), ("integrated", 2)):
        result = input_attribution(model, inputs, metric, method=method, steps=steps, baseline=near)
        sizes = np.abs(result.patches["image 0"].values).sum()
        assert abs(result.gap) < 0.05 * sizes


def test_a_video_and_an_image_have_patches_each() -> None:
    model, inputs = question_prompt("qwen3_vl")
    metric = metrics.log_probability(model.tokenizer, "ab")
    result = input_attribution(model, inputs, metric, method="gradient", baseline="white")
    assert set(result.patches) == {"image 0", "video 0"}
    assert result.patches["video 0"].shape[0] == 2
    merged = result.map("image 0", merge=2)
    assert merged.values.sum() == pytest.approx(result.patches["image 0"].values.sum())
    assert Result.from_json(result.to_json()).summary() == result.summary()


def test_what_cannot_be_compared_is_refused() -> None:
    model = small("qwen3_vl")
    inputs = pairs.question(model, "Which?", [noise_image(0, (64, 64))])
    other = pairs.question(model, "Which?", [Image.new("RGB", (512, 256))])
    metric = metrics.log_probability(model.tokenizer, "a")
    for options, message in (
        ({"baseline": "pink"}, "`baseline` must be grey, black, white"),
        ({"baseline": other}, "of the same grids"),
        ({"method": "magic"}, "`method` must be one of"),
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            input_attribution(model, inputs, metric, **options)
    with pytest.raises(InputError, match="no image and no video"):
        input_attribution(model, pairs.question(model, "Which?"), metric)


def test_a_sum_that_misses_the_rise_is_said() -> None:
    model, inputs = question_prompt("qwen3_vl")
    metric = metrics.logit_difference(model.tokenizer, "a", "b")
    result = input_attribution(model, inputs, metric, baseline="black", steps=1)
    off = replace(result, gap=0.5 * (result.value - result.start))
    assert "misses the rise by 50%" in off.summary()
    assert "take more steps" not in replace(result, gap=0.0).summary()
    assert "take more steps" not in replace(off, method="gradient × input").summary()
