"""Values and edits of a generation are those of the whole prompt, whatever `prefill_chunk` says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.api import load


@pytest.fixture(scope="module")
def model(oracle):
    return load(oracle / "ckpt" / "qwen3_vl", dtype="float32", device="cpu")


def at_positions(value: Tensor) -> Tensor:
    """The value with its entries at positions 3, 4 and 12 of the prompt turned round."""
    value[:, [3, 4, 12]] *= -2
    return value


def heads_at_positions(value: Tensor) -> Tensor:
    """The same of heads, which have another layout, and of the rows of images."""
    value[..., [3], :] *= -2
    return value


@pytest.mark.parametrize(
    ("address", "edit"),
    [
        ("layers.1.layer_output", at_positions),
        ("layers.0.mlp.mlp_output", at_positions),
        ("layers.1.self_attn.attention_head_outputs", at_positions),
        ("layers.0.deepstack_output", heads_at_positions),
    ],
)
@pytest.mark.parametrize("chunk", [2, 7, 16])
def test_an_edit_by_positions_is_of_the_prompts_positions(model, red, address, edit, chunk) -> None:
    prompt = model.prompt("What colour is this? Say one word.", images=1)
    options = {"images": [red], "max_new_tokens": 2, "ignore_eos": True, "edit": {address: edit}, "when": "prompt"}
    whole = model.generate(prompt, **options)
    pieces = model.generate(prompt, prefill_chunk=chunk, **options)
    assert whole.ids == pieces.ids
    torch.testing.assert_close(torch.tensor(pieces.logprobs), torch.tensor(whole.logprobs))
    plain = model.generate(prompt, images=[red], max_new_tokens=2, ignore_eos=True)
    assert plain.logprobs != whole.logprobs


def test_a_trace_sees_the_whole_prompt(model, red) -> None:
    prompt = model.prompt("What colour is this?", images=1)
    with model.generate(prompt, images=[red], max_new_tokens=2, ignore_eos=True, prefill_chunk=4) as run:
        lengths = [model.layers[1].layer_output.shape[1] for _ in run]
    assert lengths == [model.prepare(prompt, images=[red]).input_ids.shape[1], 1]
