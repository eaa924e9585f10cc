"""Reference cases as `Inputs`, tiny models with the reference's weights, a observer that records every named value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from cutaway.batch import IMAGE, Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.weights import load_weights
from cutaway.model.build import build
from cutaway.model.vlm import VLM
from cutaway.observe import Observer, observer

DATA = Path(__file__).parent / "data" / "oracle"


def cases(family: str) -> list[str]:
    """Names of the reference cases of a family."""
    return sorted(path.stem for path in (DATA / "out" / family).glob("*.safetensors"))


def tiny(
    family: str, *, folder: str | None = None, attn_implementation: str = "sdpa", dtype: torch.dtype | None = None
) -> VLM:
    """The family's tiny checkpoint, loaded."""
    position = DATA / "ckpt" / (folder or family)
    config = read_config(position)
    with torch.device("meta"):
        model = build(config, attn_implementation=attn_implementation)
    load_weights(model, position, config, dtype=dtype or torch.float32, device=torch.device("cpu"))
    return model


def case(family: str, name: str) -> tuple[Inputs, dict[str, Tensor]]:
    """One case: what goes in, with the positions the reference used, and the reference's tensors by name."""
    tensors = load_file(DATA / "out" / family / f"{name}.safetensors")
    options: dict[str, Any] = {key[3:]: value for key, value in tensors.items() if key.startswith("in.")}
    position_ids = tensors.get("pos.text_model")
    if position_ids is None or position_ids.dim() < 3:
        position_ids = tensors["pos.generate_prefill"][1:]
    after = position_ids.amax((0, 2)) + 1
    return Inputs(**options, position_ids=position_ids, next_position=after), tensors


def story(family: str, name: str) -> dict[str, Any]:
    """The case's prompt text and arguments."""
    return json.loads((DATA / "out" / family / f"{name}.json").read_text())


def one_row(inputs: Inputs, row: int) -> Inputs:
    """A row of a batch of images as a batch of its own, padding taken off."""
    keep = inputs.attention_mask[row].bool()
    start = int(images_of(inputs, slice(0, row)))
    stop = start + int(images_of(inputs, slice(row, row + 1)))
    grids = inputs.image_grid_thw
    sizes = grids.prod(-1).tolist()
    patches = inputs.pixel_values[sum(sizes[:start]) : sum(sizes[:stop])]
    return Inputs(
        input_ids=inputs.input_ids[row, keep][None],
        attention_mask=inputs.attention_mask[row, keep][None],
        mm_token_type_ids=inputs.mm_token_type_ids[row, keep][None],
        position_ids=inputs.position_ids[:, row, keep][:, None],
        next_position=inputs.next_position[row][None],
        pixel_values=patches if stop > start else None,
        image_grid_thw=grids[start:stop] if stop > start else None,
    )


def images_of(inputs: Inputs, rows: slice) -> int:
    """How many images the placeholders of these rows stand for: the grids are used up in order."""
    tokens = int((inputs.mm_token_type_ids[rows] == IMAGE).sum())
    before = int((inputs.mm_token_type_ids[: rows.start] == IMAGE).sum())
    ends = (inputs.image_grid_thw.prod(-1) // 4).cumsum(0)
    return int(((ends > before) & (ends <= before + tokens)).sum())


def right_padded(inputs: Inputs) -> Inputs:
    """The same batch with its padding moved to the right."""
    order = torch.argsort(inputs.attention_mask, dim=1, descending=True, stable=True)
    return replace(
        inputs,
        input_ids=inputs.input_ids.gather(1, order),
        attention_mask=inputs.attention_mask.gather(1, order),
        mm_token_type_ids=inputs.mm_token_type_ids.gather(1, order),
        position_ids=inputs.position_ids.gather(2, order.expand(3, -1, -1)),
    )


class Recorder(Observer):
    """An observer that keeps every named value and every module's output, and changes nothing."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], Any] = {}
        self.order: list[tuple[int, str]] = []

    def on_value(self, module, name, value):
        self.values[id(module), name] = value
        self.order.append((id(module), name))
        return value

    def on_call(self, module, args, kwargs):
        self.on_value(module, "input", args[0] if args else None)
        return args, kwargs

    def on_return(self, module, output):
        return self.on_value(module, "output", output)

    def __call__(self, module, name: str) -> Any:
        """The value `name` of `module`."""
        return self.values[id(module), name]


def record(model: VLM, inputs: Inputs, **options: Any) -> tuple[Tensor, Recorder]:
    """Logits of one forward, and all that was named on the way."""
    seen = Recorder()
    token = observer.set(seen)
    try:
        with torch.no_grad():
            return model(inputs, **options), seen
    finally:
        observer.reset(token)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference as a part of the reference's largest value."""
    assert ours.shape == theirs.shape, f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
