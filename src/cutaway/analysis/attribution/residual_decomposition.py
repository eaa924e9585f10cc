"""The stream at one position as a list of terms: who wrote what into it, and which tokens the heads read it from.

Values are read by name as one forward passes; only the rows of the one position are kept. What the terms are used for
is the techniques' business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.attention.pattern_rows import row_patterns, visible
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.trace.reads import RunValues
from cutaway.trace.run import run_values


@dataclass(frozen=True)
class Term:
    """A summand of the stream: its name, what it is, its layer (-1 before the first), and its vector [hidden] float64.

    Kinds: embedding, image feature, head, linear head, mlp, expert, shared expert, deepstack.
    """

    name: str
    kind: str
    layer: int
    vector: Tensor


@dataclass(frozen=True)
class Terms:
    """All terms at one position; `stream` [hidden], which they add up to; `sources` [layers seq] float64.

    A source is what a layer's heads, read along the direction, took from each token; NaN where attention is linear.
    """

    terms: tuple[Term, ...]
    stream: Tensor
    sources: Tensor


def decompose_residual(
    model: Model, inputs: Inputs, row: int, place: int, direction: Tensor, edit: Mapping[str, Any] | None = None
) -> Terms:
    """The terms at position `place` of a row, and the heads' sources along `direction` [hidden] float64."""
    plans = _plans(model, inputs, row, place, direction)
    reduce: dict[str, Callable[[Any], Any]] = {address: keep for plan in plans for address, keep in plan.items()}
    found = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    visual = bool(inputs.mm_token_type_ids[row, place] > 0)
    kind = "image feature" if visual else "embedding"
    terms = [Term(kind, kind, -1, found["token_embeddings"].double())]
    sources = torch.full((model.num_layers, inputs.input_ids.shape[1]), torch.nan, dtype=torch.float64)
    for layer in range(model.num_layers):
        terms += _heads(model, found, layer)
        terms += _mlp(model, found, layer)
        if f"layers.{layer}.deepstack_output" in reduce:
            vector = found[f"layers.{layer}.deepstack_output"].double()
            terms.append(Term(f"layer {layer} deepstack", "deepstack", layer, vector))
        if f"layers.{layer}.self_attn.attention_values" in reduce:
            sources[layer] = found[f"layers.{layer}.self_attn.o_proj.input"][1]
    return Terms(tuple(terms), found["language_model.norm.input"], sources)


def _plans(
    model: Model, inputs: Inputs, row: int, place: int, direction: Tensor
) -> list[dict[str, Callable[[Any], Any]]]:
    """For each address that is read, what is kept of the value."""

    def kept(value: Tensor) -> Tensor:
        return value[row, place].detach().clone()

    visual = inputs.mm_token_type_ids.flatten() > 0
    at = row * inputs.input_ids.shape[1] + place
    rank = int(visual[:at].sum())
    taps = len(model.config.vision.deepstack_indexes) if bool(visual[at]) else 0
    plans: list[dict[str, Callable[[Any], Any]]] = [{"token_embeddings": kept, "language_model.norm.input": kept}]
    for layer, kind in enumerate(model.config.text.layer_types):
        start = f"layers.{layer}"
        if kind == "full_attention":
            plans.append(_Sources(model, inputs, layer, (row, place), direction).plan())
        else:
            plans.append({f"{start}.linear_attn.out_proj.input": kept})
        names = ["mlp_output"]
        if model.config.text.mlp_types[layer] == "experts":
            names = ["expert_weights", "expert_indices", "expert_outputs"]
            if model.layers[layer].mlp.shared:
                names.append("shared_expert_output")
        plans.append({f"{start}.mlp.{name}": kept for name in names})
        if layer < taps:
            plans.append({f"{start}.deepstack_output": lambda value: value[rank].detach().clone()})
    return plans


def _heads(model: Model, found: RunValues, layer: int) -> list[Term]:
    """A term for each head: its slice of what the output projection reads, through its slice of the projection."""
    part = model.layers[layer]
    if part.kind == "full_attention":
        heads, kind = found[f"layers.{layer}.self_attn.o_proj.input"][0], "head"
        module, count = part.self_attn.o_proj, part.self_attn.num_heads
    else:
        heads, kind = found[f"layers.{layer}.linear_attn.out_proj.input"], "linear head"
        module, count = part.linear_attn.out_proj, part.linear_attn.num_heads
    weight = module.weight.detach().double().unflatten(1, (count, -1))
    vectors = torch.einsum("hd,ohd->ho", heads.double().unflatten(0, (count, -1)), weight)
    return [Term(f"layer {layer} {kind} {n}", kind, layer, vector) for n, vector in enumerate(vectors)]


def _mlp(model: Model, found: RunValues, layer: int) -> list[Term]:
    start = f"layers.{layer}.mlp"
    if model.config.text.mlp_types[layer] != "experts":
        return [Term(f"layer {layer} mlp", "mlp", layer, found[f"{start}.mlp_output"].double())]
    weights, outputs = found[f"{start}.expert_weights"].double(), found[f"{start}.expert_outputs"].double()
    indices = found[f"{start}.expert_indices"].tolist()
    terms = [
        Term(f"layer {layer} expert {index}", "expert", layer, weight * output)
        for index, weight, output in zip(indices, weights, outputs, strict=True)
    ]
    if model.layers[layer].mlp.shared:
        vector = found[f"{start}.shared_expert_output"].double()
        terms.append(Term(f"layer {layer} shared expert", "shared expert", layer, vector))
    return terms


class _Sources:
    """Follows one layer's heads from the queries to the output projection; keeps the row and what it read from whom."""

    def __init__(self, model: Model, inputs: Inputs, layer: int, at: tuple[int, int], direction: Tensor) -> None:
        self.attention, self.layer, self.at = model.layers[layer].self_attn, layer, at
        self.seen = visible(inputs, torch.tensor([at[1]]), at[0])
        self.direction = direction
        self.held: dict[str, Tensor] = {}

    def plan(self) -> dict[str, Callable[[Any], Any]]:
        """What to keep of which value, in the forward's order."""
        start = f"layers.{self.layer}.self_attn"
        plan: dict[str, Callable[[Any], Any]] = {
            f"{start}.attention_queries": self.queries,
            f"{start}.attention_keys": self.keys,
            f"{start}.attention_values": self.values,
        }
        if self.attention.gated:
            plan[f"{start}.attention_gate"] = self.gate
        return plan | {f"{start}.o_proj.input": self.heads}

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.held["queries"] = value[self.at[0], :, self.at[1], None].detach()

    def keys(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]"""
        rows = row_patterns(self.held.pop("queries"), value[self.at[0]].detach(), self.attention.scale, self.seen)
        self.held["pattern"] = torch.cat([pattern for _, _, pattern in rows])

    def values(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]"""
        self.held["values"] = value[self.at[0]].detach()

    def gate(self, value: Tensor) -> None:
        """[batch seq heads head_dim]"""
        self.held["gate"] = value[self.at].detach()

    def heads(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """[batch seq heads*head_dim] to this row's [heads*head_dim], and what was read from each token [seq]."""
        count, groups = self.attention.num_heads, self.attention.num_heads // self.attention.num_kv_heads
        along = (self.direction @ self.attention.o_proj.weight.detach().double()).unflatten(0, (count, -1))
        if "gate" in self.held:
            along = along * self.held.pop("gate").double()
        values, pattern = self.held.pop("values"), self.held.pop("pattern").double()
        total = torch.zeros(pattern.shape[1], dtype=torch.float64, device=pattern.device)
        for head in range(count):
            total += pattern[head] * (values[head // groups].double() @ along[head])
        return value[self.at].detach().clone(), total.cpu()
