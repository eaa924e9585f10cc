"""The residual stream at one position as a sum of terms: what each head, MLP, expert and DeepStack layer wrote into it.

Direct logit attribution is built on it. Values are read by name in one forward, and only those of the one position are
kept. For heads with softmax attention it also says which tokens they read their output from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.attention.patterns import head_patterns, visible_keys
from cutaway.analysis.common.arguments import check_model, sample_index
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.reads import RunValues
from cutaway.trace.run import run_values


@dataclass(frozen=True)
class ResidualTerm:
    """One summand of the residual stream. - `name`, such as ``"layer 3 head 2"``. - `vector`: [hidden] float64.

    - `kind`: embedding, image feature, head, linear head, mlp, expert, shared expert or deepstack.
    - `layer`: its number, -1 for what precedes layer 0.
    """

    name: str
    kind: str
    layer: int
    vector: Tensor


@dataclass(frozen=True)
class ResidualDecomposition:
    """All terms at one position.

    - `terms`; `residual`: [hidden], the stream before the final norm, which they add up to.
    - `sources`: [layers seq] float64, what a layer's heads took from each token, measured along the direction that was
      given; NaN where attention is linear, None without a direction.
    """

    terms: tuple[ResidualTerm, ...]
    residual: Tensor
    sources: Tensor | None


def decompose_residual(
    model: Model,
    inputs: Inputs,
    position: int,
    *,
    direction: Tensor | None = None,
    sample: int | None = None,
    edit: Mapping[str, Any] | None = None,
) -> ResidualDecomposition:
    """Return the terms of the residual stream at one `position` of a sample, before the final norm.

    `direction` [hidden] float64 is what the heads' sources are measured along. Raises `InputError` for wrong arguments.
    """
    check_model(model, "A residual decomposition")
    sample = sample_index(inputs, sample)
    length = inputs.input_ids.shape[1]
    if isinstance(position, bool) or not isinstance(position, int) or not -length <= position < length:
        raise InputError(f"`position` must be a whole number from 0 to {length - 1}; got {position!r}.")
    position %= length
    plans = _plans(model, inputs, sample, position, direction)
    reduce: dict[str, Callable[[Any], Any]] = {address: keep for plan in plans for address, keep in plan.items()}
    values = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    visual = bool(inputs.mm_token_type_ids[sample, position] > 0)
    kind = "image feature" if visual else "embedding"
    terms = [ResidualTerm(kind, kind, -1, values["token_embeddings"].double())]
    sources = torch.full((model.num_layers, length), torch.nan, dtype=torch.float64)
    for layer in range(model.num_layers):
        terms += _heads(model, values, layer)
        terms += _mlp(model, values, layer)
        if f"layers.{layer}.deepstack_output" in reduce:
            vector = values[f"layers.{layer}.deepstack_output"].double()
            terms.append(ResidualTerm(f"layer {layer} deepstack", "deepstack", layer, vector))
        if f"layers.{layer}.self_attn.attention_values" in reduce:
            sources[layer] = values[f"layers.{layer}.self_attn.o_proj.input"][1]
    return ResidualDecomposition(
        tuple(terms), values["language_model.norm.input"], None if direction is None else sources
    )


def _plans(
    model: Model, inputs: Inputs, sample: int, position: int, direction: Tensor | None
) -> list[dict[str, Callable[[Any], Any]]]:
    """For each address that is read, the function that keeps what is needed of the value."""

    def keep(value: Tensor) -> Tensor:
        return value[sample, position].detach().clone()

    visual = inputs.mm_token_type_ids.flatten() > 0
    flat = sample * inputs.input_ids.shape[1] + position
    rank = int(visual[:flat].sum())  # of this position among the image tokens, which DeepStack's outputs are
    deepstack = len(model.config.vision.deepstack_indexes) if bool(visual[flat]) else 0
    plans: list[dict[str, Callable[[Any], Any]]] = [{"token_embeddings": keep, "language_model.norm.input": keep}]
    for layer, kind in enumerate(model.config.text.layer_types):
        host = f"layers.{layer}"
        if kind != "full_attention":
            plans.append({f"{host}.linear_attn.out_proj.input": keep})
        elif direction is None:
            plans.append({f"{host}.self_attn.o_proj.input": lambda value: (keep(value), None)})
        else:
            plans.append(_HeadSources(model, inputs, layer, (sample, position), direction).plan())
        names = ["mlp_output"]
        if model.config.text.mlp_types[layer] == "experts":
            names = ["expert_weights", "expert_indices", "expert_outputs"]
            if model.layers[layer].mlp.shared:
                names.append("shared_expert_output")
        plans.append({f"{host}.mlp.{name}": keep for name in names})
        if layer < deepstack:
            plans.append({f"{host}.deepstack_output": lambda value: value[rank].detach().clone()})
    return plans


def _heads(model: Model, values: RunValues, layer: int) -> list[ResidualTerm]:
    """A term for each head: its slice of the output projection's input, through its slice of the projection."""
    module = model.layers[layer]
    if module.kind == "full_attention":
        outputs, kind = values[f"layers.{layer}.self_attn.o_proj.input"][0], "head"
        projection, count = module.self_attn.o_proj, module.self_attn.num_heads
    else:
        outputs, kind = values[f"layers.{layer}.linear_attn.out_proj.input"], "linear head"
        projection, count = module.linear_attn.out_proj, module.linear_attn.num_heads
    weight = projection.weight.detach().double().unflatten(1, (count, -1))  # [hidden heads head_dim]
    vectors = torch.einsum("hd,ohd->ho", outputs.double().unflatten(0, (count, -1)), weight)  # [heads hidden]
    return [ResidualTerm(f"layer {layer} {kind} {n}", kind, layer, vector) for n, vector in enumerate(vectors)]


def _mlp(model: Model, values: RunValues, layer: int) -> list[ResidualTerm]:
    """The MLP's term, or one for each expert that the position was routed to."""
    host = f"layers.{layer}.mlp"
    if model.config.text.mlp_types[layer] != "experts":
        return [ResidualTerm(f"layer {layer} mlp", "mlp", layer, values[f"{host}.mlp_output"].double())]
    weights, outputs = values[f"{host}.expert_weights"].double(), values[f"{host}.expert_outputs"].double()
    indices = values[f"{host}.expert_indices"].tolist()
    terms = [
        ResidualTerm(f"layer {layer} expert {index}", "expert", layer, weight * output)
        for index, weight, output in zip(indices, weights, outputs, strict=True)
    ]
    if model.layers[layer].mlp.shared:
        vector = values[f"{host}.shared_expert_output"].double()
        terms.append(ResidualTerm(f"layer {layer} shared expert", "shared expert", layer, vector))
    return terms


class _HeadSources:
    """Follows one layer's heads at one position from queries to output projection, and sums what each token gave."""

    def __init__(self, model: Model, inputs: Inputs, layer: int, at: tuple[int, int], direction: Tensor) -> None:
        self.attention, self.layer, self.at = model.layers[layer].self_attn, layer, at
        self.visible = visible_keys(inputs, torch.tensor([at[1]]), at[0])
        self.direction = direction
        self.parts: dict[str, Tensor] = {}

    def plan(self) -> dict[str, Callable[[Any], Any]]:
        """The functions that receive this layer's values, in the forward's order."""
        host = f"layers.{self.layer}.self_attn"
        plan: dict[str, Callable[[Any], Any]] = {
            f"{host}.attention_queries": self.queries,
            f"{host}.attention_keys": self.keys,
            f"{host}.attention_values": self.values,
        }
        if self.attention.gated:
            plan[f"{host}.attention_gate"] = self.gate
        return plan | {f"{host}.o_proj.input": self.heads}

    def queries(self, value: Tensor) -> None:
        """[batch heads seq head_dim]"""
        self.parts["queries"] = value[self.at[0], :, self.at[1], None].detach()  # [heads 1 head_dim]

    def keys(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]"""
        queries, keys = self.parts.pop("queries"), value[self.at[0]].detach()
        rows = [pattern for _, _, pattern in head_patterns(queries, keys, self.attention.scale, self.visible)]
        self.parts["pattern"] = torch.cat(rows)  # [heads seq]

    def values(self, value: Tensor) -> None:
        """[batch kv_heads seq head_dim]"""
        self.parts["values"] = value[self.at[0]].detach()

    def gate(self, value: Tensor) -> None:
        """[batch seq heads head_dim]"""
        self.parts["gate"] = value[self.at].detach()

    def heads(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """[batch seq heads*head_dim] to this position's [heads*head_dim], and what was read from each token [seq]."""
        count, group = self.attention.num_heads, self.attention.num_heads // self.attention.num_kv_heads
        along = (self.direction @ self.attention.o_proj.weight.detach().double()).unflatten(0, (count, -1))
        if "gate" in self.parts:
            along = along * self.parts.pop("gate").double()
        values, pattern = self.parts.pop("values"), self.parts.pop("pattern").double()
        total = torch.zeros(pattern.shape[1], dtype=torch.float64, device=pattern.device)
        for head in range(count):
            total += pattern[head] * (values[head // group].double() @ along[head])
        return value[self.at].detach().clone(), total.cpu()
