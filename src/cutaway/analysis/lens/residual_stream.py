"""The residual stream after every layer, and the logits that the final norm and head make of it.

Both lenses and direct logit attribution read the model through these two functions. They know tensors, not words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from cutaway.analysis.common.arguments import check_choice, check_model, layer_numbers, sample_index
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.run import run_values

EMBEDDINGS = "embeddings"
"""The name of what enters layer 0."""

READ_AT = ("residual", "layer_output")
"""What is read after a layer: what the next layer reads, or the layer's own output without DeepStack's addition."""


def accumulated_residual(
    model: Model,
    inputs: Inputs,
    layers: int | Sequence[int] | None = None,
    *,
    at: str = "residual",
    positions: Tensor | None = None,
    sample: int | None = None,
    edit: Mapping[str, Any] | None = None,
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the residual stream after layers: their names, and a tensor each.

    - `layers`: by number; default all, with what enters layer 0, ``"embeddings"``, before them.
    - `at`: ``"residual"``, what the next layer reads, or ``"layer_output"``, which leaves DeepStack's additions out.
    - `positions`: [tokens] of one sample; the tensors are then [tokens hidden], else [batch seq hidden].
    """
    check_model(model, "The residual stream")
    check_choice("at", at, READ_AT)
    index = sample_index(inputs, sample if positions is not None else 0)
    count = model.num_layers
    numbers = layer_numbers(layers, range(count), count)
    if at == "layer_output":
        addresses = {str(n): f"layers.{n}.layer_output" for n in numbers}
    else:
        addresses = {str(n): f"layers.{n + 1}.input" if n + 1 < count else "language_model.norm.input" for n in numbers}
    if layers is None:
        addresses = {EMBEDDINGS: "layers.0.input", **addresses}

    def select(value: Tensor) -> Tensor:
        return value if positions is None else value[index, positions.to(value.device)]

    read = list(addresses.values())
    values = run_values(model.root, lambda: model.root(inputs), read=read, reduce=select, edit=edit)
    return tuple(addresses), [values[address] for address in read]


def unembed(model: Model, residual: Tensor) -> Tensor:
    """Return the logits [… vocab] of a residual stream [… hidden], by the model's own final norm and head."""
    if not isinstance(residual, Tensor) or residual.shape[-1:] != (model.hidden_size,):
        got = list(residual.shape) if isinstance(residual, Tensor) else type(residual).__name__
        raise InputError(f"A residual stream is a tensor [… {model.hidden_size}]; got {got}.")
    return model.lm_head(model.language_model.norm(residual))
