"""Module trees and checkpoint folders made of names and shapes alone, for tests of what loads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.weight_names import layout

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
FILES = [f"{family}{form}" for family in FAMILIES for form in ("", ".v5")]
"""Each family as it is published, and as transformers 5 saves the same model."""


def raw_config(name: str) -> dict[str, Any]:
    """The mapping of a tiny model's `config.json`, a fresh copy."""
    return json.loads((CONFIGS / f"{name}.json").read_text())


def names_of(name: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a tiny model's file: published name -> shape."""
    return {key: tuple(shape) for key, shape in json.loads((CONFIGS / "names.json").read_text())[name].items()}


def tensors_of(name: str, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors for every name of a tiny model's file."""
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) for key, shape in names_of(name).items()}


def our_shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Our names and shapes for a tiny model of a family, read off the file of transformers 5 and the fused layouts."""
    shapes = names_of(f"{family}.v5") if family != "qwen3_5_moe" else names_of(family)
    return {ours: shapes[source.names[0][0]] for ours, source in layout(shapes).sources.items()}


def module_of(shapes: Mapping[str, tuple[int, ...]], *, tied: bool = False, device: str = "meta") -> nn.Module:
    """A tree of plain modules with parameters of these names and shapes; `tied` adds a head that is the embedding."""
    root = nn.Module()
    for name, shape in shapes.items():
        *path, leaf = name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, device=device)))
    if tied:
        head = nn.Module()
        head.register_parameter("weight", root.get_parameter("model.language_model.embed_tokens.weight"))
        root.add_module("lm_head", head)
    return root


def write_folder(folder: Path, config: Mapping[str, Any], shards: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """A checkpoint folder with these files; more than one get an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for file, tensors in shards.items():
        save_file(dict(tensors), folder / file, {"format": "pt"})
    if len(shards) > 1:
        where = {name: file for file, tensors in shards.items() for name in tensors}
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
