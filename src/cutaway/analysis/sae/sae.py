"""Sparse autoencoders in SAELens' file format: a dictionary of features for a value, to read and to edit it by.

A folder has `cfg.json` and `sae_weights.safetensors`. What a config asks for is honoured or refused: an unknown
architecture, activation, normalisation or tensor is an error that names it. An edit of a feature adds the difference
that it makes to the value, so what the dictionary does not reconstruct stays, and an edit that changes no feature
changes nothing at all. Training one is another tool's business.

Sources: Bricken et al. 2023 and Cunningham et al. 2023 (the method); Rajamanoharan et al. 2024 (JumpReLU); Gao et al.
2024 (top-k); Bloom et al. 2024 (SAELens' format). A feature is a direction that was learned; what it means is what the
images show on which it fires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.activations import Site
from cutaway.analysis.common.token_selection import TokenSelection, select_tokens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.storage import read_json

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
ARCHITECTURES = ("standard", "jumprelu", "topk")
NORMALISATIONS = ("none", "constant_norm_rescale", "layer_norm")
EPSILON = 1e-5
"""What SAELens adds to the deviation in `layer_norm`."""

Change = Mapping[int, "float | Callable[[Tensor], Tensor]"]
"""By feature: the activation that it gets, or a function of its activations [rows]."""


@dataclass(frozen=True, eq=False)
class SAE:
    """A sparse autoencoder, computed in float32.

    - `encoder` [in features], `encoder_bias` [features], `decoder` [features in], `decoder_bias` [in].
    - `architecture`; `k` of top-k; `threshold` [features] of JumpReLU; `scaling` [features] after the activation.
    - `subtract_bias`: whether the input loses the decoder's bias first. `normalisation`: of the input.
    - `by_norm`: whether top-k ranks activations times their decoder rows' lengths.
    - `config`: the file's content.
    """

    encoder: Tensor
    encoder_bias: Tensor
    decoder: Tensor
    decoder_bias: Tensor
    architecture: str = "standard"
    k: int | None = None
    threshold: Tensor | None = None
    scaling: Tensor | None = None
    subtract_bias: bool = True
    normalisation: str = "none"
    by_norm: bool = False
    config: Mapping[str, Any] | None = None

    @property
    def width(self) -> int:
        """Numbers of a row that it reads."""
        return self.encoder.shape[0]

    @property
    def count(self) -> int:
        """How many features it has."""
        return self.encoder.shape[1]

    @property
    def digest(self) -> str:
        """What tells it from another one."""
        found = sha256(repr((self.architecture, self.k, self.normalisation, self.subtract_bias, self.by_norm)).encode())
        tensors = (self.encoder, self.encoder_bias, self.decoder, self.decoder_bias, self.threshold, self.scaling)
        for tensor in tensors:
            found.update(b"" if tensor is None else tensor.cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    @classmethod
    def load(cls, folder: str | Path, *, device: str | torch.device = "cpu", scale: float | None = None) -> SAE:
        """A dictionary from a folder. Raises `ConfigError` or `CheckpointError` for what is not honoured.

        `scale` is the factor by which inputs were multiplied in training, for a config that asks for
        ``"expected_average_only_in"`` and does not hold it.
        """
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            raise CheckpointError(f"{folder} has no {CONFIG}: name a folder that SAELens saved a dictionary in.")
        config = read_json(folder / CONFIG, ConfigError)
        tensors, _ = load_tensors(folder / WEIGHTS)
        given = _parse_config(config, scale)
        found = _named(tensors, given, config)
        weights = {name: tensor.float().to(device) for name, tensor in found.items()}
        if scale is not None:
            weights["encoder"] = weights["encoder"] * scale
            weights["decoder"], weights["decoder_bias"] = weights["decoder"] / scale, weights["decoder_bias"] / scale
        return cls(**weights, **given, config=config)

    def save(self, folder: str | Path) -> Path:
        """Writes it as SAELens does."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"W_enc": self.encoder, "b_enc": self.encoder_bias, "W_dec": self.decoder, "b_dec": self.decoder_bias}
        optional = {"threshold": self.threshold, "scaling_factor": self.scaling}
        tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
        config = {
            "architecture": self.architecture, "d_in": self.width, "d_sae": self.count, "dtype": "float32",
            "apply_b_dec_to_input": self.subtract_bias, "normalize_activations": self.normalisation,
            "finetuning_scaling_factor": self.scaling is not None, "rescale_acts_by_decoder_norm": self.by_norm,
            **({"k": self.k} if self.k is not None else {}),
        }  # fmt: skip
        save_tensors(folder / WEIGHTS, tensors, {})
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        return folder

    def encode(self, x: Tensor) -> Tensor:
        """Activations [… features] of rows [… in]."""
        self._check(x)
        before = self._scaled(x)[0]
        before = (before - self.decoder_bias if self.subtract_bias else before) @ self.encoder + self.encoder_bias
        lengths = self.decoder.norm(dim=-1) if self.by_norm else before.new_ones(())
        before = before * lengths
        if self.architecture == "topk":
            assert self.k is not None  # `_parse_config` has refused a config without
            kept = torch.topk(before, self.k, dim=-1)
            return torch.zeros_like(before).scatter(-1, kept.indices, kept.values.relu())
        if self.threshold is not None:
            return before.relu() * (before > self.threshold)
        return before.relu()

    def decode(self, activations: Tensor, like: Tensor) -> Tensor:
        """Rows [… in] of activations, brought to the scale of the rows `like` that they came from."""
        _, spread, middle = self._scaled(like)
        return (self._summed(activations) + self.decoder_bias) * spread + middle

    def reconstruct(self, x: Tensor) -> Tensor:
        """What is left of rows [… in] after encoding and decoding, float32."""
        return self.decode(self.encode(x), x)

    def edited(self, x: Tensor, change: Change) -> Tensor:
        """Rows [… in] with features changed and the error term kept, in the dtype of `x`.

        That is the changed reconstruction plus what the plain one leaves out, written as the value plus the
        difference between the two reconstructions: no feature changed is the very same value.
        """
        before = self.encode(x)
        after = before.clone()
        for feature, new in change.items():
            if not isinstance(feature, int) or not 0 <= feature < self.count:
                raise InputError(
                    f"This dictionary has {self.count} features, numbered from 0; there is no {feature!r}."
                )
            after[..., feature] = new(before[..., feature]) if callable(new) else float(new)
        difference = self._summed(after - before) * self._scaled(x)[1]
        return (x.float() + difference).to(x.dtype)

    def _summed(self, activations: Tensor) -> Tensor:
        if self.scaling is not None:
            activations = activations * self.scaling
        if self.by_norm:
            activations = activations / self.decoder.norm(dim=-1)
        return activations @ self.decoder

    def _scaled(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input as it was trained on, and the factor and shift that lead back."""
        x = x.float()
        one, zero = x.new_ones(()), x.new_zeros(())
        if self.normalisation == "constant_norm_rescale":
            factor = x.norm(dim=-1, keepdim=True) / self.width**0.5
            return x / factor, factor, zero
        if self.normalisation == "layer_norm":
            middle = x.mean(-1, keepdim=True)
            spread = (x - middle).std(-1, keepdim=True)
            return (x - middle) / (spread + EPSILON), spread, middle
        return x, one, zero

    def _check(self, x: Tensor) -> None:
        if x.shape[-1] != self.width:
            raise InputError(
                f"This dictionary reads rows of {self.width} numbers, the value has {x.shape[-1]}. Choose the value "
                f"that it was trained on, or one of that width."
            )


def _parse_config(config: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """What a config says about the computation. Raises `ConfigError` for anything that is not honoured."""

    def refused(what: str, got: Any, known: Any) -> ConfigError:
        return ConfigError(f"{CONFIG} asks for {what} {got!r}; honoured are {', '.join(map(str, known))}.")

    architecture = config.get("architecture", "standard")
    named = config.get("activation_fn_str", config.get("activation_fn", "relu"))
    k = config.get("k", (config.get("activation_fn_kwargs") or {}).get("k"))
    if architecture == "standard" and named == "topk":  # SAELens before 6 wrote top-k so
        architecture, named = "topk", "relu"
    if architecture not in ARCHITECTURES:
        raise refused("the architecture", architecture, ARCHITECTURES)
    if named not in ("relu", "topk"):
        raise refused("the activation", named, ("relu", "topk"))
    if architecture == "topk" and not (isinstance(k, int) and 0 < k <= config.get("d_sae", k)):
        raise ConfigError(f"{CONFIG} is of a top-k dictionary and must say `k`, from 1 to its features; got {k!r}.")
    normalisation = config.get("normalize_activations") or "none"
    if normalisation == "expected_average_only_in" and scale is not None:
        normalisation = "none"
    elif normalisation == "expected_average_only_in":
        raise ConfigError(
            f"{CONFIG} says that inputs were scaled by an average which the file does not hold. Give that factor: "
            f"SAE.load(folder, scale=…)."
        )
    elif normalisation not in NORMALISATIONS:
        raise refused("the normalisation", normalisation, NORMALISATIONS)
    shape = config.get("reshape_activations", "none")
    if shape not in ("none", "hook_z"):  # heads are laid side by side in any case
        raise refused("the reshaping", shape, ("none", "hook_z"))
    return {
        "architecture": architecture,
        "k": k if architecture == "topk" else None,
        "subtract_bias": bool(config.get("apply_b_dec_to_input", True)),
        "normalisation": normalisation,
        "by_norm": bool(config.get("rescale_acts_by_decoder_norm", False)) and architecture == "topk",
    }


def _named(tensors: dict[str, Tensor], given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by our names, their shapes checked."""
    names = {"W_enc": "encoder", "b_enc": "encoder_bias", "W_dec": "decoder", "b_dec": "decoder_bias"}
    wanted = {**names, **({"threshold": "threshold"} if given["architecture"] == "jumprelu" else {})}
    tensors = dict(tensors)
    if config.get("finetuning_scaling_factor"):
        wanted["scaling_factor"] = "scaling"
    elif "scaling_factor" in tensors and bool((tensors["scaling_factor"] == 1).all()):
        del tensors["scaling_factor"]  # SAELens writes ones where it is not used
    if set(tensors) != set(wanted):
        raise CheckpointError(
            f"{WEIGHTS} of a {given['architecture']} dictionary holds {', '.join(sorted(wanted))}; this one has "
            f"{', '.join(sorted(tensors))}."
        )
    if tensors["W_enc"].dim() != 2:
        raise CheckpointError(f"W_enc is [in features]; it has the shape {list(tensors['W_enc'].shape)}.")
    width, count = tensors["W_enc"].shape
    shapes = {"W_enc": (width, count), "W_dec": (count, width), "b_dec": (width,)}
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes.get(name, (count,)):
            raise CheckpointError(f"{name} must have the shape {shapes.get(name, (count,))}, not {list(tensor.shape)}.")
    told = {config.get("d_in", width), width}, {config.get("d_sae", count), count}
    if any(len(pair) > 1 for pair in told):
        raise CheckpointError(f"{CONFIG} says d_in and d_sae are {told}, the weights {width} and {count}.")
    return {ours: tensors[theirs] for theirs, ours in wanted.items()}


def feature_activations(
    model: Model, inputs: Inputs, dictionary: SAE, value: str, where: TokenSelection | None = None, row: int = 0
) -> Tensor:
    """Activations [rows features] of a value in one forward: of all its rows, or of those of some tokens."""
    site = Site.one(model, value)
    positions = None if where is None else select_tokens(model, inputs, where, row).positions

    def encoded(found: Tensor) -> Tensor:
        matrix = site.matrix(found)
        at = slice(None) if positions is None else site.rows(found, inputs, positions, row)
        return dictionary.encode(matrix[at])

    return model.run(inputs, read=[site.address], reduce={site.address: encoded})[site.address]


def feature_edit(
    model: Model,
    inputs: Inputs,
    dictionary: SAE,
    value: str,
    change: Change,
    where: TokenSelection | None = None,
    row: int = 0,
) -> dict[str, Callable[[Tensor], Tensor]]:
    """An edit for `run`, `trace` and `generate` that changes features of a value at some tokens, or at all.

    Everything else of the value stays, what the dictionary does not reconstruct included.
    """
    site = Site.one(model, value)
    positions = None if where is None else select_tokens(model, inputs, where, row).positions
    return {site.address: site.change(inputs, positions, lambda rows: dictionary.edited(rows, change), row)}
