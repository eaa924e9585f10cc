"""Weights: into place in the wanted dtype, every layout alike, and one error that says all that does not fit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from safetensors.torch import save_file

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.files import open_tensors
from cutaway.checkpoint.weights import choose_device, choose_dtype, load_weights
from cutaway.errors import CheckpointError, InputError
from cutaway.model.build import build
from tests.checkpoint.trees import FILES, module_of, our_shapes, raw_config, tensors_of, write_folder

EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"


def published(family: str, tmp_path, name: str | None = None, **changes):
    """A folder with a tiny model's file, its tensors, its config and an empty tree for it."""
    name = name or family
    raw = raw_config(name) | changes
    tensors = tensors_of(name)
    folder = write_folder(tmp_path / name, raw, {"model.safetensors": tensors})
    config = read_config(raw)
    shapes = our_shapes(family)
    shapes.pop(HEAD, None)
    tied = config.tie_word_embeddings
    tree = module_of(shapes if tied else shapes | {HEAD: shapes[EMBEDDING]}, tied=tied)
    return folder, tensors, config, tree


def load(tree, folder, config, **options):
    """`load_weights` onto the CPU in float32 unless told otherwise."""
    return load_weights(tree, folder, config, **({"dtype": torch.float32, "device": "cpu"} | options))


@pytest.mark.parametrize("form", ["qwen3_vl", "qwen3_vl.v5"])
def test_the_reference_checkpoint_fills_the_model(form, oracle) -> None:
    folder = oracle / "ckpt" / form
    config = read_config(folder)
    with torch.device("meta"):
        model = build(config)
    report = load(model, folder, config)
    assert not [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    with open_tensors(folder) as tensors:
        assert (report.tensors, report.tied, report.skipped, report.notes) == (len(tensors), True, (), ())
        state = model.state_dict()
        for name in tensors:
            assert torch.equal(state[name], tensors[name]), name


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_every_family_fills_a_tree(name, tmp_path) -> None:
    family = name.removesuffix(".v5")
    folder, tensors, config, tree = published(family, tmp_path, name)
    report = load(tree, folder, config)
    state = tree.state_dict()
    assert not any(tensor.is_meta for tensor in state.values())
    drafting = {key for key in tensors if key.startswith("mtp.")}
    assert set(report.ignored) == drafting
    prefix = "model." if family.startswith("qwen2") else "model.language_model."
    assert torch.equal(state[EMBEDDING], tensors[f"{prefix}embed_tokens.weight"])
    patches = "visual" if family.startswith("qwen2") else "model.visual"
    assert torch.equal(state["model.visual.patch_embed.proj.weight"], tensors[f"{patches}.patch_embed.proj.weight"])
    assert state["model.visual.patch_embed.proj.weight"].ndim == 5


def test_experts_end_up_alike_from_every_layout(tmp_path) -> None:
    """Published 3-VL has [experts in out], transformers 5 [experts out in], 3.5 as it saves it expert by expert."""
    block = "model.language_model.layers.1.mlp.experts"
    folder, tensors, config, tree = published("qwen3_vl_moe", tmp_path)
    load(tree, folder, config)
    state = tree.state_dict()
    assert torch.equal(state[f"{block}.gate_up_proj"], tensors[f"{block}.gate_up_proj"].transpose(1, 2))
    assert torch.equal(state[f"{block}.down_proj"], tensors[f"{block}.down_proj"].transpose(1, 2))
    assert state[f"{block}.down_proj"].is_contiguous()

    folder, tensors, config, tree = published("qwen3_vl_moe", tmp_path, "qwen3_vl_moe.v5")
    load(tree, folder, config)
    assert torch.equal(tree.state_dict()[f"{block}.gate_up_proj"], tensors[f"{block}.gate_up_proj"])

    folder, tensors, config, tree = published("qwen3_5_moe", tmp_path, "qwen3_5_moe.v5")
    load(tree, folder, config)
    fused = tree.state_dict()[f"{block}.gate_up_proj"]
    for expert in range(5):
        gate, up = (tensors[f"{block}.{expert}.{part}_proj.weight"] for part in ("gate", "up"))
        assert torch.equal(fused[expert], torch.cat((gate, up)))
        down = tensors[f"{block}.{expert}.down_proj.weight"]
        assert torch.equal(tree.state_dict()[f"{block}.down_proj"][expert], down)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtype(dtype, tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    load(tree, folder, config, dtype=dtype)
    state = tree.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {dtype}
    assert torch.equal(state["model.language_model.norm.weight"], tensors["model.language_model.norm.weight"].to(dtype))


def test_parameters_stay_as_trainable_as_they_were(tmp_path) -> None:
    folder, _, config, tree = published("qwen3_vl", tmp_path)
    tree.get_submodule("model.visual").requires_grad_(False)
    load(tree, folder, config)
    assert not tree.get_parameter("model.visual.pos_embed.weight").requires_grad
    assert tree.get_parameter("model.language_model.norm.weight").requires_grad


def test_editing_a_loaded_weight_leaves_the_file_alone(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    load(tree, folder, config)
    with torch.no_grad():
        tree.get_parameter(EMBEDDING).zero_()
    with open_tensors(folder) as again:
        assert torch.equal(again[EMBEDDING], tensors[EMBEDDING])


def test_shards_read_as_one_file(tmp_path) -> None:
    folder, tensors, config, whole = published("qwen3_vl_moe", tmp_path)
    load(whole, folder, config)
    names = sorted(tensors)
    shards = {f"model-{i}.safetensors": {n: tensors[n] for n in names[i::3]} for i in range(3)}
    split = write_folder(tmp_path / "split", raw_config("qwen3_vl_moe"), shards)
    *_, tree = published("qwen3_vl_moe", tmp_path / "again")
    load(tree, split, config)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, tree.state_dict()[name]), name


def test_progress_counts_bytes_to_the_end(tmp_path) -> None:
    folder, _, config, tree = published("qwen3_vl", tmp_path)
    seen = []
    report = load(tree, folder, config, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (report.bytes, report.bytes)


# -- what does not fit


def test_all_that_does_not_fit_is_said_at_once(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    for layer in range(4):
        del tensors[f"model.language_model.layers.{layer}.mlp.up_proj.weight"]
    del tensors["model.language_model.norm.weight"]
    tensors["model.language_model.surprise.weight"] = torch.ones(2)
    tensors["model.visual.pos_embed.weight"] = torch.ones(25, 24)
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": tensors})
    with pytest.raises(CheckpointError) as error:
        load(tree, folder, config)
    message = str(error.value)
    assert "Missing (5):" in message
    assert "model.language_model.layers.0-3.mlp.up_proj.weight" in message
    assert "model.language_model.norm.weight" in message
    assert "Unexpected (1):\n  model.language_model.surprise.weight" in message
    assert "model.visual.pos_embed.weight: [25, 24] in the file, [36, 24] by the config" in message
    assert all(parameter.is_meta for parameter in tree.parameters()), "the tree was touched"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_missing_vision_tensor_is_an_error(family, tmp_path) -> None:
    folder, tensors, config, tree = published(family, tmp_path)
    lost = next(name for name in tensors if name.endswith("visual.blocks.0.norm1.weight"))
    del tensors[lost]
    write_folder(folder, raw_config(family), {"model.safetensors": tensors})
    with pytest.raises(CheckpointError, match=r"Missing \(1\):\n  model.visual.blocks.0.norm1.weight"):
        load(tree, folder, config)


def test_a_text_model_alone_is_offered_the_task_for_it(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    text = {name: tensor for name, tensor in tensors.items() if ".visual." not in name}
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": text})
    with pytest.raises(CheckpointError, match="task='text-generation'"):
        load(tree, folder, config)


def test_experts_that_differ_among_themselves(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_5_moe", tmp_path, "qwen3_5_moe.v5")
    tensors["model.language_model.layers.0.mlp.experts.3.up_proj.weight"] = torch.ones(7, 32)
    write_folder(folder, raw_config("qwen3_5_moe.v5"), {"model.safetensors": tensors})
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.experts\.gate_up_proj: "):
        load(tree, folder, config)


def test_drafting_layers_are_passed_over_and_listed(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    tensors |= {"mtp.fc.weight": torch.ones(2), "model.rotary_emb.inv_freq": torch.ones(3)}
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": tensors})
    report = load(tree, folder, config)
    assert set(report.ignored) == {"mtp.fc.weight", "model.rotary_emb.inv_freq"}


@pytest.mark.parametrize(
    ("add", "says"),
    [
        ({"model.language_model.layers.0.mlp.up_proj.weight": torch.ones(48, 32).to(torch.float8_e4m3fn)}, "F8_E4M3"),
        ({"model.language_model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1, 1)}, "weight_scale_inv"),
        ({"model.language_model.layers.0.mlp.up_proj.qweight": torch.ones(4, 4, dtype=torch.int32)}, "qweight is I32"),
        ({"model.language_model.layers.0.mlp.up_proj.weight.absmax": torch.ones(4)}, "absmax"),
    ],
)
def test_quantised_tensors_are_refused(add, says, tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": tensors | add})
    with pytest.raises(CheckpointError, match=rf"quantised \(.*{says}.*unquantised release"):
        load(tree, folder, config)


# -- the head


def test_a_head_equal_to_the_embedding_stays_tied(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": tensors | {HEAD: tensors[EMBEDDING].clone()}})
    report = load(tree, folder, config)
    assert (report.tied, report.notes) == (True, ())
    assert tree.get_parameter(HEAD) is tree.get_parameter(EMBEDDING)


def test_a_head_of_its_own_wins_over_the_flag(tmp_path) -> None:
    folder, tensors, config, tree = published("qwen3_vl", tmp_path)
    head = tensors[EMBEDDING] + 1
    write_folder(folder, raw_config("qwen3_vl"), {"model.safetensors": tensors | {HEAD: head}})
    report = load(tree, folder, config)
    assert not report.tied
    assert "lm_head.weight of its own" in report.notes[0]
    assert torch.equal(tree.get_parameter(HEAD), head)
    assert torch.equal(tree.get_parameter(EMBEDDING), tensors[EMBEDDING])


def test_no_head_and_no_flag_is_said_with_the_way_out(tmp_path) -> None:
    folder, _, config, tree = published("qwen3_vl", tmp_path, tie_word_embeddings=None)
    with pytest.raises(CheckpointError, match=r'Missing \(1\):\n  lm_head.weight\n.*"tie_word_embeddings": true'):
        load(tree, folder, config)


def test_a_tied_weight_is_one_tensor_under_two_names(tmp_path) -> None:
    """Editing the embedding edits the head too, and the report says that they are tied."""
    folder, _, config, tree = published("qwen3_vl", tmp_path)
    assert load(tree, folder, config).tied
    with torch.no_grad():
        tree.get_parameter(EMBEDDING)[3] = 7
    assert (tree.get_parameter(HEAD)[3] == 7).all()


# -- without images


@pytest.mark.parametrize("family", FAMILIES)
def test_text_only_leaves_the_vision_encoder_in_the_file(family, tmp_path) -> None:
    folder, tensors, config, tree = published(family, tmp_path)
    del tree.model._modules["visual"]
    report = load(tree, folder, config, text_only=True)
    assert len(report.skipped) == sum("visual." in name for name in tensors)
    assert not any(tensor.is_meta for tensor in tree.state_dict().values())


# -- memory

PEAK = """
    import sys, torch
    from pathlib import Path
    from cutaway.checkpoint.config_reader import read_config
    from cutaway.checkpoint.weights import load_weights
    from tests.checkpoint.trees import module_of
    folder = Path(sys.argv[1])
    shapes = {f"model.language_model.layers.{i}.w": (1024, 2048) for i in range(16)}
    tree = module_of(shapes)
    def memory(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(key)).split()[1]) // 1024
    config = read_config(folder)
    torch.ones(1).to(torch.bfloat16)
    before = memory("VmRSS")
    load_weights(tree, folder, config, dtype=torch.bfloat16, device="cpu")
    print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_load_takes_the_model_and_one_shard(tmp_path) -> None:
    """128 MiB of float32 in 8 files, wanted in bfloat16 (64 MiB): the sum of both would be 192 MiB."""
    names = [f"model.language_model.layers.{i}.w" for i in range(16)]
    shards = {
        f"model-{i}.safetensors": {name: torch.ones(1024, 2048) for name in names[2 * i : 2 * i + 2]} for i in range(8)
    }
    write_folder(tmp_path, raw_config("qwen3_vl"), shards)
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 64 + 16 + 24, f"the load took {ran.stdout.strip()} MiB"


def test_one_tensor_lives_at_a_time_beside_the_model(tmp_path, monkeypatch) -> None:
    """Of what was read in another dtype, nothing but the tensor in hand is alive."""
    import cutaway.checkpoint.weights as read

    folder, _, config, tree = published("qwen3_vl", tmp_path)
    real, seen, alive = read._take, [], []

    def counted(source, tensors):
        alive.append(sum(tensor() is not None for tensor in seen))
        tensor = real(source, tensors)
        seen.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(read, "_take", counted)
    load(tree, folder, config, dtype=torch.bfloat16)
    assert len(seen) > 100
    assert max(alive) <= 1


# -- what stands for a dtype and a device


def test_what_auto_stands_for(tmp_path) -> None:
    raw = raw_config("qwen3_vl")
    stated = read_config(raw | {"dtype": "bfloat16"})
    assert choose_dtype("auto", stated) == torch.bfloat16
    raw["text_config"].pop("dtype")
    silent = read_config(raw)
    assert choose_dtype("auto", silent) == torch.float32
    half = {name: tensor.half() for name, tensor in tensors_of("qwen3_vl").items()}
    folder = write_folder(tmp_path, raw, {"model.safetensors": half})
    assert choose_dtype("auto", silent, folder) == torch.float16
    assert choose_dtype("float64", silent) == choose_dtype(torch.float64, stated) == torch.float64
    for wrong in ("float8_e4m3fn", "int8", "nonsense", torch.int64):
        with pytest.raises(InputError, match="dtype must be"):
            choose_dtype(wrong, stated)


def test_what_no_device_stands_for() -> None:
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu").type == "cpu"
    for wrong in ("meta", "gpu", "cuda:99"):
        with pytest.raises(InputError, match="device"):
            choose_device(wrong)


def test_a_file_with_a_stranger_alone_is_all_missing(tmp_path) -> None:
    folder, _, config, tree = published("qwen3_vl", tmp_path)
    save_file({"stranger.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"Unexpected \(1\):\n  stranger.weight"):
        load(tree, folder, config)
