"""The other families beside the reference in one process: whole models, the linear attention and the mixture alone."""

from __future__ import annotations

import families
import parity
import pytest
import torch
from small import text_config

from cutaway.config import LinearAttention, MixtureSizes
from cutaway.model.cache import Cache
from cutaway.model.delta_net import GatedDeltaNet
from cutaway.model.delta_rule import fused, in_chunks
from cutaway.model.experts import MixtureMLP
from cutaway.model.vision.parts import PatchProjection
from tests.reference.tiny_reference import convolved, reference_of

CONFIG = text_config(
    hidden_size=64,
    layer_types=("linear_attention",),
    mlp_types=("experts",),
    experts=MixtureSizes(16, 4, 24),
    linear=LinearAttention(key_heads=2, value_heads=6, key_head_dim=16, value_head_dim=24, conv_kernel=4),
)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_logits_of_the_same_inputs(monkeypatch, family: str) -> None:
    """The same bits on text and images where both go one way; else no farther from float64 than the reference.

    The weights may magnify rounding (on qwen3_5_moe either float32 is 4e-4 from float64), so the distance between the
    two says little: each is held against float64.
    """
    theirs, ours, exact = reference_of(family), parity.tiny(family), parity.tiny(family, dtype=torch.float64)
    monkeypatch.setattr(PatchProjection, "forward", convolved)
    for name in families.CASES:
        inputs, _ = families.case(family, name)
        tokens = inputs.attention_mask.bool()
        with torch.no_grad():
            expected = theirs(**inputs, position_ids=inputs.position_ids, use_cache=False).logits[tokens]
            result, truth = ours(inputs)[tokens], exact(inputs)[tokens]
        if family in ("qwen2_vl", "qwen2_5_vl"):
            assert torch.equal(result, expected), name
        else:
            off = parity.difference(expected.double(), truth)
            assert parity.difference(result.double(), truth) <= max(1.25 * off, 2e-6), name


@pytest.mark.parametrize("family", families.FAMILIES)
def test_bfloat16_is_no_farther_from_float32_than_the_references(family: str) -> None:
    exact, ours, theirs = (
        parity.tiny(family),
        parity.tiny(family, dtype=torch.bfloat16),
        reference_of(family, torch.bfloat16),
    )
    mine, other = [], []
    for name in families.CASES:
        inputs, _ = families.case(family, name)
        tokens = inputs.attention_mask.bool()
        with torch.no_grad():
            truth = exact(inputs)[tokens]
            mine.append((ours(inputs)[tokens].float() - truth).square().mean())
            low = theirs(**inputs, position_ids=inputs.position_ids, use_cache=False).logits[tokens]
            other.append((low.float() - truth).square().mean())
    ours_off, theirs_off = torch.stack(mine).mean().sqrt(), torch.stack(other).mean().sqrt()
    assert ours_off <= theirs_off * 1.05, f"root mean square error {ours_off:.4f} against {theirs_off:.4f}"


@pytest.mark.parametrize("seq", [1, 5, 64, 200])
@torch.no_grad()
def test_the_linear_attention_alone(seq: int) -> None:
    from transformers import Qwen3_5TextConfig
    from transformers.cache_utils import DynamicCache
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = Qwen3_5TextConfig(
        hidden_size=64,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=16,
        linear_value_head_dim=24,
        linear_conv_kernel_dim=4,
    )
    theirs, ours = Qwen3_5GatedDeltaNet(config, 0).eval(), GatedDeltaNet(CONFIG, 0).eval()
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
    ours.load_state_dict(theirs.state_dict())
    x, mine, other = torch.randn(2, seq + 1, 64), Cache(1, 256), DynamicCache(config=config)
    for part in (x[:, :seq], x[:, seq:]):  # a prompt and a decoding step
        out = ours(part, cache=mine)
        mine.advance(part.shape[1])
        assert parity.difference(out, theirs(part, cache=other)) < 1e-5
    assert parity.difference(mine.state(0)[1], other.layers[0].recurrent_states[0]) < 1e-5


@torch.no_grad()
def test_a_fused_kernel_is_given_what_it_takes() -> None:
    """By the reference's torch function, which has the arguments of `flash-linear-attention`'s."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    def kernel(q, k, v, *, g, beta, scale, initial_state, output_final_state):
        assert k.shape[2] == v.shape[2]
        q = q * scale * q.shape[-1] ** 0.5  # the torch function scales its queries itself
        return torch_chunk_gated_delta_rule(
            q, k, v, g=g, beta=beta, initial_state=initial_state, output_final_state=output_final_state
        )

    queries, keys = (torch.nn.functional.normalize(torch.randn(2, 2, 70, 16), dim=-1) for _ in range(2))
    decays, betas = -torch.rand(2, 6, 70), torch.rand(2, 6, 70)
    options = (queries, keys, torch.randn(2, 6, 70, 24), decays, betas, torch.randn(2, 6, 16, 24))
    for ours, theirs in zip(fused(kernel, torch.float32, *options), in_chunks(*options), strict=True):
        assert parity.difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("tokens", [1, 9, 50])
@torch.no_grad()
def test_the_mixture_alone(tokens: int) -> None:
    from transformers import Qwen3VLMoeTextConfig
    from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextSparseMoeBlock

    sizes = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "hidden_size": 64}
    config = Qwen3VLMoeTextConfig(**sizes)
    config._experts_implementation = "eager"
    theirs, ours = Qwen3VLMoeTextSparseMoeBlock(config).eval(), MixtureMLP(CONFIG).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, tokens, 64)
    assert parity.difference(ours(x), theirs(x)) < 1e-5
