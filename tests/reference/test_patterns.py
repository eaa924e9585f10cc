"""Our patterns beside the weights of transformers' eager attention, each block on the reference's own stream."""

from __future__ import annotations

import families
import parity
import pytest
import torch

from cutaway.trace.run import run_values
from tests.reference.tiny_reference import reference_of


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["qwen3_vl", *families.FAMILIES])
@torch.no_grad()
def test_a_pattern_is_the_weights_of_eager_attention(family: str, implementation: str) -> None:
    theirs, ours = reference_of(family), parity.tiny(family, attn_implementation=implementation)
    theirs.set_attn_implementation("eager")
    inputs, _ = (parity if family == "qwen3_vl" else families).case(family, "image_and_video")
    streams = []  # `hidden_states` has what a block returns, without the DeepStack term that the next one reads
    for block in theirs.model.language_model.layers:
        block.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    out = theirs(**inputs, position_ids=inputs.position_ids, use_cache=False, output_attentions=True)
    blocks = [i for i, block in enumerate(ours.layers) if block.kind == "full_attention"]
    assert len(out.attentions) == len(blocks)
    tokens = inputs.attention_mask[0].bool()
    for index, expected in zip(blocks, out.attentions, strict=True):
        address = f"layers.{index}.self_attn.attention_probabilities"
        stream = {f"layers.{index}.input": streams[index]}
        result = run_values(ours, lambda: ours(inputs), read=address, edit=stream)[address]
        torch.testing.assert_close(result[0][:, tokens], expected[0][:, tokens], rtol=0, atol=1e-6)
