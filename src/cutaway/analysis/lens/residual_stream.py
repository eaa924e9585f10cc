"""The stream between the layers, and what the final norm and head make of it: what both lenses read.

It does not know words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from cutaway.analysis.attention.pattern_rows import numbered
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.trace.run import run_values


def accumulated_residual(
    model: Model,
    inputs: Inputs,
    layers: int | Sequence[int] | None = None,
    at: str = "stream",
    where: tuple[int, Tensor] | None = None,
    edit: Mapping[str, Any] | None = None,
) -> tuple[tuple[str, ...], list[Tensor]]:
    """The stream after layers: names, and [batch seq hidden] each, or [tokens hidden] of `where` = (row, positions).

    Without `layers` the first is what enters layer 0, ``"embeddings"``.
    """
    count = model.num_layers
    wanted = numbered(layers, range(count), count)
    after = {str(b): f"layers.{b + 1}.input" if b + 1 < count else "language_model.norm.input" for b in wanted}
    if at == "layer_output":
        after = {str(b): f"layers.{b}.layer_output" for b in wanted}
    if layers is None:
        after = {"embeddings": "layers.0.input", **after}

    def kept(value: Tensor) -> Tensor:
        return value if where is None else value[where[0], where[1].to(value.device)]

    found = run_values(model.root, lambda: model.root(inputs), read=list(after.values()), reduce=kept, edit=edit)
    return tuple(after), [found[address] for address in after.values()]


def unembed(model: Model, stream: Tensor) -> Tensor:
    """Logits [… vocab] of a stream [… hidden], by the model's own final norm and head."""
    return model.lm_head(model.language_model.norm(stream))
