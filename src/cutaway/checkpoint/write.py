"""Save a module tree as a checkpoint folder, in the names and layout that its family is published with.

Files are written beside the old ones and then take their places together, since the tree may be the old file, mapped.
Tokenizers and templates are not written: copy them beside for a folder that is to be asked questions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.files import INDEX, SINGLE
from cutaway.checkpoint.parameters import EMBEDDING_WEIGHT, HEAD_WEIGHT
from cutaway.checkpoint.tensor_file import write_tensors
from cutaway.checkpoint.weight_names import published_name
from cutaway.errors import CheckpointError
from cutaway.storage import replacing, writing


def save_weights(
    module: nn.Module, folder: str | Path, config: Mapping[str, Any], *, shard_bytes: int | None = None
) -> list[Path]:
    """Writes `config.json` and the weights of `module`, which has our names, into `folder`; returns the weight files.

    `config` is the mapping that goes into `config.json`. With `shard_bytes` no file holds more than that many bytes of
    weights (a larger tensor has one to itself), and an index is written. A tied head is left out, as published. Raises
    `ConfigError` for a config that is none of ours, `CheckpointError` for a module without weights, `InputError` for a
    folder that cannot be written.
    """
    family = read_config(config).family
    folder = Path(folder)
    named = _published(family, module.state_dict(keep_vars=True))
    groups = _groups(named, shard_bytes)
    count = len(groups)
    files = [SINGLE] if shard_bytes is None else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    texts = {"config.json": _json(config)}
    if shard_bytes is not None:
        where = {name: file for file, names in zip(files, groups, strict=True) for name in names}
        size = sum(tensor.numel() * tensor.element_size() for tensor in named.values())
        texts[INDEX] = _json({"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(*(folder / name for name in (*files, *texts))) as parts:
        for part, names in zip(parts, groups, strict=False):
            write_tensors(part, {name: named[name] for name in names}, {"format": "pt"})
        for part, text in zip(parts[count:], texts.values(), strict=True):
            part.write_text(text, encoding="utf-8")
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


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
