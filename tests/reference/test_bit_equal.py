"""Beside the reference in one process: the same bits, but where the patch embedding is a product, no convolution."""

from __future__ import annotations

import parity
import pytest
import torch

from cutaway.model.vision.parts import PatchProjection
from tests.reference.tiny_reference import convolved, reference_of

FAMILY = "qwen3_vl"


@pytest.fixture(scope="module")
def reference():
    return reference_of(FAMILY)


@pytest.mark.parametrize("name", parity.cases(FAMILY))
def test_sdpa_logits_have_the_same_bits(reference, monkeypatch, name: str) -> None:
    inputs, _ = parity.case(FAMILY, name)
    model = parity.tiny(FAMILY)
    tokens = inputs.attention_mask.bool()
    reference.model.rope_deltas = None
    with torch.no_grad():
        theirs = reference(**inputs, use_cache=False).logits[tokens]
        assert parity.difference(model(inputs)[tokens], theirs) < 1e-5
        monkeypatch.setattr(PatchProjection, "forward", convolved)
        assert torch.equal(model(inputs)[tokens], theirs)


def test_bfloat16_logits_are_no_farther_from_float32_than_the_references(reference) -> None:
    low, ours = reference_of(FAMILY, torch.bfloat16), parity.tiny(FAMILY, dtype=torch.bfloat16)
    mine, other = [], []
    for name in parity.cases(FAMILY):
        inputs, expected = parity.case(FAMILY, name)
        tokens = inputs.attention_mask.bool()
        with torch.no_grad():
            exact = expected["out.logits"][tokens]
            low.model.rope_deltas = None
            mine.append((ours(inputs)[tokens].float() - exact).square().mean())
            other.append((low(**inputs, use_cache=False).logits[tokens].float() - exact).square().mean())
    ours_off, theirs_off = torch.stack(mine).mean().sqrt(), torch.stack(other).mean().sqrt()
    assert ours_off <= theirs_off * 1.05, (
        f"root mean square error {ours_off:.4f} against the reference's {theirs_off:.4f}"
    )
