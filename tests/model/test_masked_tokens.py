"""A masked token is as if it were not there: on every family, in whole prompts, chunks, cached steps and batches.

In float64, where only a fault differs by more than 1e-9; once in float32, on weights that do not magnify rounding.
"""

from __future__ import annotations

import families
import parity
import pytest
import torch
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.inputs.batch.collate import build_inputs
from tests.model.test_delta_net import part

PATTERNS = {
    "a hole": lambda seq: [seq // 2],
    "holes near each other": lambda seq: [3, 4, 6, seq - 2, seq - 2],
    "every other token": lambda seq: list(range(1, seq)),
    "the first and the last": lambda seq: [0, 0, 0, seq, seq],
    "a long hole": lambda seq: [5] * 70,
}
"""Where junk tokens stand in front of, by the length of the prompt; `seq` is behind it."""


def with_junk(inputs: Inputs, family: str, before: list[int]) -> tuple[Inputs, Tensor]:
    """The sample with masked tokens of text put in, and which of all tokens are the sample's own [seq] bool."""
    ids = inputs.input_ids[0].tolist()
    dice, mixed, own = torch.Generator().manual_seed(len(before)), [], []
    for position in range(len(ids) + 1):
        junk = torch.randint(0, 200, (before.count(position),), generator=dice).tolist()
        mixed += junk + ids[position : position + 1]
        own += [False] * len(junk) + [True] * (position < len(ids))
    keys = {"pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"}
    batch = {key: value for key, value in inputs.items() if key in keys}
    batch |= {"input_ids": torch.tensor([mixed]), "attention_mask": torch.tensor([own]).long()}
    return build_inputs(batch, read_config(parity.DATA / "ckpt" / family)), torch.tensor(own)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_masked_token_is_as_if_it_were_not_there(family: str, pattern: str) -> None:
    inputs, model = families.prepared(family, "image_and_video"), parity.tiny(family, dtype=torch.float64)
    junk, own = with_junk(inputs, family, PATTERNS[pattern](inputs.input_ids.shape[1]))
    expected = model(inputs)
    assert torch.equal(junk.position_ids[..., own], inputs.position_ids)
    assert torch.equal(junk.next_position, inputs.next_position)
    assert parity.difference(model(junk)[:, own], expected) < 1e-9
    for chunk in (7, 64):
        chunked = model(junk, cache=model.new_cache(capacity=8), chunk=chunk)
        assert parity.difference(chunked[:, own], expected) < 1e-9
    assert parity.difference(model(junk, last_only=True)[:, 0], expected[:, -1]) < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_cached_steps_over_masked_tokens_equal_leaving_them_out(family: str) -> None:
    inputs, model = families.prepared(family, "text"), parity.tiny(family, dtype=torch.float64)
    junk, own = with_junk(inputs, family, [1, 2, 2, 5, 5, 5, 5, 9])
    expected, past = model(inputs), model.new_cache(capacity=4)
    steps = [model(part(junk, t, t + 1), cache=past) for t in range(len(own))]
    assert parity.difference(torch.cat(steps, 1)[:, own], expected) < 1e-9
    assert torch.equal(families.greedy(model, junk, 6), families.greedy(model, inputs, 6))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_samples_with_holes_padded_on_either_side_equal_each_alone(family: str) -> None:
    inputs, model = families.prepared(family, "text"), parity.tiny(family, dtype=torch.float64)
    patterns = [[2, 2, 7], [], list(range(6))]
    alone = [with_junk(inputs, family, before) for before in patterns]
    width = max(len(own) for _, own in alone) + 3
    for side in ("left", "right"):
        ids, mask = torch.zeros(3, width, dtype=torch.int64), torch.zeros(3, width, dtype=torch.int64)
        for row, (one, own) in enumerate(alone):
            span = slice(width - len(own), width) if side == "left" else slice(0, len(own))
            ids[row, span], mask[row, span] = one.input_ids[0], own.long()
        batch = build_inputs({"input_ids": ids, "attention_mask": mask}, read_config(parity.DATA / "ckpt" / family))
        expected = model(inputs)[0]
        for logits in (model(batch), model(batch, cache=model.new_cache(capacity=8), chunk=5)):
            for row in range(3):
                assert parity.difference(logits[row, mask[row].bool()], expected) < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_masked_token_has_no_gradient(family: str) -> None:
    inputs, model = families.prepared(family, "text"), parity.tiny(family, dtype=torch.float64)
    junk, own = with_junk(inputs, family, [2, 2, 7])
    embeddings = model.model.language_model.embed_tokens(junk.input_ids).detach().requires_grad_()
    hidden = model.model.language_model(embeddings, position_ids=junk.position_ids, attention_mask=junk.attention_mask)
    hidden[:, own].square().sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[:, ~own].abs().max() == 0
    assert embeddings.grad[:, own].abs().max() > 0


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.mixture is None])
@torch.no_grad()
def test_in_float32_the_logits_equal_leaving_the_tokens_out_to_rounding(family: str) -> None:
    inputs, model = families.prepared(family, "text"), parity.tiny(family)
    junk, own = with_junk(inputs, family, [1, 2, 2, 5, 5, 5, 5, 9])
    expected = model(inputs)
    for logits in (model(junk), model(junk, cache=model.new_cache(capacity=8), chunk=8)):
        assert parity.difference(logits[:, own], expected) < 1e-5
