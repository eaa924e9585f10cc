"""Attention of chosen rows equals the whole pattern's rows; rollout, the vision encoder's patterns, memory, groups."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cutaway.analysis.attention import patterns as pattern_module
from cutaway.analysis.attention.patterns import full_attention_layers
from cutaway.analysis.attention.rollout import attention_rollout
from cutaway.analysis.attention.text import GROUPS, attention_map
from cutaway.analysis.attention.vision import vision_attention
from cutaway.analysis.common import prompts as pairs
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.token_selection import geometry, token_groups
from cutaway.errors import InputError, Unavailable
from cutaway.inputs.geometry.layout import to_raster
from cutaway.trace.run import run_values
from tests.analysis.models import BUILT, noise_image, small


def question_prompt(family: str):
    """A batch of two rows of different length, the second padded on the left."""
    model = small(family)
    prompts = [model.prompt("Which color is it?", images=2), model.prompt("What?", images=1)]
    media = [noise_image(0, (128, 96)), noise_image(1, (64, 64)), noise_image(2, (96, 64))]
    return model, model.prepare(prompts, images=media, padding_side="left")


def patterns(model, inputs) -> dict[int, torch.Tensor]:
    """The whole pattern of every layer that has one."""
    addresses = {b: f"layers.{b}.self_attn.attention_probabilities" for b in full_attention_layers(model)}
    result = run_values(model.root, lambda: model.root(inputs), read=list(addresses.values()))
    return {layer: result[address] for layer, address in addresses.items()}


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("row", [0, 1])
def test_rows_equal_the_whole_pattern_s(family, row, monkeypatch) -> None:
    monkeypatch.setattr(pattern_module, "CHUNK", 1 << 12)  # several pieces a head
    model, inputs = question_prompt(family)
    whole = patterns(model, inputs)
    for tokens in ("last", "question", f"image {2 * row}"):
        result = attention_map(model, inputs, tokens=tokens, sample=row)
        at = token_groups(model, inputs, row)[tokens]
        for layer, pattern in whole.items():
            mean = pattern[row][:, at].double().mean(1).numpy()
            np.testing.assert_allclose(result.weights.at(layer=str(layer)).values, mean, atol=1e-6)


@pytest.mark.parametrize("family", BUILT)
def test_masses_add_up_and_padding_has_none(family) -> None:
    model, inputs = question_prompt(family)
    result = attention_map(model, inputs, sample=1)
    np.testing.assert_allclose(result.mass.values.sum(-1), 1, atol=1e-5)
    assert sum(result.even.values()) == pytest.approx(1)
    assert set(result.even) == set(GROUPS)
    padding = inputs.attention_mask[1] == 0
    assert padding.any()
    assert result.weights.values[..., padding.numpy()].max() == 0
    linear = set(range(model.num_layers)) - set(full_attention_layers(model))
    assert all(str(layer) in result.skipped for layer in linear)
    assert bool(result.skipped) == bool(linear)


def test_a_linear_block_that_is_asked_for_is_refused() -> None:
    model, inputs = question_prompt("qwen3_5")
    with pytest.raises(Unavailable, match="linear attention"):
        attention_map(model, inputs, layers=0, sample=0)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "qwen3_5"])
def test_rollout_is_the_product_of_the_mean_patterns(family, monkeypatch) -> None:
    monkeypatch.setattr("cutaway.analysis.attention.rollout.CHUNK", 1 << 12)
    model, inputs = question_prompt(family)
    expected = torch.eye(inputs.input_ids.shape[1])
    for pattern in patterns(model, inputs).values():
        expected = (0.5 * pattern[0].mean(0) + 0.5 * torch.eye(len(expected))) @ expected
    result = attention_rollout(model, inputs, tokens="question", sample=0)
    at = token_groups(model, inputs)["question"]
    np.testing.assert_allclose(result.weights.values, expected[at].mean(0).double(), atol=1e-6)
    assert result.weights.values.sum() == pytest.approx(1, abs=1e-5)
    assert result.map("image 1").shape == result.media["image 1"]["grid"]


def test_received_is_what_other_tokens_spend() -> None:
    model, inputs = question_prompt("qwen3_vl")
    result = attention_map(model, inputs, sample=0)
    others = list(range(inputs.input_ids.shape[1] - 1))
    spread = np.linspace(0, len(others) - 1, 64).round().astype(int)
    pattern = patterns(model, inputs)[1][0].mean(0).double().numpy()
    key = 20
    looking = [others[i] for i in spread if others[i] > key]
    expected = np.mean([pattern[query, key] * (query + 1) for query in looking])
    assert result.received.at(layer=1, token=key) == pytest.approx(expected, rel=1e-4)
    assert np.isnan(result.received.values[:, -1]).all()  # nothing follows the last token


class _Largest(TorchDispatchMode):
    """Notes the most numbers in a tensor made under it that has the prompt's length as its last axis."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.most = length, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.is_floating_point() and one.shape[-1:] == (self.length,):
                self.most = max(self.most, one.numel())
        return made


def test_no_block_ever_holds_a_whole_pattern(monkeypatch) -> None:
    monkeypatch.setattr(pattern_module, "CHUNK", 1 << 12)
    model = small("qwen3_vl")
    inputs = pairs.question(model, "Which?", [noise_image(0, (320, 320))])
    length = inputs.input_ids.shape[1]
    with _Largest(length) as seen:
        attention_map(model, inputs, tokens="image 0")
    assert 16 * length <= seen.most <= 64 * length < length * length
    with _Largest(length) as whole:
        patterns(model, inputs)
    assert whole.most == model.num_heads * length * length


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("image", [0, 1])
def test_vision_attention_is_the_encoder_s_patterns(family, image) -> None:
    model = small(family)
    inputs = pairs.question(model, "Which?", [noise_image(0, (128, 96)), noise_image(1, (96, 160))])
    result = vision_attention(model, inputs, image=image)
    position = "vision.layers.1.self_attn"
    read = run_values(
        model.root, lambda: model.root(inputs), read=[f"{position}.attention_patterns", f"{position}.inputs"]
    )
    ends = read[f"{position}.inputs"][1]["cu_seqlens"].tolist()
    packed = torch.zeros(model.vision.num_heads, ends[-1])
    for (start, stop), pattern in zip(pairwise(ends), read[f"{position}.attention_patterns"], strict=True):
        packed[:, start:stop] = pattern.sum(1)
    where = geometry(inputs)
    item = where.images[image]
    if where.window_side is not None:
        packed = packed[:, where.window_order().argsort()]
    mine = packed[:, torch.from_numpy(where.image_patches.item == image)]
    expected = to_raster(mine.T, item.grid, 2).permute(3, 0, 1, 2) / mine.shape[1]
    np.testing.assert_allclose(result.weights.at(layer=1).values, expected.double(), atol=1e-6)
    np.testing.assert_allclose(result.weights.values.sum((2, 3, 4)), 1, atol=1e-5)


def test_a_region_of_patches_stays_in_its_window_or_frame() -> None:
    model = small("qwen2_5_vl")
    inputs = pairs.question(model, "Which?", [noise_image(0, (160, 160))])
    result = vision_attention(model, inputs, box=(0, 0, 10, 10))
    windowed = result.weights.at(layer=0).values.sum(0)[0]
    assert result.weights.shape[2:] == (1, 12, 12)
    assert windowed[4:].sum() == windowed[:, 4:].sum() == 0  # windows of 56 pixels are 4 patches wide
    assert result.weights.at(layer=1).values.sum(0)[0][4:].sum() > 0  # layer 1 sees the whole image
    with pytest.raises(InputError, match=r"No token lies in `box`.*image 0"):
        vision_attention(model, inputs, box=(900, 900, 950, 950))


def test_a_video_has_a_map_for_each_frame(tmp_path) -> None:
    model = small("qwen3_vl")
    video = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    inputs = pairs.question(model, "Which?", videos=[video], video_metadata=[{"fps": 2.0, "total_num_frames": 4}])
    result = attention_map(model, inputs)
    grid = result.media["video 0"]["grid"]
    assert grid[0] == 2
    assert result.map().shape == grid
    result.plot(tmp_path / "frames.png", background=[video[0], video[2]])
    result.plot(tmp_path / "frame.png", background=[video[0], video[2]], frame=1)
    with pytest.raises(InputError, match="a list with one image for each of the 2 frames"):
        result.plot(tmp_path / "wrong.png", background=video[0])


def test_results_come_back_from_json_and_are_drawn(tmp_path) -> None:
    model, inputs = question_prompt("qwen3_vl")
    results = attention_map(model, inputs, sample=0)
    back = Result.from_json(results.to_json())
    assert back.summary() == results.summary()
    assert back.media == results.media
    turned, seen = attention_rollout(model, inputs, sample=0), vision_attention(model, inputs, image=1)
    for result, name in ((back, "a"), (turned, "b"), (seen, "c")):
        assert Result.from_json(result.to_json()).summary() == result.summary()
        result.plot(tmp_path / f"{name}.png")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_text_prompt_has_weights_and_no_map() -> None:
    model = small("qwen3_vl")
    result = attention_map(model, pairs.question(model, "Which color?"))
    assert result.mass.at(group="image").values.max() == 0
    with pytest.raises(InputError, match="got a prompt without"):
        result.map()
