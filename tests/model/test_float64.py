"""A model in float64 computes in float64 throughout, and its gradients are those of finite differences."""

from __future__ import annotations

from dataclasses import replace

import families
import parity
import pytest
import torch

from cutaway.checkpoint.families import FAMILIES


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_float64_is_near_float32_and_every_path_agrees(family: str, implementation: str) -> None:
    inputs = families.prepared(family, "image_and_video")
    exact = parity.tiny(family, dtype=torch.float64, attn_implementation=implementation)
    logits = exact(inputs)
    assert logits.dtype == torch.float64
    assert parity.difference(parity.tiny(family)(inputs).double(), logits) < 1e-3
    cached = exact(inputs, cache=exact.new_cache(capacity=8), chunk=16)
    assert parity.difference(cached, logits) < 1e-9, "what is computed in float32 would differ by more"


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_finite_differences(family: str) -> None:
    inputs, model = families.prepared(family, "image_and_video"), parity.tiny(family, dtype=torch.float64)
    assert inputs.pixel_values is not None
    inputs = replace(inputs, pixel_values=inputs.pixel_values.double())
    way = torch.randn(inputs.pixel_values.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def score(step: float) -> torch.Tensor:
        pixels = inputs.pixel_values + step * way
        return torch.log_softmax(model(replace(inputs, pixel_values=pixels), last_only=True)[0, -1], -1)[7]

    pixels = inputs.pixel_values.clone().requires_grad_()
    torch.log_softmax(model(replace(inputs, pixel_values=pixels), last_only=True)[0, -1], -1)[7].backward()
    assert pixels.grad is not None
    slope, size = float((pixels.grad * way).sum()), 1e-5
    with torch.no_grad():
        measured = float(score(size) - score(-size)) / (2 * size)
    assert slope == pytest.approx(measured, rel=1e-4)
