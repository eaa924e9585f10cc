"""`cutaway verify` on the tiny checkpoints of every family: agreement, a fault that it finds, and what it needs."""

from __future__ import annotations

import json
import shutil

import families
import pytest
import torch

from cutaway.cli.app import FAULT, run
from cutaway.cli.verify import DIFFERS, grouped, show
from cutaway.errors import InputError, Unavailable
from cutaway.tasks import reference
from cutaway.tasks.verify import Compared, Verification, compare, verify

CASES = ["text", "image", "two images", "video"]


def found_of(family: str, oracle, **options) -> Verification:
    return verify(str(oracle / "ckpt" / family), device="cpu", max_new_tokens=4, **options)


@pytest.mark.parametrize("family", ["qwen3_vl", *families.FAMILIES])
def test_every_family_agrees(family: str, oracle) -> None:
    result = found_of(family, oracle)
    assert result.agrees
    assert result.family == family
    assert [case.name for case in result.cases] == CASES
    for case in result.cases:
        assert case.ids == case.their_ids
        assert len(case.ids) == 4
        assert case.worst.difference < 2e-4, case.worst
        seen = {value.address for value in case.values}
        assert {"token_embeddings", "layers.0.layer_output", "layers.1.mlp.mlp_output", "logits"} <= seen
        attention = "linear_attn" if family in families.HYBRID else "self_attn"
        assert f"layers.0.{attention}.attention_output" in seen
        vision = {"vision.patch_embeddings", "vision.layers.1.self_attn.attention_output", "projector.output"}
        assert vision <= seen if case.patches else not vision & seen
        assert ("vision.deepstack_merger_list.0.output" in seen) == (bool(case.patches) and "qwen3_vl" in family)


def test_text_of_the_dense_families_has_the_same_bits(oracle) -> None:
    for family in ("qwen2_vl", "qwen3_vl"):
        text = found_of(family, oracle).cases[0]
        assert all(value.equal for value in text.values)


def test_in_bfloat16_rounding_is_allowed_for(oracle) -> None:
    result = found_of("qwen3_vl", oracle, dtype="bfloat16")
    assert result.agrees
    assert result.dtype == "bfloat16"
    assert result.limit > 1e-2
    assert max(case.worst.difference for case in result.cases) > 1e-4


def test_a_fault_is_found_where_it_is(oracle, monkeypatch, capsys) -> None:
    """Queries and keys that are not rotated: the first block's attention is the first value that differs."""
    monkeypatch.setattr("cutaway.model.attention.rotate", lambda x, *_: x)
    folder = str(oracle / "ckpt" / "qwen3_vl")
    assert run(["verify", folder, "--device", "cpu", "--max-new-tokens", "2"]) == DIFFERS
    message = capsys.readouterr().out
    assert "They do NOT agree" in message
    assert "the first at layers.0.self_attn.attention_output" in message


def test_tokens_that_differ_are_a_fault_of_their_own(oracle, monkeypatch, capsys) -> None:
    monkeypatch.setattr("cutaway.tasks.verify.greedy", lambda model, inputs, count: (0,) * count)
    result = found_of("qwen3_vl", oracle)
    assert not result.agrees
    show(result)
    message = capsys.readouterr().out
    assert "differ from token 0: 0 here" in message
    assert "but the greedy tokens differ" in message


def test_what_is_printed(oracle, capsys) -> None:
    folder = str(oracle / "ckpt" / "qwen2_5_vl")
    assert run(["verify", folder, "--device", "cpu", "--max-new-tokens", "2"]) == 0
    message = capsys.readouterr().out
    assert "qwen2_5_vl, float32 on cpu, transformers 5." in message
    assert "vision.layers.*.layer_output" in message
    assert "same bits" in message
    assert message.rstrip().endswith("They agree: no difference is above 1e-03.")


def test_json_has_every_block(oracle, capsys) -> None:
    folder = str(oracle / "ckpt" / "qwen3_vl")
    assert run(["verify", folder, "--device", "cpu", "--max-new-tokens", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["agrees"] is True
    assert {"address": "logits", "difference": 0.0, "equal": True} in result["cases"][0]["values"]
    assert sum(value["address"].endswith("layer_output") for value in result["cases"][1]["values"]) == 8


def test_a_folder_without_preprocessing_is_compared_on_text(oracle, tmp_path) -> None:
    shutil.copytree(oracle / "ckpt" / "qwen3_vl", tmp_path, dirs_exist_ok=True)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json", "chat_template.json"):
        (tmp_path / name).unlink()
    result = verify(str(tmp_path), device="cpu", max_new_tokens=2)
    assert [case.name for case in result.cases] == ["text"]
    assert result.agrees


def test_a_folder_without_a_tokenizer_cannot_be_asked(oracle) -> None:
    with pytest.raises(Unavailable, match="no tokenizer"):
        verify(str(oracle / "ckpt" / "qwen3_vl.v5"), device="cpu")


def test_without_transformers(oracle, monkeypatch, capsys) -> None:
    monkeypatch.setattr(reference, "find_spec", lambda name: None)
    assert run(["verify", str(oracle / "ckpt" / "qwen3_vl")]) == FAULT
    message = capsys.readouterr().err
    assert "not installed" in message
    assert "pip install" in message


@pytest.mark.parametrize(
    ("version", "family", "says"), [("4.57.6", None, "4.57.6"), ("5.24.0", "qwen9_vl", "qwen9_vl")]
)
def test_a_transformers_that_cannot_be_compared_with(version, family, says, monkeypatch) -> None:
    monkeypatch.setattr("transformers.__version__", version)
    with pytest.raises(InputError, match=says):
        reference.require(family)


def test_a_dtype_without_a_limit(oracle) -> None:
    with pytest.raises(InputError, match=r"float32, float16, bfloat16.*float64"):
        found_of("qwen3_vl", oracle, dtype="float64")


def test_a_folder_that_transformers_cannot_load(tmp_path) -> None:
    with pytest.raises(InputError, match=r"transformers 5\.\S+ cannot load"):
        reference.Reference(tmp_path, mixture=False, dtype=torch.float32, device=torch.device("cpu"))


def test_a_value_of_another_shape_or_with_nan_differs_by_infinity() -> None:
    ours = torch.ones(1, 2, 3)
    assert compare("v", ours, None).difference == float("inf")
    assert compare("v", ours, torch.ones(4)).difference == float("inf")
    assert compare("v", ours, torch.full((2, 3), float("nan"))).difference == float("inf")
    assert compare("v", ours, torch.ones(2, 3)) == Compared("v", 0.0, True)
    assert compare("v", ours, 2 * torch.ones(2, 3)).difference == 0.5


def test_blocks_are_shown_as_the_worst_of_them() -> None:
    values = [Compared("layers.0.x", 0.1, False), Compared("layers.1.x", 0.3, False), Compared("logits", 0.2, False)]
    assert {name: value.difference for name, value in grouped(values).items()} == {"layers.*.x": 0.3, "logits": 0.2}
