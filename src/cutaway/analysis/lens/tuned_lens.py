"""The tuned lens: an affine map for each layer that translates its stream into that of the last layer.

Each map is trained so that the final norm and head, read off the translated stream, give the model's own final
distribution. It learns from prompts that it is given: what it says of other kinds of prompts is untested. A map can
also know what the model does not yet know at that layer; the logit lens, which learns nothing, cannot.

Source: Belrose et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.lens.residual_stream import accumulated_residual, unembed
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, InputError


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Trained maps. - `names`: what each translates, ``"embeddings"`` and layer numbers; the last layer needs none.

    - `weights` [layers hidden hidden], `biases` [layers hidden], float32: the stream `x` becomes ``x + x W + b``.
    - `notes`: the family, how it was trained, and the held-out divergence from the final distribution in nats, with
      (`tuned`) and without (`logit`) the maps, by name.
    """

    names: tuple[str, ...]
    weights: Tensor
    biases: Tensor
    notes: dict[str, Any]

    def translate(self, name: str, stream: Tensor) -> Tensor:
        """[… hidden] of the stream after layer `name` as the last layer would say it; the last layer's as it is."""
        if name not in self.names:
            if name == str(len(self.names) - 1):
                return stream
            raise InputError(f"This lens translates {', '.join(self.names)}; it has no map for layer {name}.")
        at, x = self.names.index(name), stream.float()
        return (x + x @ self.weights[at].to(x.device) + self.biases[at].to(x.device)).to(stream.dtype)

    def check(self, model: Model) -> None:
        """Raises `InputError` for a model of another shape than the lens was trained on."""
        mine = (self.notes.get("family"), len(self.names), self.weights.shape[-1])
        theirs = (model.config.family, model.num_layers, model.hidden_size)
        if mine != theirs:
            raise InputError(
                f"This lens was trained on a model of family, layers and width {mine}; this one has {theirs}. Train "
                f"one on this model: `cutaway lens --train FOLDER`."
            )

    def save(self, path: str | Path) -> Path:
        """Writes the maps and notes, one safetensors file."""
        notes = {"names": list(self.names), **self.notes}
        return save_tensors(path, {"weights": self.weights, "biases": self.biases}, notes)

    @classmethod
    def load(cls, path: str | Path) -> TunedLens:
        """What `save` wrote. Raises `CheckpointError` for anything else."""
        tensors, notes = load_tensors(path)
        names = notes.pop("names", None)
        if set(tensors) != {"weights", "biases"} or not isinstance(names, list):
            raise CheckpointError(f"{path} is no tuned lens: it has {', '.join(tensors)}. Name a file that was saved.")
        return cls(tuple(names), tensors["weights"], tensors["biases"], notes)


def train_tuned_lens(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    epochs: int = 10,
    rate: float = 1e-3,
    held_out: float = 0.2,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> TunedLens:
    """Maps trained on every token of the prompts, by Adam, to the least divergence from the final distribution.

    The last `held_out` part of the prompts is not trained on; the notes have the divergence there. `on_progress` is
    called with steps done and in all. Raises `InputError` for fewer than two prompts.
    """
    model.require_weights("Training a lens")
    kept = max(1, round(len(prompts) * held_out))
    if len(prompts) < 2 or epochs < 1 or not 0 < held_out < 1:
        raise InputError(
            f"A lens needs at least two prompts (one is held out), one epoch, and a part held out between 0 and 1; got "
            f"{len(prompts)} prompts, epochs={epochs}, held_out={held_out}."
        )
    names = ("embeddings", *map(str, range(model.num_layers - 1)))
    shape, device = (len(names), model.hidden_size), model.device
    weights = torch.zeros(*shape, shape[1], device=device, requires_grad=True)
    biases = torch.zeros(shape, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([weights, biases], lr=rate)
    order, total = torch.Generator().manual_seed(seed), epochs * (len(prompts) - kept)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total)
    done = 0
    for _ in range(epochs):
        for n in torch.randperm(len(prompts) - kept, generator=order).tolist():
            with torch.enable_grad():
                optimiser.zero_grad()
                _divergences(model, prompts[n], weights, biases).sum().backward(inputs=[weights, biases])
            optimiser.step()
            schedule.step()
            done += 1
            if on_progress is not None:
                on_progress(done, total)
    measured = {"tuned": (weights, biases), "logit": (torch.zeros_like(weights), torch.zeros_like(biases))}
    with torch.no_grad():
        held = {
            name: torch.stack([_divergences(model, p, *maps) for p in prompts[-kept:]]).mean(0).tolist()
            for name, maps in measured.items()
        }
    notes = {
        "family": model.config.family, "prompts": len(prompts) - kept, "held_out": kept, "epochs": epochs, "rate": rate,
        "divergence": {name: dict(zip(names, values, strict=True)) for name, values in held.items()},
    }  # fmt: skip
    return TunedLens(names, weights.detach().cpu(), biases.detach().cpu(), notes)


def _divergences(model: Model, inputs: Inputs, weights: Tensor, biases: Tensor) -> Tensor:
    """[layers]: KL divergence of the final distribution from each translated stream's, averaged over the tokens."""
    _, streams = accumulated_residual(model, inputs)
    tokens = inputs.attention_mask.bool()
    *early, last = (stream[tokens] for stream in streams)
    with torch.no_grad():
        final = unembed(model, last).float().log_softmax(-1)
    x = torch.stack(early).float()
    translated = (x + x @ weights + biases[:, None]).to(last.dtype)
    spoken = unembed(model, translated).float().log_softmax(-1)
    return (final.exp() * (final - spoken)).sum(-1).mean(-1)
