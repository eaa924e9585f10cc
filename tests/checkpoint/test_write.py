"""Saving: published names and layouts, shards, a tied head left out, and the same tensors when read back."""

from __future__ import annotations

import json

import pytest
import torch

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.files import open_tensors
from cutaway.checkpoint.weights import load_weights
from cutaway.checkpoint.write import save_weights
from cutaway.errors import CheckpointError, ConfigError
from tests.checkpoint.trees import module_of, names_of, our_shapes, raw_config, tensors_of, write_folder


def filled(family: str, tmp_path):
    """A tree with a tiny model's tensors in it, and their config."""
    config = read_config(raw_config(family))
    folder = write_folder(tmp_path / "from", raw_config(family), {"model.safetensors": tensors_of(family)})
    tree = module_of(our_shapes(family), tied=config.tie_word_embeddings)
    load_weights(tree, folder, config, dtype=torch.float32, device="cpu")
    return tree, config


@pytest.mark.parametrize("shard_bytes", [None, 50_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_tree_is_the_published_file(family, shard_bytes, tmp_path) -> None:
    tree, config = filled(family, tmp_path)
    files = save_weights(tree, tmp_path / "to", raw_config(family), shard_bytes=shard_bytes)
    assert (len(files) > 1) == (shard_bytes is not None)
    with open_tensors(tmp_path / "to") as tensors:
        resident = {name: tensors.shape(name) for name in tensors}
        assert resident == {name: shape for name, shape in names_of(family).items() if not name.startswith("mtp.")}
        for name, tensor in tensors_of(family).items():
            assert name.startswith("mtp.") or torch.equal(tensors[name], tensor), name
    assert read_config(tmp_path / "to") == config


def test_no_shard_is_larger_than_asked(tmp_path) -> None:
    tree, _ = filled("qwen3_vl", tmp_path)
    most = 160_000  # the patch embedding alone takes 147,456
    files = save_weights(tree, tmp_path / "to", raw_config("qwen3_vl"), shard_bytes=most)
    with open_tensors(tmp_path / "to") as tensors:
        for file in files:
            resident = [name for name in tensors if tensors.shard(name) == file.name]
            assert 0 < sum(tensors[name].numel() * 4 for name in resident) <= most
    index = json.loads((tmp_path / "to" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * 4 for p in set(tree.parameters()))


def test_saving_over_the_file_that_the_tree_is_mapped_from(tmp_path) -> None:
    tree, config = filled("qwen3_vl", tmp_path)
    before = {name: tensor.clone() for name, tensor in tree.state_dict().items()}
    save_weights(tree, tmp_path / "from", raw_config("qwen3_vl"))
    again = module_of(our_shapes("qwen3_vl"), tied=True)
    load_weights(again, tmp_path / "from", config, dtype=torch.float32, device="cpu")
    for name, tensor in before.items():
        assert torch.equal(tree.state_dict()[name], tensor)
        assert torch.equal(again.state_dict()[name], tensor)
    assert not list((tmp_path / "from").glob("*.new"))


def test_a_tree_without_weights_and_a_config_of_another_model(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="on meta"):
        save_weights(module_of(our_shapes("qwen3_vl")), tmp_path, raw_config("qwen3_vl"))
    with pytest.raises(ConfigError, match="model_type"):
        save_weights(module_of(our_shapes("qwen3_vl")), tmp_path, {"model_type": "llama"})
