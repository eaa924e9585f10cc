"""What a model consists of and what it weighs, counted on a tree that holds no weights.

Only the config is read, so a model of any size takes the same time. It does not know files of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.files import BUNDLED, locate
from cutaway.config import Config
from cutaway.model.build import build

DTYPES = ("float32", "bfloat16")
"""The dtypes that memory is computed for."""

STATE_BYTES = 4
"""The delta net's state is float32 whatever the weights are."""


@dataclass(frozen=True)
class ModelPart:
    """A part of the tree, or `count` that are alike: what it is called, its class, level, parameters of all together.

    A weight that two parts share counts for the first (a tied head has 0).
    """

    name: str
    kind: str
    level: int
    count: int
    parameters: int


@dataclass(frozen=True)
class Memory:
    """Bytes with weights and cache in `dtype`: all weights, the cache for one token, the state for one sequence."""

    dtype: str
    weights: int
    cache_per_token: int
    state_per_sequence: int


@dataclass(frozen=True)
class Inspection:
    """A model's name and family, its parameters (a tied weight counted once), config, sizes, parts and memory."""

    name: str
    family: str
    parameters: int
    config: Config
    sizes: dict[str, Any]
    parts: tuple[ModelPart, ...]
    memory: tuple[Memory, ...]


def inspect(name: str, *, depth: int = 4) -> Inspection:
    """The parts of a model down to `depth` levels (0: none), from its config alone.

    `name` is a bundled model, a folder, a published size or a hub id. Raises `ConfigError` or `CheckpointError`.
    """
    config = config_of(name)
    with torch.device("meta"):
        model = build(config)
    counts = {name: p.numel() for name, p in model.named_parameters()}
    return Inspection(
        name=name,
        family=config.family,
        parameters=sum(counts.values()),
        config=config,
        sizes=facts(config),
        parts=tuple(parts(model, counts, depth)) if depth else (),
        memory=tuple(memory(config, sum(counts.values()), dtype) for dtype in DTYPES),
    )


def config_of(name: str) -> Config:
    """The config of a bundled model, a folder, a published size or a hub id; no weights are fetched."""
    if name not in BUNDLED and not Path(name).expanduser().exists() and sizes.known(name):
        return read_config(sizes.published(name))
    return read_config(locate(name, weights=False))


def parts(
    module: nn.Module, counts: Mapping[str, int], depth: int, prefixes: tuple[str, ...] = ("",), level: int = 0
) -> Iterator[ModelPart]:
    """Yield the parts below the module at each of `prefixes`, `depth` levels deep; equal ones are one part."""
    for name, paths, child in alike(module):
        inside = tuple(f"{prefix}{path}." for prefix in prefixes for path in paths)
        own = sum(count for address, count in counts.items() if address.startswith(inside))
        yield ModelPart(name, type(child).__name__, level, len(inside), own)
        if depth > 1:
            yield from parts(child, counts, depth - 1, inside, level + 1)


def alike(module: nn.Module) -> list[tuple[str, list[str], nn.Module]]:
    """The parts of a module: name, paths, the part. The layers of a list stand for the list, equal ones together."""
    parts: list[tuple[str, list[str], nn.Module]] = []
    for name, child in module.named_children():
        if not isinstance(child, nn.ModuleList):
            parts.append((name, [name], child))
            continue
        groups: dict[Any, list[str]] = {}
        for index, layer in child.named_children():
            groups.setdefault(make(layer), []).append(index)
        for indexes in groups.values():
            paths = [f"{name}.{index}" for index in indexes]
            parts.append((f"{name} {ranges(indexes)}", paths, child[int(indexes[0])]))
    return parts


def make(layer: nn.Module) -> tuple[Any, ...]:
    """Return what two equal layers have in common: every part's name, class and shapes."""
    return tuple(
        (path, type(part), tuple(p.shape for p in part.parameters(recurse=False)))
        for path, part in layer.named_modules()
    )


def ranges(names: list[str]) -> str:
    """Names as people write them: ``0–27`` for indexes that follow each other, at most three stretches, else ``…``."""
    if len(names) == 1:
        return names[0]
    stretches: list[list[int]] = []
    for index in map(int, names):
        if stretches and index == stretches[-1][-1] + 1:
            stretches[-1].append(index)
        else:
            stretches.append([index])
    shown = [str(s[0]) if len(s) == 1 else f"{s[0]}–{s[-1]}" for s in stretches]
    return ", ".join(shown if len(shown) <= 3 else [*shown[:2], "…", shown[-1]])


def facts(config: Config) -> dict[str, Any]:
    """The sizes that people compare models by."""
    text, vision = config.text, config.vision
    sizes: dict[str, Any] = {
        "text layers": text.num_layers,
        "text width": text.hidden_size,
        "MLP width": text.intermediate_size,
        "heads, key-value heads, their width": f"{text.num_heads}, {text.num_kv_heads}, {text.head_dim}",
        "vocabulary": text.vocab_size,
        "positions": text.max_positions,
        "vision layers": vision.num_layers,
        "vision width": vision.hidden_size,
        "patch, merged": f"{vision.patch_size} px, {vision.spatial_merge_size} × {vision.spatial_merge_size}",
        "head tied to the embeddings": "yes" if config.tie_word_embeddings else "no",
    }
    if text.experts:
        sizes["experts, experts per token, their width"] = (
            f"{text.experts.count}, {text.experts.per_token}, {text.experts.intermediate_size}"
        )
    if text.linear:
        sizes["layers with a delta net"] = text.layer_types.count("linear_attention")
    if vision.deepstack_indexes:
        sizes["DeepStack after vision layers"] = ", ".join(map(str, vision.deepstack_indexes))
    if vision.window_size:
        sizes["vision window"] = (
            f"{vision.window_size} px but for layers {', '.join(map(str, vision.full_attention_indexes))}"
        )
    return sizes


def memory(config: Config, count: int, dtype: str) -> Memory:
    """Bytes of `count` weights, of the cache for one token, and of the delta nets' states for one sequence."""
    text, width = config.text, torch.finfo(getattr(torch, dtype)).bits // 8
    cache = 2 * text.layer_types.count("full_attention") * text.num_kv_heads * text.head_dim * width
    state = 0
    if text.linear is not None:
        recurrent = text.linear.value_heads * text.linear.key_head_dim * text.linear.value_head_dim
        channels = (
            2 * text.linear.key_heads * text.linear.key_head_dim + text.linear.value_heads * text.linear.value_head_dim
        )
        state = recurrent * STATE_BYTES + channels * (text.linear.conv_kernel - 1) * width
    return Memory(dtype, count * width, cache, state * text.layer_types.count("linear_attention"))
