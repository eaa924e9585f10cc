"""The mixture: against a loop over every expert, and what rerouting and ablation do."""

from __future__ import annotations

from dataclasses import replace

import families
import parity
import pytest
import torch
import torch.nn.functional as F
from small import text_config
from torch import Tensor

from cutaway.config import MixtureSizes
from cutaway.errors import EditError, Unavailable
from cutaway.model import experts
from cutaway.model.experts import MixtureMLP, choose
from cutaway.model.text import TextModel
from cutaway.observe import observer
from cutaway.trace.run import Run

CONFIG = text_config(
    hidden_size=12,
    layer_types=("full_attention",) * 4,
    mlp_types=("dense", "dense", "dense", "experts"),
    experts=MixtureSizes(7, 3, 10),
)


def mixture(count: int = 7, per_token: int = 3, shared: int | None = None) -> MixtureMLP:
    return MixtureMLP(replace(CONFIG, experts=MixtureSizes(count, per_token, 10, shared))).eval()


def slow(layer: MixtureMLP, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Every expert on every token, weighted by what the router gave it."""
    out = torch.zeros_like(x)
    for expert in range(layer.experts.count):
        gate, up = (x @ layer.experts.gate_up_proj[expert].T).chunk(2, -1)
        made = (F.silu(gate) * up) @ layer.experts.down_proj[expert].T
        out = out + made * (weights * (indices == expert)).sum(-1, keepdim=True)
    if layer.shared:
        out = out + torch.sigmoid(layer.shared_expert_gate(x)) * layer.shared_expert(x)
    return out


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 40)])
@pytest.mark.parametrize(
    ("count", "selection", "shared"), [(7, 3, None), (7, 3, 6), (5, 1, None), (4, 4, None), (1, 1, 3)]
)
@torch.no_grad()
def test_equals_a_loop_over_all_experts(shape, count: int, selection: int, shared: int | None) -> None:
    layer, x = mixture(count, selection, shared), torch.randn(*shape, 12)
    weights, indices = choose(layer.gate(x), selection)
    torch.testing.assert_close(layer(x), slow(layer, x, weights, indices), rtol=0, atol=1e-5)


@pytest.mark.skipif(experts._grouped_mm is None, reason="this torch has no grouped product")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_all_experts_in_one_kernel_equal_one_by_one(monkeypatch, dtype: torch.dtype) -> None:
    layer = experts.Experts(6, 16, 24).to(dtype)
    x, indices = torch.randn(30, 16, dtype=dtype), torch.randint(0, 5, (30, 3))  # expert 5 gets nothing
    expected = layer(x, indices)
    monkeypatch.setattr(experts, "groups_multiply", lambda x, weight: True)
    torch.testing.assert_close(layer(x, indices), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.02)


def test_weights_are_the_best_probabilities_scaled_to_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    weights, indices = choose(logits, 2)
    probability = logits.softmax(-1)[0]
    assert indices.tolist() == [[1, 3]]
    torch.testing.assert_close(weights[0], probability[[1, 3]] / probability[[1, 3]].sum())
    low, _ = choose(torch.randn(50, 16).bfloat16(), 4)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float().sum(-1), torch.ones(50), rtol=0, atol=0.02)


def values_of(layer: MixtureMLP, x: Tensor, **edits) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and every value by name; `edits` maps a name to what replaces it."""

    class Editor(parity.Recorder):
        def on_value(self, module, name, value):
            if module is layer and name in edits:
                value = edits[name](value)
            return super().on_value(module, name, value)

    seen = Editor()
    token = observer.set(seen)
    try:
        with torch.no_grad():
            out = layer(x)
    finally:
        observer.reset(token)
    return out, {name: value for (owner, name), value in seen.values.items() if owner == id(layer)}


def test_every_value_has_its_shape_and_meaning() -> None:
    layer, x = mixture(shared=6), torch.randn(2, 5, 12)
    out, seen = values_of(layer, x)
    shapes = {name: tuple(value.shape) for name, value in seen.items()}
    selection = (2, 5, 3)
    assert shapes["router_logits"] == (2, 5, 7)
    assert shapes["expert_weights"] == shapes["expert_indices"] == selection
    assert shapes["expert_outputs"] == (*selection, 12)
    assert shapes["routed_output"] == shapes["shared_expert_output"] == shapes["mlp_output"] == (2, 5, 12)
    assert torch.equal(seen["router_logits"], layer.gate(x))
    assert torch.equal(seen["routed_output"] + seen["shared_expert_output"], out)
    weighted = (seen["expert_outputs"] * seen["expert_weights"][..., None]).sum(2)
    torch.testing.assert_close(weighted, seen["routed_output"])


def test_rewritten_indices_reroute() -> None:
    layer, x = mixture(), torch.randn(2, 5, 12)
    out, seen = values_of(layer, x, expert_indices=lambda i: torch.full_like(i, 4))
    expected = slow(layer, x, seen["expert_weights"], torch.full_like(seen["expert_indices"], 4))
    with torch.no_grad():
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
        assert not torch.allclose(out, layer(x), atol=1e-3)


def test_an_expert_that_no_token_chose_does_not_run() -> None:
    layer, x = mixture(), torch.randn(2, 6, 12)
    with torch.no_grad():
        layer.experts.gate_up_proj[5] = float("nan")
    assert values_of(layer, x, expert_indices=lambda i: i % 5)[0].isfinite().all()
    assert values_of(layer, x, expert_indices=lambda i: torch.full_like(i, 5))[0].isnan().all()


def test_weights_of_zero_take_an_expert_out() -> None:
    layer, x = mixture(shared=6), torch.randn(2, 5, 12)
    out, seen = values_of(layer, x, expert_weights=torch.zeros_like)
    assert torch.equal(out, seen["shared_expert_output"])
    only = values_of(layer, x, expert_weights=lambda w: w * torch.tensor([1.0, 0.0, 0.0]))[1]
    torch.testing.assert_close(only["routed_output"], only["expert_outputs"][:, :, 0] * only["expert_weights"][..., :1])


def test_edited_outputs_and_logits_act() -> None:
    layer, x = mixture(), torch.randn(1, 4, 12)
    out, _ = values_of(layer, x, expert_outputs=lambda o: o * 0)
    assert not out.any()
    _, seen = values_of(
        layer, x, router_logits=lambda s: torch.nn.functional.one_hot(torch.tensor(2), 7) * 50.0 + s * 0
    )
    assert (seen["expert_indices"][..., 0] == 2).all()
    torch.testing.assert_close(seen["expert_weights"][..., 0], torch.ones(1, 4))


@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_index_that_no_expert_has_is_an_error(wrong: int) -> None:
    layer, x = mixture(), torch.randn(1, 4, 12)
    with pytest.raises(EditError, match="numbers of experts, 0 to 6"):
        values_of(layer, x, expert_indices=lambda i: torch.full_like(i, wrong))


def test_dense_blocks_inside_a_mixture() -> None:
    model = TextModel(CONFIG, "sdpa", deepstack_layers=0)
    kinds = [type(block.mlp).__name__ for block in model.layers]
    assert kinds == ["GatedMLP", "GatedMLP", "GatedMLP", "MixtureMLP"]
    positions = torch.arange(5).expand(3, 1, 5)
    out = model(torch.randn(1, 5, 12), position_ids=positions, attention_mask=torch.ones(1, 5, dtype=torch.int64))
    assert out.isfinite().all()


def test_what_a_mixture_lacks_says_why() -> None:
    with pytest.raises(Unavailable, match="has no shared expert"):
        _ = mixture().shared_expert_output
    with pytest.raises(Unavailable, match="expert_outputs"):
        _ = mixture().mlp_hidden


def test_gradients_reach_router_and_chosen_experts() -> None:
    layer, x = mixture(shared=6), torch.randn(2, 8, 12)
    layer(x).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize("family", families.MIXTURES)
def test_rerouting_in_a_trace_moves_the_logits(family: str) -> None:
    model = parity.tiny(family)
    inputs, _ = families.case(family, "text")
    with torch.no_grad():
        plain = model(inputs)
    with Run(model, lambda: model(inputs)) as run:
        assert run.layers[1].mlp.expert_weights.sum(-1).allclose(torch.ones(1))
        indices = run.layers[1].mlp.expert_indices
        indices[:] = (indices + 1) % 5
        rerouted = run.logits.save()
    assert not torch.allclose(rerouted, plain, atol=1e-2)


def test_values_are_the_same_with_and_without_a_gradient_and_under_an_observer() -> None:
    """Where no gradient is recorded, each expert's rows are written where they belong as they come."""
    layer, x = mixture(9, 3, 8), torch.randn(2, 11, 12)
    recorded, (watched, values) = layer(x), values_of(layer, x)
    with torch.no_grad():
        plain, indices = layer(x), values["expert_indices"].flatten(0, 1)
        outputs = layer.experts(x.flatten(0, 1), indices).unflatten(0, x.shape[:2])
    assert torch.equal(plain, recorded)
    assert torch.equal(watched, recorded)
    assert torch.equal(values["expert_outputs"], outputs)
    assert torch.equal(outputs, layer.experts(x.flatten(0, 1), indices).unflatten(0, x.shape[:2]))
