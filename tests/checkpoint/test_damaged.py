"""Files that contradict each other, are something else, or have sizes beyond reason are refused at once, by name."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
from safetensors.torch import save_file

from cutaway import load
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.files import open_tensors
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, ConfigError, InputError
from tests.checkpoint.trees import raw_config, tensors_of, write_folder

NESTED = ["qwen2_vl.v5", "qwen2_5_vl.v5", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
CONTRADICTIONS = {
    "rope_scaling": {"type": "yarn", "factor": 4.0},
    "rope_parameters": {"rope_type": "linear", "factor": 2.0},
    "rope_theta": 123.0,
    "hidden_act": "gelu",
    "rms_norm_eps": 0.5,
    "num_attention_heads": 1,
    "num_key_value_heads": 3,
    "head_dim": 2,
    "use_sliding_window": True,
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
@pytest.mark.parametrize("name", NESTED)
def test_a_key_at_the_top_that_contradicts_the_section_is_refused(name: str, key: str) -> None:
    config = raw_config(name)
    config["text_config"].update(sliding_window=None)
    config[key] = CONTRADICTIONS[key]
    if key == "use_sliding_window":
        config.update(sliding_window=64, max_window_layers=0)
    with pytest.raises(ConfigError, match=f"{key}|sliding_window"):
        read_config(config)


@pytest.mark.parametrize("name", NESTED)
def test_keys_that_stand_in_both_places_and_agree_are_read(name: str) -> None:
    config = raw_config(name)
    plain = read_config(config)
    both = {**{k: v for k, v in config["text_config"].items() if k not in ("model_type", "dtype")}, **config}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(both) == plain


SIZES = {
    "text layers": ("text_config", "num_hidden_layers", 10**5),
    "more text layers": ("text_config", "num_hidden_layers", 10**9),
    "some text layers": ("text_config", "num_hidden_layers", 900),
    "vision layers": ("vision_config", "depth", 10**8),
    "some vision layers": ("vision_config", "depth", 900),
    "an MLP": ("text_config", "intermediate_size", 2**62),
    "a vocabulary": ("text_config", "vocab_size", 2**40),
    "heads": ("text_config", "num_attention_heads", 2**33),
    "a width": ("text_config", "hidden_size", 2**21),
    "positions": ("vision_config", "num_position_embeddings", 2**62),
    "a patch": ("vision_config", "patch_size", 2**31),
    "an endless integer": ("text_config", "hidden_size", 10**99),
}


@pytest.mark.parametrize(("section", "key", "size"), SIZES.values(), ids=SIZES)
def test_a_size_beyond_the_files_is_refused_within_two_seconds(tmp_path, section: str, key: str, size: int) -> None:
    config = copy.deepcopy(raw_config("qwen3_vl"))
    config[section][key] = size
    config["text_config"].pop("layer_types", None)
    folder = write_folder(tmp_path, config, {"model.safetensors": tensors_of("qwen3_vl")})
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=key):
        load(folder, device="cpu")
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_is_called_one_and_its_base_named(tmp_path, with_config: bool) -> None:
    save_file({"base_model.model.x.lora_A.weight": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Base"}))
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps(raw_config("qwen3_vl")))
    with pytest.raises(CheckpointError, match=r"LoRA adapter.*'Qwen/Base'.*PEFT"):
        load(tmp_path, device="cpu")


def test_adapter_weights_under_the_models_name_are_called_so(tmp_path) -> None:
    tensors = {"base_model.model.x.lora_A.weight": torch.zeros(1)}
    folder = write_folder(tmp_path, raw_config("qwen3_vl"), {"model.safetensors": tensors})
    with pytest.raises(CheckpointError, match="LoRA adapter"):
        load(folder, device="cpu")


def test_an_untied_config_without_a_head_is_told_to_fetch_it(tmp_path) -> None:
    config = raw_config("qwen3_vl") | {"tie_word_embeddings": False}
    tensors = {name: tensor for name, tensor in tensors_of("qwen3_vl").items() if name != "lm_head.weight"}
    with pytest.raises(CheckpointError, match=r"not tied to the embedding\. Fetch every shard") as error:
        load(write_folder(tmp_path, config, {"model.safetensors": tensors}), device="cpu")
    assert '"tie_word_embeddings": true' not in str(error.value)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "qwen3_5"])
def test_a_text_model_without_a_vision_section_is_loaded_as_one(tmp_path, family: str) -> None:
    config = {key: value for key, value in raw_config(family).items() if key != "vision_config"}
    tensors = {name: tensor for name, tensor in tensors_of(family).items() if "visual" not in name}
    folder = write_folder(tmp_path, config, {"model.safetensors": tensors})
    with pytest.raises(ConfigError, match='task="text-generation"'):
        load(folder, device="cpu")
    assert load(folder, device="cpu", task="text-generation").num_layers > 0


def test_weights_stored_wider_than_the_rest_are_noted(tmp_path) -> None:
    config = raw_config("qwen3_5")
    config["text_config"]["dtype"] = "bfloat16"
    tensors = tensors_of("qwen3_5")
    kept = {name for name in tensors if name.endswith(("A_log", "linear_attn.norm.weight"))}
    mixed = {name: tensor if name in kept else tensor.bfloat16() for name, tensor in tensors.items()}
    folder = write_folder(tmp_path, config, {"model.safetensors": mixed})
    assert any("float32 and were rounded to bfloat16" in note for note in load(folder, device="cpu").report.notes)
    assert load(folder, device="cpu", dtype="float32").report.notes == ()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/proc/kmsg", "folder"])
def test_only_regular_files_are_opened(tmp_path, name: str, kind: str) -> None:
    folder = write_folder(tmp_path, raw_config("qwen3_vl"), {"model.safetensors": tensors_of("qwen3_vl")})
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(kind)
    with pytest.raises(CheckpointError, match="regular files"):
        load(folder, device="cpu")


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


HOSTILE = {
    "empty": b"",
    "a length alone": b"\xff" * 8,
    "a length beyond the file": (2**62).to_bytes(8, "little") + b"{}",
    "no JSON": header(b"hello"),
    "nested": header(b'{"a":' * 50_000),
    "offsets beyond the file": header(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
    "offsets the wrong way": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}') + bytes(4),
    "a shape that overflows": header(b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    "a negative shape": header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}'),
    "an unknown dtype": header(b'{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}}') + bytes(4),
    "overlapping tensors": header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    )
    + bytes(4),
    "a hole": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}') + bytes(12),
    "bytes behind the last": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}') + bytes(9),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_an_error_that_names_the_file(tmp_path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    for read in (open_tensors, lambda folder: load_tensors(folder / "model.safetensors")):
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            read(tmp_path)


FULL = """
import resource, signal, sys, torch
from cutaway.checkpoint.tensor_file import save_tensors
from cutaway.errors import InputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save_tensors(sys.argv[1], {"a": torch.zeros(1000)}, {})
except InputError as error:
    print(error)
"""


def test_tensors_on_a_full_disk_leave_the_old_file(tmp_path) -> None:
    path = save_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)}, {"n": 1})
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert f"{path} cannot be written" in done.stdout
    assert load_tensors(path)[1] == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot be written"):
        save_tensors(tmp_path / "none" / "a.safetensors", {}, {})
