"""The components of a layer that patching and ablation act on: their values, their heads or experts, their edits.

- ``residual``: the residual stream after a layer. ``attention``, ``mlp``: what they add to it.
- ``head``: one attention head's output. ``expert``: what one expert of a mixture adds.
- ``deepstack``: the term added at image tokens. ``block``: what a whole layer adds to the residual stream.

What is put in a component's place is the analyses' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.intervention.partial_forward import PositionEdit, scatter_to_sequence
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.run import run_values

COMPONENTS = ("residual", "attention", "mlp", "head", "deepstack", "expert", "block")

SUMMANDS = ("expert", "block")
"""Components that are one summand of their value: an edit adds the difference to the value."""


def value_name(model: Model, component: str, layer: int) -> str:
    """Return the name of a component's value below its layer, such as ``"mlp.mlp_output"``."""
    attention = "linear_attn" if model.root.layers[layer].kind == "linear_attention" else "self_attn"
    return {
        "residual": "layer_output",
        "attention": f"{attention}.attention_output",
        "mlp": "mlp.mlp_output",
        "head": f"{attention}.attention_head_outputs",
        "deepstack": "deepstack_output",
        "expert": "mlp.routed_output",
        "block": "layer_output",
    }[component]


def layers_with(model: Model, component: Any, layers: Any = None) -> list[int]:
    """Return the layers that have a component, or those named in `layers`.

    Raises `InputError` for an unknown component, one that the model does not have, and layers without it.
    """
    if component not in COMPONENTS:
        raise InputError(f"A component is one of {', '.join(COMPONENTS)}; got {component!r}.")
    config = model.config
    every = list(range(config.text.num_layers))
    if component == "deepstack":
        every = every[: len(config.vision.deepstack_indexes)]
    if component == "expert":
        every = [layer for layer in every if config.text.mlp_types[layer] == "experts"]
    if not every:
        raise InputError(
            f"The model must have the component; got {component!r}, which a {config.family} model has not. Choose "
            f"another."
        )
    if layers is None:
        return every
    try:
        numbers = torch.as_tensor(layers).flatten().tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"`layers` are layer numbers, such as [0, 1]; got {layers!r}.") from error
    if not numbers:
        raise InputError(
            f"`layers` names at least one layer; got an empty list. Name some of {every}, or leave it out."
        )
    wrong = [number for number in numbers if type(number) is not int or number not in every]
    if wrong:
        raise InputError(f"Layers with the component {component!r} are {_span(every)}; got {wrong}.")
    return list(dict.fromkeys(numbers))


def _span(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{first} to {last}" if numbers == list(range(first, last + 1)) else ", ".join(map(str, numbers))


def parts_of(model: Model, component: str, layer: int) -> list[int | None]:
    """Return the heads or experts that a component has in a layer; ``[None]`` for a component without parts."""
    text = model.config.text
    if component == "head":
        linear = model.root.layers[layer].kind == "linear_attention" and text.linear
        return list(range(linear.value_heads if linear else text.num_heads))
    if component == "expert" and text.experts is not None:
        return list(range(text.experts.count))
    return [None]


@dataclass(frozen=True, eq=False)
class ComponentValues:
    """A component's values in one run.

    - `by_layer`: [1 seq …], zeros where a DeepStack term has no vector.
    - `routing`: of experts, by layer, indices and weights [1 seq k] and outputs [1 seq k hidden].
    - `visual`: [1 seq] on the CPU, as positions are; true at image tokens, which alone have DeepStack terms.
    """

    component: str
    visual: Tensor
    by_layer: dict[int, Tensor]
    routing: dict[int, tuple[Tensor, Tensor, Tensor]]

    def of(self, layer: int, part: int | None) -> Tensor:
        """Return [1 seq width]: what the component, or one of its parts, gives at every token."""
        if self.component == "head":
            return self.by_layer[layer][:, :, part]
        if self.component == "expert":
            indices, weights, outputs = self.routing[layer]
            return (outputs * (weights * (indices == part))[..., None]).sum(2)  # [1 seq k hidden] → [1 seq hidden]
        return self.by_layer[layer]


def read_component(model: Model, inputs: Inputs, component: str, layers: Sequence[int]) -> ComponentValues:
    """Return a component's values in a run on a batch of one."""
    names = {layer: f"layers.{layer}.{value_name(model, component, layer)}" for layer in layers}
    routing = ("expert_indices", "expert_weights", "expert_outputs")
    more = [f"layers.{layer}.mlp.{name}" for layer in layers for name in routing] if component == "expert" else []
    more += [f"layers.{layer}.input" for layer in layers] if component == "block" else []
    if component == "deepstack" and not bool((inputs.mm_token_type_ids > 0).any()):
        raise InputError("DeepStack terms come from an image or video; got a prompt without. Give the prompt an image.")
    values = run_values(model.root, lambda: model.root.model(inputs), read=[*names.values(), *more])
    by_layer = {layer: values[name] for layer, name in names.items()}
    visual = inputs.mm_token_type_ids > 0
    if component == "deepstack":
        by_layer = {layer: scatter_to_sequence(value, visual) for layer, value in by_layer.items()}
    if component == "block":
        by_layer = {layer: value - values[f"layers.{layer}.input"] for layer, value in by_layer.items()}
    routed = {}
    for layer in layers if component == "expert" else ():
        at = f"layers.{layer}.mlp"
        routed[layer] = values[f"{at}.expert_indices"], values[f"{at}.expert_weights"], values[f"{at}.expert_outputs"]
    return ComponentValues(component, visual.cpu(), by_layer, routed)


def groups_with_effect(component: str, inputs: Inputs, groups: dict[str, Tensor], divided: bool) -> dict[str, Tensor]:
    """Return the groups at which an edit of a component can do something: DeepStack terms are at image tokens only.

    Groups without any are left out where they come from dividing the prompt (`divided`), and an `InputError` where they
    were named.
    """
    if component != "deepstack":
        return groups
    visual = inputs.mm_token_type_ids[0].cpu() > 0
    kept = {name: positions for name, positions in groups.items() if bool(visual[positions].any())}
    lost = [name for name in groups if name not in kept]
    if lost and (not divided or not kept):
        raise InputError(
            f"DeepStack terms are added at image tokens only; got {', '.join(lost[:4])}, without any, so that an edit "
            f"would change nothing. Name groups that hold image tokens."
        )
    return kept


def edit_component(
    model: Model, old: ComponentValues, layer: int, part: int | None, positions: Tensor, new: Tensor
) -> PositionEdit:
    """Return the edit that replaces a component by `new` [n width] at `positions`; `old` are the run's own values."""
    value = value_name(model, old.component, layer)
    if old.component == "deepstack":  # only image tokens have DeepStack terms
        has_term = old.visual[0, positions]
        positions, new = positions[has_term], new[has_term.to(new.device)]
    if old.component in SUMMANDS:
        here = old.of(layer, part)[0, positions]
        return PositionEdit(layer, value, positions, new - here, add=True)
    return PositionEdit(layer, value, positions, new, part if old.component == "head" else None)


def change_of(old: ComponentValues, edit: PositionEdit, part: int | None) -> Tensor:
    """Return [n width]: what an edit adds to the run's own value."""
    return edit.new if edit.add else edit.new - old.of(edit.layer, part)[0, edit.positions]


def gradient_at(gradients: dict[int, Tensor], edit: PositionEdit) -> Tensor:
    """Return [n width]: the gradient [1 seq …] of an edit's value, at the edit's positions and part."""
    gradient = gradients[edit.layer][0, edit.positions]
    return gradient if edit.part is None else gradient[:, edit.part]
