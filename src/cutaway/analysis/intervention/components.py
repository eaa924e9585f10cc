"""The parts of the model that an experiment can act on, layer by layer, each with its value and its entries.

``residual`` the stream after a layer, ``attention`` and ``mlp`` what they add to it, ``head`` one attention head's
output, ``deepstack`` the term added to the image's tokens, ``expert`` what one expert of a mixture adds, ``block``
what a whole layer adds to the stream. It knows names of values; it does not know what is put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cutaway.analysis.intervention.partial_forward import Change
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.values import run_values

COMPONENTS = ("residual", "attention", "mlp", "head", "deepstack", "expert", "block")

SUMS = ("expert", "block")
"""Components that are a summand of their value: an edit adds the difference."""


def value_of(model: Model, component: str, layer: int) -> str:
    """The value of a component, below its layer: ``"mlp.mlp_output"``."""
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


def layers_of(model: Model, component: str, layers: Sequence[int] | None = None) -> list[int]:
    """The layers that have a component, or those of `layers`. Raises `InputError` for one that has it not."""
    if component not in COMPONENTS:
        raise InputError(f"A component is one of {', '.join(COMPONENTS)}; got {component!r}.")
    config = model.config
    have = list(range(config.text.num_layers))
    if component == "deepstack":
        have = have[: len(config.vision.deepstack_indexes)]
    if component == "expert":
        have = [layer for layer in have if config.text.mlp_types[layer] == "experts"]
    if not have:
        raise InputError(f"A {config.family} model has no {component} component. Choose another, or another model.")
    if layers is not None and not len(layers):
        raise InputError(f"The list of layers is empty: name at least one of {have}, or leave it out for all.")
    wrong = [layer for layer in layers or () if layer not in have]
    if wrong:
        raise InputError(f"Layers {wrong} have no {component} component; layers {have} have it.")
    return have if layers is None else list(dict.fromkeys(layers))


def parts_of(model: Model, component: str, layer: int) -> list[int | None]:
    """The entries of a component in a layer: its heads or experts, or None where it has none."""
    text = model.config.text
    if component == "head":
        linear = model.root.layers[layer].kind == "linear_attention" and text.linear
        return list(range(linear.value_heads if linear else text.num_heads))
    if component == "expert" and text.experts is not None:
        return list(range(text.experts.count))
    return [None]


@dataclass(frozen=True, eq=False)
class Values:
    """A component's values in one run, by layer: [1 seq …]. For experts also what was routed where.

    `visual` [1 seq], on the CPU as positions are, is true at images and videos, which alone have DeepStack terms.
    """

    component: str
    visual: Tensor
    found: dict[int, Tensor]
    routing: dict[int, tuple[Tensor, Tensor, Tensor]]

    def of(self, layer: int, part: int | None) -> Tensor:
        """[1 seq width]: what a component, or one of its entries, gives at every token."""
        if self.component == "head":
            return self.found[layer][:, :, part]
        if self.component == "expert":
            indices, weights, outputs = self.routing[layer]
            return (outputs * (weights * (indices == part))[..., None]).sum(2)
        return self.found[layer]


def read(model: Model, inputs: Inputs, component: str, layers: Sequence[int]) -> Values:
    """A component's values in a run on a batch of one."""
    names = {layer: f"layers.{layer}.{value_of(model, component, layer)}" for layer in layers}
    routing = ("expert_indices", "expert_weights", "expert_outputs")
    more = [f"layers.{layer}.mlp.{name}" for layer in layers for name in routing] if component == "expert" else []
    more += [f"layers.{layer}.input" for layer in layers] if component == "block" else []
    if component == "deepstack" and not bool((inputs.mm_token_type_ids > 0).any()):
        raise InputError("A prompt without an image or video has no DeepStack terms. Give the prompt an image.")
    values = run_values(model.root, lambda: model.root.model(inputs), read=[*names.values(), *more])
    found = {layer: values[name] for layer, name in names.items()}
    visual = inputs.mm_token_type_ids > 0
    if component == "deepstack":
        found = {layer: _spread(value, visual) for layer, value in found.items()}
    if component == "block":
        found = {layer: value - values[f"layers.{layer}.input"] for layer, value in found.items()}
    routed = {}
    for layer in layers if component == "expert" else ():
        at = f"layers.{layer}.mlp"
        routed[layer] = values[f"{at}.expert_indices"], values[f"{at}.expert_weights"], values[f"{at}.expert_outputs"]
    return Values(component, visual.cpu(), found, routed)


def _spread(packed: Tensor, visual: Tensor) -> Tensor:
    """Rows of visual tokens [tokens hidden] at their places, [1 seq hidden], zeros elsewhere."""
    return packed.new_zeros(*visual.shape, packed.shape[-1]).masked_scatter(visual[..., None], packed)


def change(model: Model, old: Values, layer: int, part: int | None, positions: Tensor, new: Tensor) -> Change:
    """The edit that puts `new` [n width] in a component's place at `positions`; `old` are the run's own values."""
    value = value_of(model, old.component, layer)
    if old.component == "deepstack":  # there are terms at the tokens of images and videos alone
        there = old.visual[0, positions]
        positions, new = positions[there], new[there.to(new.device)]
    if old.component in SUMS:
        here = old.of(layer, part)[0, positions]
        return Change(layer, value, positions, new - here, add=True)
    return Change(layer, value, positions, new, part if old.component == "head" else None)


def difference(old: Values, made: Change, part: int | None) -> Tensor:
    """[n width]: what an edit adds to the run's own value."""
    return made.new if made.add else made.new - old.of(made.layer, part)[0, made.positions]


def gradient_at(gradients: dict[int, Tensor], made: Change) -> Tensor:
    """[n width]: the gradient [1 seq …] of an edit's value, where the edit is."""
    found = gradients[made.layer][0, made.positions]
    return found if made.part is None else found[:, made.part]
