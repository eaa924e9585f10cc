"""Every reference case of every family: ids, mask, types, grids, pixels and positions, exactly."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cutaway.checkpoint.config_reader import read_config
from cutaway.inputs.processor import Processor

DATA = Path(__file__).parents[1] / "data" / "oracle"
FAMILIES = sorted(path.name for path in (DATA / "out").iterdir())
CASES = sorted(path.stem for path in (DATA / "out" / "qwen3_vl").glob("*.safetensors"))


def processor_of(family: str) -> Processor:
    folder = DATA / "ckpt" / family
    return Processor.from_folder(folder, read_config(folder))


def prepared(family: str, case: str):
    """Our inputs for a reference case, what it saved, and what its notes say."""
    notes = json.loads((DATA / "out" / family / f"{case}.json").read_text())
    raw = load_file(DATA / "out" / "qwen3_vl" / f"{case}.safetensors")  # the images are the same for all families
    images = [raw[f"raw.image.{i}"].numpy() for i in range(sum(key.startswith("raw.image") for key in raw))]
    videos = [raw[f"raw.video.{i}"].numpy() for i in range(sum(key.startswith("raw.video") for key in raw))]
    inputs = processor_of(family)(
        text=notes["prompt"],
        images=images or None,
        videos=videos or None,
        video_metadata=notes["video_metadata"] or None,
        return_tensors="pt",
        padding=True,
        layout="hwc",
        nested_video_markers=True,  # the prompt form of the version that made these values
        **notes["extra"],
    )
    return inputs, load_file(DATA / "out" / family / f"{case}.safetensors"), notes


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_inputs_equal_the_reference(family: str, case: str) -> None:
    inputs, saved, notes = prepared(family, case)
    keys = {key[3:] for key in saved if key.startswith("in.")} | set(notes.get("sha256", {}))
    assert set(inputs) == keys
    for key in keys:
        if "in." + key in saved:
            assert inputs[key].dtype == saved["in." + key].dtype, key
            assert torch.equal(inputs[key], saved["in." + key]), key
        else:
            assert hashlib.sha256(inputs[key].contiguous().numpy().tobytes()).hexdigest() == notes["sha256"][key], key


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_positions_equal_the_reference(family: str, case: str) -> None:
    inputs, saved, _ = prepared(family, case)
    if "trained.positions" in saved:  # videos of 2-VL and 2.5-VL, under the rule of the published weights
        assert torch.equal(inputs.position_ids, saved["trained.positions"])
        assert torch.equal(inputs.next_position, saved["trained.next"])
    elif "pos.rope_deltas" in saved:
        assert torch.equal(inputs.position_ids, saved["pos.text_model"])
        assert torch.equal(inputs.rope_deltas, saved["pos.rope_deltas"].reshape(-1, 1))
    else:  # text alone: rows 1 to 3 of the four that generation starts with
        assert torch.equal(inputs.position_ids, saved["pos.generate_prefill"][1:])
    last = saved["pos.generate_decode"][1:, :, 0]
    if "trained.positions" not in saved:
        assert torch.equal(inputs.next_position.expand(3, -1), last)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_complete_fills_what_a_mapping_lacks(family: str, case: str) -> None:
    inputs, _, _ = prepared(family, case)
    bare = {key: value for key, value in inputs.items() if key != "mm_token_type_ids"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = processor_of(family).complete(bare)
    assert torch.equal(filled.mm_token_type_ids, inputs.mm_token_type_ids)
    assert torch.equal(filled.position_ids, inputs.position_ids)
    assert torch.equal(filled.next_position, inputs.next_position)
