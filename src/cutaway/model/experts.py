"""The mixture of experts that stands in place of a dense MLP (Qwen3-VL-MoE, Qwen3.5-MoE).

A router scores every expert for every token and the best few act on it; on Qwen3.5-MoE a shared expert acts on every
token beside them. Tokens are sorted by expert, so that each expert that was chosen runs once and the others not at all.
This module does not know which block it sits in.

Source: Qwen3 technical report (2025); shared experts: DeepSeekMoE (Dai et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutaway.config import TextConfig
from cutaway.errors import EditError
from cutaway.model.layers import GatedMLP, Linear, wide_softmax
from cutaway.named import Named, Value
from cutaway.observe import observer

_grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def choose(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Weights and indices [… chosen] of the `count` best experts for router logits [… experts].

    Softmax over all experts in float32, the best taken, their probabilities scaled to sum to one, then rounded to the
    logits' dtype.
    """
    weights, indices = wide_softmax(logits).topk(count, dim=-1)
    return (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), indices


def groups_multiply(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped product, one kernel for all experts, takes these: bfloat16 on a recent CUDA card."""
    if _grouped_mm is None or x.device.type != "cuda" or x.dtype != torch.bfloat16 or weight.dtype != x.dtype:
        return False
    aligned = all(size % 8 == 0 for size in weight.shape[1:])  # rows must begin at multiples of 16 bytes
    return aligned and torch.cuda.get_device_capability(x.device) >= (9, 0)


class Experts(Named):
    """The experts' weights, stacked: `gate_up_proj` [experts 2*intermediate hidden], gate first; `down_proj`."""

    def __init__(self, count: int, width: int, hidden: int) -> None:
        super().__init__()
        self.count = count
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * hidden, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, hidden))
        nn.init.uniform_(self.gate_up_proj, -(width**-0.5), width**-0.5)  # normal_ on meta imports half of torch
        nn.init.uniform_(self.down_proj, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        """What each chosen expert makes of its token, [tokens chosen width], for `x` [tokens width].

        `indices` [tokens chosen] int64. Raises `EditError` for an index that no expert has.
        """
        selection, order = indices.flatten().sort(stable=True)  # [tokens*chosen], by expert
        if (
            x.device.type == "cpu" or observer.get() is not None
        ):  # the router's own need no check, which waits for a GPU
            self._check(selection)
        rows = order // indices.shape[1]  # [tokens*chosen], the token of each
        if groups_multiply(x, self.down_proj):
            out = self._at_once(x[rows], selection)[order.argsort()]
        elif torch.is_grad_enabled():
            out = torch.cat(list(self._one_by_one(x, rows, selection)))[order.argsort()]
        else:  # each expert's rows go where they belong while they are in the processor's cache
            out = self._in_place(x, order, rows, selection)
        return out.unflatten(0, indices.shape)

    def _in_place(self, x: Tensor, order: Tensor, rows: Tensor, selection: Tensor) -> Tensor:
        """The outputs in the order of the choices, written part by part."""
        parts = self._one_by_one(x, rows, selection)
        first = next(parts)
        out, start = first.new_empty(len(order), first.shape[1]), 0
        for part in chain((first,), parts):
            out[order[start : start + len(part)]] = part
            start += len(part)
        return out

    def _at_once(self, x: Tensor, selection: Tensor) -> Tensor:
        """All experts in one kernel; `x` [rows width] is sorted by expert."""
        assert _grouped_mm is not None
        ends = torch.searchsorted(selection, torch.arange(self.count, device=x.device), right=True).int()
        gate, up = _grouped_mm(x, self.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, -1)
        return _grouped_mm(F.silu(gate) * up, self.down_proj.transpose(1, 2), offs=ends)

    def _one_by_one(self, x: Tensor, rows: Tensor, selection: Tensor) -> Iterator[Tensor]:
        """The outputs of each expert that got tokens; `rows` [rows] are the tokens sorted by expert."""
        which, counts = selection.unique_consecutive(return_counts=True)
        for expert, part in zip(which.tolist(), rows.split(counts.tolist()), strict=True):
            gate, up = F.linear(x[part], self.gate_up_proj[expert]).chunk(2, -1)
            yield F.linear(F.silu(gate) * up, self.down_proj[expert])

    def _check(self, selection: Tensor) -> None:
        """Raises `EditError` unless the sorted indices are experts of this layer."""
        low, high = int(selection[0]), int(selection[-1])
        if low < 0 or high >= self.count:
            raise EditError(
                f"`expert_indices` must be numbers of experts, 0 to {self.count - 1}; got {low} to {high}. To switch "
                f"an expert off for a token, set its `expert_weights` to 0."
            )


class MixtureMLP(Named):
    """Router, experts and, on Qwen3.5-MoE, the shared expert::

    router_logits = gate(x) -> the best few: expert_weights, expert_indices
    routed_output = sum of expert_weights * expert_outputs
    mlp_output    = routed_output + sigmoid(shared_expert_gate(x)) * shared_expert(x)
    """

    router_logits = Value("batch seq experts", "the router's scores of every expert, before the softmax")
    expert_weights = Value("batch seq chosen", "weights of the chosen experts, summing to one, largest first")
    expert_indices = Value("batch seq chosen", "which experts act on the token; rewriting reroutes it", dtype="int64")
    expert_outputs = Value("batch seq chosen hidden", "what each chosen expert makes of the token, before its weight")
    routed_output = Value("batch seq hidden", "the chosen experts' outputs, weighted and summed")
    shared_expert_output = Value("batch seq hidden", "what the shared expert adds, its gate applied (Qwen3.5-MoE)")
    mlp_hidden = Value("batch seq intermediate", "the dense MLP's hidden layer")
    mlp_output = Value("batch seq hidden", "what the mixture adds to the stream")

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        if config.experts is None:
            raise ValueError("a block of this config is a mixture; the config says no sizes of its experts")
        sizes, width = config.experts, config.hidden_size
        self.per_token = sizes.per_token
        self.gate = Linear(width, sizes.count, bias=False)
        self.experts = Experts(sizes.count, width, sizes.intermediate_size)
        self.shared = sizes.shared_intermediate_size is not None
        if sizes.shared_intermediate_size is not None:
            self.shared_expert = GatedMLP(width, sizes.shared_intermediate_size)
            self.shared_expert_gate = Linear(width, 1, bias=False)
        else:
            self.mark_unavailable(
                "shared_expert_output", "this family's mixture has no shared expert; Qwen3.5-MoE's has one."
            )
        self.mark_unavailable(
            "mlp_hidden",
            "this block is a mixture, and each chosen expert has a hidden layer of its own. Read `expert_outputs`, or "
            "on Qwen3.5-MoE `shared_expert.mlp_hidden`.",
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch seq hidden] to the same shape."""
        weights, indices = choose(self.value("router_logits", self.gate(x)), self.per_token)
        weights = self.value("expert_weights", weights)
        indices = self.value("expert_indices", indices)
        outputs = self.experts(x.flatten(0, 1), indices.flatten(0, 1)).unflatten(0, x.shape[:2])
        outputs = self.value("expert_outputs", outputs)
        out = self.value("routed_output", (weights[..., None, :] @ outputs)[..., 0, :])
        if self.shared:
            shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
            out = out + self.value("shared_expert_output", shared)
        return self.value("mlp_output", out)
