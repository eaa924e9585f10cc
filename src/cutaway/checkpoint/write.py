"""A module tree saved as a checkpoint folder, in the names and layout that its family is published with.

It writes beside the old files and then swaps them in, because the tree may be the old file, mapped. It does not know
tokenizers or templates: a folder that is to be asked questions needs those copied beside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.files import INDEX, SINGLE
from cutaway.checkpoint.parameters import EMBEDDING_WEIGHT, HEAD_WEIGHT
from cutaway.checkpoint.weight_names import published_name
from cutaway.errors import CheckpointError


def save_weights(
    module: nn.Module, folder: str | Path, config: Mapping[str, Any], *, shard_bytes: int | None = None
) -> list[Path]:
    """Writes `config.json` and the weights of `module`, which has our names, into `folder`; returns the weight files.

    `config` is the mapping that goes into `config.json`. With `shard_bytes` no file holds more than that many bytes of
    weights (a larger tensor has one to itself), and an index is written. A tied head is left out, as published. Raises
    `ConfigError` for a config that is none of ours and `CheckpointError` for a module without weights.
    """
    family = read_config(config).family
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = _published(family, module.state_dict(keep_vars=True))
    groups = _groups(named, shard_bytes)
    count = len(groups)
    files = [SINGLE] if shard_bytes is None else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for file, names in zip(files, groups, strict=True):
        save_file({name: named[name].detach().contiguous() for name in names}, folder / f"{file}.new", {"format": "pt"})
    for file in files:
        os.replace(folder / f"{file}.new", folder / file)
    if shard_bytes is not None:
        where = {name: file for file, names in zip(files, groups, strict=True) for name in names}
        size = sum(tensor.numel() * tensor.element_size() for tensor in named.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))})
    _write_json(folder / "config.json", config)
    return [folder / file for file in files]


def _published(family: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under their published names, mixtures turned as published, a tied head left out."""
    named: dict[str, Tensor] = {}
    for ours, tensor in state.items():
        if tensor.is_meta:
            raise CheckpointError(f"{ours} is on meta and has no numbers to save: load or draw weights first.")
        if ours == HEAD_WEIGHT and EMBEDDING_WEIGHT in state and tensor is state[EMBEDDING_WEIGHT]:
            continue
        if FAMILIES[family].experts_transposed and ours.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensor = tensor.transpose(-1, -2)
        named[published_name(family, ours)] = tensor
    return named


def _groups(named: Mapping[str, Tensor], shard_bytes: int | None) -> list[list[str]]:
    if shard_bytes is None:
        return [sorted(named)]
    groups: list[list[str]] = [[]]
    filled = 0
    for name in sorted(named):
        size = named[name].numel() * named[name].element_size()
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
