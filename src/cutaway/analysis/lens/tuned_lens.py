"""The tuned lens: an affine map for each layer that translates its residual stream into that of the last layer.

Use it where the logit lens shows nothing in early layers. Each map is trained so that the final norm and head, applied
to the translated stream, give the model's own final distribution. It learns from the prompts it is given; on other
kinds of prompts it is untested. A map can also contribute what the model itself does not yet know at that layer; the
logit lens, which learns nothing, cannot.

Source: Belrose et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_count, check_model, check_number
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.splits import groups_of, held_out_part
from cutaway.analysis.lens.residual_stream import EMBEDDINGS, accumulated_residual, unembed
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, InputError


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Trained maps, one for each layer but the last.

    - `names`: what each map translates, ``"embeddings"`` and layer numbers.
    - `weights` [maps hidden hidden], `biases` [maps hidden], float32: the stream `x` becomes ``x + x W + b``.
    - `notes`: the family, how it was trained, and under ``"divergence"`` the mean KL divergence from the final
      distribution on held-out prompts, in nats, by name, with the maps (``"tuned"``) and without (``"logit"``).
    """

    names: tuple[str, ...]
    weights: Tensor
    biases: Tensor
    notes: dict[str, Any]

    def translate(self, name: str, residual: Tensor) -> Tensor:
        """Return the stream [… hidden] after layer `name` in the last layer's terms; the last layer's is unchanged."""
        if name not in self.names:
            if name == str(len(self.names) - 1):
                return residual
            raise InputError(f"This lens has maps for {', '.join(self.names)}; there is none for layer {name}.")
        n, x = self.names.index(name), residual.float()
        return (x + x @ self.weights[n].to(x.device) + self.biases[n].to(x.device)).to(residual.dtype)

    def check(self, model: Model) -> None:
        """Raises `InputError` for a model of another family, depth or width than the lens was trained on."""
        trained = (self.notes.get("family"), len(self.names), self.weights.shape[-1])
        here = (model.config.family, model.num_layers, model.hidden_size)
        if trained != here:
            raise InputError(
                f"This lens was trained on a model of family, layers and hidden size {trained}; this model has {here}. "
                f"Train a lens on this model: `train_tuned_lens`, or `cutaway lens --train FOLDER`."
            )

    def save(self, path: str | Path) -> Path:
        """Write the maps and notes to one safetensors file."""
        notes = {"names": list(self.names), **self.notes}
        return save_tensors(path, {"weights": self.weights, "biases": self.biases}, notes)

    @classmethod
    def load(cls, path: str | Path) -> TunedLens:
        """Return the lens that `save` wrote. Raises `CheckpointError` for any other file."""
        tensors, notes = load_tensors(path)
        names = notes.pop("names", None)
        if set(tensors) != {"weights", "biases"} or not isinstance(names, list):
            raise CheckpointError(
                f"{path} is no tuned lens: it holds {', '.join(tensors)}. Name a file that `TunedLens.save` wrote."
            )
        return cls(tuple(names), tensors["weights"], tensors["biases"], notes)


def train_tuned_lens(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    epochs: int = 10,
    learning_rate: float = 1e-3,
    held_out: float = 0.2,
    groups: Sequence[Any] | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> TunedLens:
    """Train a tuned lens on every token of the prompts, by Adam, to the least divergence from the final distribution.

    - `prompts`: batches of one sample. - `held_out`: the share of the prompts that is not trained on but measured.
    - `groups`: an entry for each prompt; a group is never split between training and held-out prompts. By default
      prompts about the same images are one group.
    - `seed`: of the split and of the order of training. - `on_progress`: called with steps done and in all.

    Raises `InputError` for wrong arguments, or where all prompts are one group.
    """
    check_model(model, "Training a tuned lens")
    check_count("epochs", epochs)
    check_number("learning_rate", learning_rate, 1e-12, float("inf"), rule="a positive number")
    check_number("held_out", held_out, 1e-9, 1, rule="a share of the prompts between 0 and 1")
    check_prompts(prompts, least=2)
    out = held_out_part(groups_of(prompts, groups), held_out, seed)
    trained, tested = (
        [p for p, is_out in zip(prompts, out.tolist(), strict=True) if is_out == part] for part in (0, 1)
    )
    names = (EMBEDDINGS, *map(str, range(model.num_layers - 1)))
    weights, biases = _fit(model, trained, len(names), epochs, learning_rate, seed, on_progress)
    with torch.no_grad():
        untrained = torch.zeros_like(weights), torch.zeros_like(biases)
        divergence = {
            name: torch.stack([_divergences(model, p, *maps) for p in tested]).mean(0).tolist()
            for name, maps in (("tuned", (weights, biases)), ("logit", untrained))
        }
    notes = {
        "family": model.config.family, "prompts": len(trained), "held_out": len(tested), "epochs": epochs,
        "learning_rate": learning_rate, "seed": seed,
        "divergence": {name: dict(zip(names, values, strict=True)) for name, values in divergence.items()},
    }  # fmt: skip
    return TunedLens(names, weights.detach().cpu(), biases.detach().cpu(), notes)


def _fit(
    model: Model, prompts: Sequence[Inputs], maps: int, epochs: int, learning_rate: float, seed: int,
    on_progress: Callable[[int, int], None] | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Weights [maps hidden hidden] and biases [maps hidden], trained on one prompt at a time."""
    weights = torch.zeros(maps, model.hidden_size, model.hidden_size, device=model.device, requires_grad=True)
    biases = torch.zeros(maps, model.hidden_size, device=model.device, requires_grad=True)
    optimiser = torch.optim.Adam([weights, biases], lr=learning_rate)
    order, total, done = torch.Generator().manual_seed(seed), epochs * len(prompts), 0
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total)
    for _ in range(epochs):
        for n in torch.randperm(len(prompts), generator=order).tolist():
            with torch.enable_grad():
                optimiser.zero_grad()
                _divergences(model, prompts[n], weights, biases).sum().backward(inputs=[weights, biases])
            optimiser.step()
            schedule.step()
            done += 1
            if on_progress is not None:
                on_progress(done, total)
    return weights, biases


def _divergences(model: Model, inputs: Inputs, weights: Tensor, biases: Tensor) -> Tensor:
    """[maps]: KL divergence of the final distribution from that of each translated stream, averaged over the tokens."""
    _, residuals = accumulated_residual(model, inputs)
    tokens = inputs.attention_mask.bool()
    *early, last = (residual[tokens] for residual in residuals)  # each [tokens hidden]
    with torch.no_grad():
        final = unembed(model, last).float().log_softmax(-1)
    x = torch.stack(early).float()  # [maps tokens hidden]
    translated = (x + x @ weights + biases[:, None]).to(last.dtype)
    through_maps = unembed(model, translated).float().log_softmax(-1)
    return (final.exp() * (final - through_maps)).sum(-1).mean(-1)
