"""Files: where a checkpoint is, in one file or several, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub
from safetensors.torch import save_file

from cutaway.checkpoint import files
from cutaway.checkpoint.files import locate, open_tensors
from cutaway.errors import CheckpointError
from tests.checkpoint.trees import write_folder

TWO = {
    "a.safetensors": {"x": torch.arange(6.0).view(2, 3)},
    "b.safetensors": {"y": torch.ones(2, dtype=torch.bfloat16)},
}


def test_a_folder_is_itself(tmp_path) -> None:
    assert locate(tmp_path) == tmp_path
    assert locate(str(tmp_path)) == tmp_path


def test_the_bundled_model_is_in_the_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(files.BUNDLED, "nano", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="reinstall"):
        locate("nano")
    (tmp_path / "config.json").write_text("{}")
    assert locate("nano") == tmp_path


@pytest.mark.parametrize("name", ["no/such/folder", "nowhere", "../x"])
def test_what_is_neither_folder_nor_hub_id(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="bundled model: nano"):
        locate(name)


def test_a_size_is_answered_with_a_hub_id(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="Qwen/Qwen3-VL-2B-Instruct"):
        locate("Qwen3-VL-2B")


def test_a_file_is_no_folder(tmp_path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="give the folder"):
        locate(tmp_path / "model.safetensors")


def test_a_hub_id_is_fetched_once_with_what_is_wanted(tmp_path, monkeypatch) -> None:
    request = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: request.append((a, k)) or str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert locate("Qwen/Qwen3-VL-2B-Instruct", "main") == tmp_path
    (name,), options = request[0]
    assert (name, options["revision"]) == ("Qwen/Qwen3-VL-2B-Instruct", "main")
    assert set(options["allow_patterns"]) == {"*.json", "*.jinja", "*.txt", "*.safetensors"}
    locate("Qwen/Qwen3-VL-2B-Instruct", weights=False)
    assert "*.safetensors" not in request[1][1]["allow_patterns"]


def _http(kind: type[Exception]) -> Exception:
    """An error of the hub's, as after an answer from its server."""
    answer = SimpleNamespace(headers={}, status_code=403, request=None)
    return kind("said no", response=answer)


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (lambda: hub.LocalEntryNotFoundError("x"), "cannot be reached"),
        (lambda: hub.OfflineModeIsEnabled("x"), "cannot be reached"),
        (lambda: _http(hub.GatedRepoError), "is gated"),
        (lambda: _http(hub.RepositoryNotFoundError), "no hub repository"),
        (lambda: _http(hub.RevisionNotFoundError), "no revision 'v9'"),
        (lambda: OSError("disk full"), "disk full"),
    ],
)
def test_what_the_hub_refuses_is_said_in_our_words(raised, says, tmp_path, monkeypatch) -> None:
    def refuse(*_args, **_options):
        raise raised()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=says):
        locate("someone/something", "v9")


def test_one_file_and_several_read_alike(tmp_path) -> None:
    one = write_folder(tmp_path / "one", {}, {"model.safetensors": TWO["a.safetensors"] | TWO["b.safetensors"]})
    two = write_folder(tmp_path / "two", {}, TWO)
    other_name = write_folder(tmp_path / "other", {}, {"weights.safetensors": TWO["a.safetensors"]})
    for folder in (one, two):
        with open_tensors(folder) as tensors:
            assert set(tensors) == {"x", "y"}
            assert (tensors.shape("x"), tensors.dtype("x"), tensors.dtype("y")) == ((2, 3), "F32", "BF16")
            assert torch.equal(tensors["x"], TWO["a.safetensors"]["x"])
            assert torch.equal(tensors["y"], TWO["b.safetensors"]["y"])
    with open_tensors(other_name) as tensors:
        assert list(tensors) == ["x"]


def test_tensors_outlive_the_files_they_came_from(tmp_path) -> None:
    folder = write_folder(tmp_path, {}, TWO)
    with open_tensors(folder) as tensors:
        kept = tensors["x"]
        _ = tensors["y"]
    assert torch.equal(kept, TWO["a.safetensors"]["x"])


def test_a_missing_shard(tmp_path) -> None:
    folder = write_folder(tmp_path, {}, TWO)
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing, and the index lists it"):
        open_tensors(folder)


def test_an_index_that_belongs_to_other_files(tmp_path) -> None:
    folder = write_folder(tmp_path, {}, TWO)
    save_file({"z": torch.ones(1)}, folder / "b.safetensors")
    with pytest.raises(CheckpointError, match="lacks 1 of the tensors that the index lists there, such as y"):
        open_tensors(folder)


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"x": "../outside.safetensors"}}', '{"weight_map": 3}'])
def test_an_index_that_is_none(index, tmp_path) -> None:
    folder = write_folder(tmp_path, {}, TWO)
    (folder / files.INDEX).write_text(index)
    with pytest.raises(CheckpointError, match="index"):
        open_tensors(folder)


def test_several_files_without_an_index(tmp_path) -> None:
    folder = write_folder(tmp_path, {}, TWO)
    (folder / files.INDEX).unlink()
    with pytest.raises(CheckpointError, match="2 safetensors files and no"):
        open_tensors(folder)


DAMAGED = {
    "empty": (b"", "it is empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git-lfs pointer"),
    "pickle": (b"PK\x03\x04" + bytes(100), "pickle of PyTorch"),
    "page": (b"<!DOCTYPE html><html>" + bytes(100), "web page"),
    "gguf": (b"GGUF" + bytes(100), "gguf file"),
    "noise": (b"\xff" * 100, "not a whole safetensors file"),
    "header of nonsense": (struct.pack("<Q", 2) + b"{]", "not a whole safetensors file"),
}


@pytest.mark.parametrize(("content", "says"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_and_mislabelled_files(content, says, tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        open_tensors(tmp_path)


def test_a_truncated_file(tmp_path) -> None:
    folder = write_folder(tmp_path, {}, {"model.safetensors": {"x": torch.ones(1000)}})
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        open_tensors(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.gguf", "tf_model.h5"])
def test_weights_in_other_formats_are_refused_with_what_to_do(file, tmp_path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=r"only safetensors files are read.*save_pretrained"):
        open_tensors(tmp_path)


def test_no_weights_at_all(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="has no weights"):
        open_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="no folder"):
        open_tensors(tmp_path / "nowhere")
