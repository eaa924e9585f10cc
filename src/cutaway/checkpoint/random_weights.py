"""Random weights in place of a checkpoint's, large enough that every part of the model changes what comes out.

The usual initialisation is so small that a wrong position or a missing image hardly moves a logit; here a layer's
output is about as large as its input. Numbers depend on the seed and the tree alone, not on device or dtype beyond its
rounding. It knows parameters by their names and shapes, and nothing of what a module computes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.checkpoint.parameters import EMBEDDING_WEIGHT, HEAD_WEIGHT, slots, tie
from cutaway.checkpoint.weight_names import TEXT
from cutaway.config import Config

GAIN = 0.7
"""Spread of a weight times the square root of its fan-in."""

_CHUNK = 2**18


def draw_weights(
    module: nn.Module, config: Config, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> None:
    """Fills `module`, which may be on `meta`, tensor by tensor, each directly in its dtype.

    Weights are uniform with a spread of `GAIN` over the root of their fan-in; norms lie around their centre, biases
    around zero. Tied heads stay tied.
    """
    generator = torch.Generator().manual_seed(seed)
    positions = slots(module)
    for name, position in positions.items():
        if name == HEAD_WEIGHT and config.tie_word_embeddings:
            continue
        spread, centre = _spread(name, position.shape), _centre(name, position.shape, config)
        position.put(_uniform(position.shape, spread, centre, dtype, generator).to(device))
    if config.tie_word_embeddings and HEAD_WEIGHT in positions:
        tie(positions)


def _spread(name: str, shape: tuple[int, ...]) -> float:
    """The standard deviation of a tensor's numbers."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("A_log", "dt_bias") or name.endswith("pos_embed.weight"):
        return 0.5
    if len(shape) < 2:  # norms and biases
        return 0.1
    if name == EMBEDDING_WEIGHT:  # looked up at one end, and often a head at the other: half way between the two
        return GAIN * shape[1] ** -0.25
    fan_in = shape[-1] if ".experts." in name else torch.Size(shape[1:]).numel()
    return GAIN * fan_in**-0.5


def _centre(name: str, shape: tuple[int, ...], config: Config) -> float:
    """One for the weight of a norm, but zero where it is stored as an offset from one."""
    module = name.split(".")[-2]
    if len(shape) != 1 or not name.endswith(".weight") or not ("norm" in module or module == "ln_q"):
        return 0.0
    offset = config.text.centred_norms and name.startswith(TEXT) and not name.endswith("linear_attn.norm.weight")
    return 0.0 if offset else 1.0


def _uniform(
    shape: tuple[int, ...], spread: float, centre: float, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Sixteen random bits a number, cut from 64-bit draws: four times as quick as a draw a number."""
    out = torch.empty(shape, dtype=dtype)
    flat, scale = out.view(-1), spread * 3**0.5 / 2**15
    draws = torch.empty(min(_CHUNK, flat.numel() + 3) // 4, dtype=torch.int64)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        draws.random_(-(2**63), None, generator=generator)
        part.copy_(draws.view(torch.int16)[: part.numel()])
        part.mul_(scale)
    return out.add_(centre) if centre else out
