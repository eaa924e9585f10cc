"""Sparse autoencoders (SAEs) in SAELens' file format: a value in terms of features, to read and to edit.

A folder has `cfg.json` and `sae_weights.safetensors`. What a config asks for is honoured or refused: an unknown
architecture, activation, normalisation or tensor is an error that names it. An edit of a feature adds to the value the
difference that the feature makes, so what the SAE does not reconstruct stays as it is. Training is not done here.

Sources: Bricken et al. 2023 and Cunningham et al. 2023 (the method); Rajamanoharan et al. 2024 (JumpReLU); Gao et al.
2024 (top-k); Bloom et al. 2024 (SAELens' format).
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
from cutaway.analysis.common.arguments import check_model, describe, sample_index
from cutaway.analysis.common.token_selection import TokenSelection, select_tokens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, write_tensors
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.storage import read_json, replacing, writing

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
ARCHITECTURES = ("standard", "jumprelu", "topk")
NORMALISATIONS = ("none", "constant_norm_rescale", "layer_norm")
EPSILON = 1e-5
"""What SAELens adds to the standard deviation in `layer_norm`."""

FeatureChange = Mapping[int, "float | Callable[[Tensor], Tensor]"]
"""By feature: its new activation, or a function from its activations [entries] to the new ones."""


@dataclass(frozen=True, eq=False)
class SAE:
    """A sparse autoencoder, computed in float32. Fields are named as in SAELens.

    - `W_enc` [d_in d_sae], `b_enc` [d_sae], `W_dec` [d_sae d_in], `b_dec` [d_in].
    - `architecture`: one of `ARCHITECTURES`. `k`: of top-k. `threshold` [d_sae]: of JumpReLU.
    - `scaling_factor` [d_sae]: multiplies the activations before the decoder, or None.
    - `apply_b_dec_to_input`: whether `b_dec` is subtracted from the input. `normalize_activations`: of the input.
    - `rescale_acts_by_decoder_norm`: whether top-k ranks activations times the lengths of their decoder rows.
    - `config`: the content of `cfg.json`.
    """

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    architecture: str = "standard"
    k: int | None = None
    threshold: Tensor | None = None
    scaling_factor: Tensor | None = None
    apply_b_dec_to_input: bool = True
    normalize_activations: str = "none"
    rescale_acts_by_decoder_norm: bool = False
    config: Mapping[str, Any] | None = None

    @property
    def d_in(self) -> int:
        """The width of the value that it reads."""
        return self.W_enc.shape[0]

    @property
    def d_sae(self) -> int:
        """How many features it has."""
        return self.W_enc.shape[1]

    @property
    def digest(self) -> str:
        """A hash of everything that the computation depends on."""
        options = (
            self.architecture, self.k, self.normalize_activations, self.apply_b_dec_to_input,
            self.rescale_acts_by_decoder_norm,
        )  # fmt: skip
        result = sha256(repr(options).encode())
        for tensor in (self.W_enc, self.b_enc, self.W_dec, self.b_dec, self.threshold, self.scaling_factor):
            result.update(b"" if tensor is None else tensor.cpu().numpy().tobytes())
        return result.hexdigest()[:16]

    @classmethod
    def load(cls, folder: str | Path, *, device: str | torch.device = "cpu", scale: float | None = None) -> SAE:
        """Return the SAE in a folder. Raises `ConfigError` or `CheckpointError` for what is not honoured.

        `scale` is the factor by which inputs were multiplied in training, for a config that asks for
        ``"expected_average_only_in"`` and does not hold it.
        """
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            raise CheckpointError(f"{folder} has no {CONFIG}. Name a folder that SAELens or `SAE.save` wrote.")
        config = read_json(folder / CONFIG, ConfigError)
        tensors, _ = load_tensors(folder / WEIGHTS)
        options = _parse_config(config, scale)
        weights = {n: t.float().to(device) for n, t in _check_tensors(tensors, options, config).items()}
        if scale is not None:
            weights["W_enc"] = weights["W_enc"] * scale
            weights["W_dec"], weights["b_dec"] = weights["W_dec"] / scale, weights["b_dec"] / scale
        return cls(**weights, **options, config=config)

    def save(self, folder: str | Path) -> Path:
        """Write the SAE to a folder as SAELens does, both files or neither. Raises `InputError`."""
        folder = Path(folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        tensors = {"W_enc": self.W_enc, "b_enc": self.b_enc, "W_dec": self.W_dec, "b_dec": self.b_dec}
        optional = {"threshold": self.threshold, "scaling_factor": self.scaling_factor}
        tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
        config = {
            "architecture": self.architecture, "d_in": self.d_in, "d_sae": self.d_sae, "dtype": "float32",
            "apply_b_dec_to_input": self.apply_b_dec_to_input, "normalize_activations": self.normalize_activations,
            "finetuning_scaling_factor": self.scaling_factor is not None,
            "rescale_acts_by_decoder_norm": self.rescale_acts_by_decoder_norm,
            **({"k": self.k} if self.k is not None else {}),
        }  # fmt: skip
        with replacing(folder / WEIGHTS, folder / CONFIG) as (weights_part, config_part):
            write_tensors(weights_part, tensors, {})
            config_part.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        return folder

    def encode(self, x: Tensor) -> Tensor:
        """Return the activations [… d_sae] of a value's entries [… d_in]."""
        self._check_width(x)
        x = self._normalised(x)[0]
        before = (x - self.b_dec if self.apply_b_dec_to_input else x) @ self.W_enc + self.b_enc
        before = before * (self.W_dec.norm(dim=-1) if self.rescale_acts_by_decoder_norm else 1.0)
        if self.architecture == "topk":
            assert self.k is not None  # `_parse_config` has refused a config without
            kept = torch.topk(before, self.k, dim=-1)
            return torch.zeros_like(before).scatter(-1, kept.indices, kept.values.relu())
        if self.threshold is not None:
            return before.relu() * (before > self.threshold)
        return before.relu()

    def decode(self, activations: Tensor, like: Tensor) -> Tensor:
        """Return the entries [… d_in] of activations [… d_sae], on the scale of the entries `like` they came from."""
        _, factor, shift = self._normalised(like)
        return (self._decoded(activations) + self.b_dec) * factor + shift

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return entries [… d_in] encoded and decoded, float32."""
        return self.decode(self.encode(x), x)

    def edited(self, x: Tensor, change: FeatureChange) -> Tensor:
        """Return entries [… d_in] with features changed and the reconstruction error kept, in the dtype of `x`.

        It is the value plus the difference between the changed and the plain reconstruction, so that changing no
        feature gives exactly the same value.
        """
        before = self.encode(x)
        after = before.clone()
        for feature, new in change.items():
            self.check_features([feature])
            after[..., feature] = new(before[..., feature]) if callable(new) else float(new)
        difference = self._decoded(after - before) * self._normalised(x)[1]
        return (x.float() + difference).to(x.dtype)

    def check_features(self, features: Any) -> None:
        """Raises `InputError` unless `features` is a list of numbers of this SAE's features."""
        for feature in features:
            if isinstance(feature, bool) or not isinstance(feature, int) or not 0 <= feature < self.d_sae:
                raise InputError(f"A feature must be a number from 0 to {self.d_sae - 1}; got {describe(feature)}.")

    def _decoded(self, activations: Tensor) -> Tensor:
        if self.scaling_factor is not None:
            activations = activations * self.scaling_factor
        if self.rescale_acts_by_decoder_norm:
            activations = activations / self.W_dec.norm(dim=-1)
        return activations @ self.W_dec

    def _normalised(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input as it was in training, and the factor and shift that undo it."""
        x = x.float()
        one, zero = x.new_ones(()), x.new_zeros(())
        if self.normalize_activations == "constant_norm_rescale":
            factor = x.norm(dim=-1, keepdim=True) / self.d_in**0.5
            return x / factor, factor, zero
        if self.normalize_activations == "layer_norm":
            mean = x.mean(-1, keepdim=True)
            deviation = (x - mean).std(-1, keepdim=True)
            return (x - mean) / (deviation + EPSILON), deviation, mean
        return x, one, zero

    def _check_width(self, x: Any) -> None:
        if not isinstance(x, Tensor) or x.shape[-1:] != (self.d_in,):
            got = list(x.shape) if isinstance(x, Tensor) else describe(x)
            raise InputError(
                f"This SAE reads tensors [… {self.d_in}]; got {got}. Choose the value that it was trained "
                f"on, or one of that width."
            )


def _parse_config(config: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """The options of the computation in a config. Raises `ConfigError` for anything that is not honoured."""
    architecture = config.get("architecture", "standard")
    activation = config.get("activation_fn_str", config.get("activation_fn", "relu"))
    k = config.get("k", (config.get("activation_fn_kwargs") or {}).get("k"))
    if architecture == "standard" and activation == "topk":  # SAELens before 6 wrote top-k so
        architecture, activation = "topk", "relu"
    _check_known("the architecture", architecture, ARCHITECTURES)
    _check_known("the activation", activation, ("relu", "topk"))
    if architecture == "topk" and not (isinstance(k, int) and 0 < k <= config.get("d_sae", k)):
        raise ConfigError(f"{CONFIG} of a top-k SAE must have `k`, from 1 to the number of features; got {k!r}.")
    normalisation = config.get("normalize_activations") or "none"
    if normalisation == "expected_average_only_in":
        if scale is None:
            raise ConfigError(
                f"{CONFIG} says that inputs were scaled by an average which the file does not hold. Give that factor: "
                f"SAE.load(folder, scale=…)."
            )
        normalisation = "none"
    _check_known("the normalisation", normalisation, NORMALISATIONS)
    # heads are laid side by side in any case, so both are honoured
    _check_known("the reshaping", config.get("reshape_activations", "none"), ("none", "hook_z"))
    return {
        "architecture": architecture,
        "k": k if architecture == "topk" else None,
        "apply_b_dec_to_input": bool(config.get("apply_b_dec_to_input", True)),
        "normalize_activations": normalisation,
        "rescale_acts_by_decoder_norm": bool(config.get("rescale_acts_by_decoder_norm", False))
        and architecture == "topk",
    }


def _check_known(what: str, got: Any, known: tuple[str, ...]) -> None:
    if got not in known:
        raise ConfigError(f"{CONFIG} asks for {what} {got!r}, which is unknown; known are {', '.join(known)}.")


def _check_tensors(
    tensors: Mapping[str, Tensor], options: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The tensors of a file, complete and of the right shapes. Raises `CheckpointError` otherwise."""
    tensors = dict(tensors)
    wanted = {"W_enc", "b_enc", "W_dec", "b_dec"} | ({"threshold"} if options["architecture"] == "jumprelu" else set())
    if config.get("finetuning_scaling_factor"):
        wanted.add("scaling_factor")
    elif "scaling_factor" in tensors and bool((tensors["scaling_factor"] == 1).all()):
        del tensors["scaling_factor"]  # SAELens writes ones where it is not used
    if set(tensors) != wanted:
        raise CheckpointError(
            f"{WEIGHTS} of a {options['architecture']} SAE must hold {', '.join(sorted(wanted))}; got "
            f"{', '.join(sorted(tensors))}."
        )
    if tensors["W_enc"].dim() != 2:
        raise CheckpointError(f"W_enc must be [d_in d_sae]; got the shape {list(tensors['W_enc'].shape)}.")
    d_in, d_sae = tensors["W_enc"].shape
    shapes = {"W_enc": (d_in, d_sae), "W_dec": (d_sae, d_in), "b_dec": (d_in,)}
    for name, tensor in tensors.items():
        shape = shapes.get(name, (d_sae,))
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{name} must have the shape {shape}, as W_enc says; got {tuple(tensor.shape)}.")
    sizes = config.get("d_in", d_in), config.get("d_sae", d_sae)
    if sizes != (d_in, d_sae):
        raise CheckpointError(f"{CONFIG} says d_in and d_sae are {sizes}; the weights have {(d_in, d_sae)}.")
    return tensors


def check_sae(sae: Any) -> None:
    """Raises `InputError` unless `sae` is an `SAE`."""
    if not isinstance(sae, SAE):
        raise InputError(f"`sae` must be an `SAE`, as `SAE.load(folder)` returns it; got {describe(sae)}.")


def feature_activations(
    model: Model,
    inputs: Inputs,
    sae: SAE,
    value: str,
    where: TokenSelection | None = None,
    *,
    sample: int | None = None,
) -> Tensor:
    """Return a value's activations [entries d_sae] in one forward: at selected tokens, by default at all.

    `value` is an address with an entry for each token or patch. Raises `InputError` for wrong arguments.
    """
    check_model(model, "Feature activations")
    sample = sample_index(inputs, sample if where is not None or sample is not None else 0)
    check_sae(sae)
    site = Site.one(model, value)
    positions = None if where is None else select_tokens(model, inputs, where, sample).positions

    def encode(result: Tensor) -> Tensor:
        matrix = site.matrix(result)
        at = slice(None) if positions is None else site.rows(result, inputs, positions, sample)
        return sae.encode(matrix[at])

    return model.run(inputs, read=[site.address], reduce={site.address: encode})[site.address]


def feature_edit(
    model: Model,
    inputs: Inputs,
    sae: SAE,
    value: str,
    change: FeatureChange,
    where: TokenSelection | None = None,
    *,
    sample: int | None = None,
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return an edit for `run`, `trace` and `generate` that changes features of a value at selected tokens, or at all.

    - `change`: by feature its new activation, or a function of its activations.
    - `where`: a token selection of the prompt; in generation later steps are left as they are. None edits every token
      of every step.

    Everything else of the value stays, what the SAE does not reconstruct included. Raises `InputError` for wrong
    arguments.
    """
    check_model(model, "A feature edit")
    sample = sample_index(inputs, sample if where is not None or sample is not None else 0)
    check_sae(sae)
    if not isinstance(change, Mapping):
        raise InputError(f"`change` must map features to activations, such as {{3: 0.0}}; got {describe(change)}.")
    sae.check_features(change)
    for new in change.values():
        if not callable(new) and (isinstance(new, bool) or not isinstance(new, int | float)):
            raise InputError(f"A feature's new activation must be a number or a function; got {describe(new)}.")
    site = Site.one(model, value)
    positions = None if where is None else select_tokens(model, inputs, where, sample).positions
    edit = site.change(inputs, positions, lambda entries: sae.edited(entries, change), sample)
    return {site.address: edit if positions is None else _on_prompt(site, inputs, edit)}


def _on_prompt(site: Site, inputs: Inputs, edit: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The edit on the whole prompt alone; a later step's one token is left as it is."""
    length = inputs.input_ids.shape[1]

    def on_prompt(value: Tensor) -> Tensor:
        if site.kind(value, inputs) != "seq" or value.shape[site.axis] == length:
            return edit(value)
        if value.shape[site.axis] == 1:
            return value
        raise InputError(
            "Positions of the prompt cannot be edited while it is read in pieces: leave out `prefill_chunk`."
        )

    return on_prompt
