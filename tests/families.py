"""The families beside dense Qwen3-VL: their reference cases as `Inputs`, and an observer that holds runs to them.

A case's images are kept once, with Qwen3-VL's cases; each family's own processor makes its patches of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import parity
import torch
from safetensors.torch import load_file
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES as ALL
from cutaway.inputs.processor import Processor
from cutaway.model.vlm import VLM
from cutaway.observe import observer

FAMILIES = tuple(name for name in ALL if name != "qwen3_vl")
HYBRID = tuple(name for name, family in ALL.items() if family.linear)
MIXTURES = tuple(name for name, family in ALL.items() if family.mixture)
CASES = ("text", "batch", "image_and_video")
VALUES = parity.DATA / "values"


@cache
def prepared(family: str, name: str) -> Inputs:
    """The case's inputs as the family's processor makes them, with the prompt form of the reference."""
    folder, notes = (
        parity.DATA / "ckpt" / family,
        json.loads((parity.DATA / "out" / family / f"{name}.json").read_text()),
    )
    raw = load_file(parity.DATA / "out" / "qwen3_vl" / f"{name}.safetensors")
    media = {
        kind: [raw[f"raw.{kind}.{i}"].numpy() for i in range(sum(key.startswith(f"raw.{kind}") for key in raw))]
        for kind in ("image", "video")
    }
    return Processor.from_folder(folder, read_config(folder))(
        text=notes["prompt"],
        images=media["image"] or None,
        videos=media["video"] or None,
        video_metadata=notes["video_metadata"] or None,
        return_tensors="pt",
        padding=True,
        layout="hwc",
        nested_video_markers=True,
        **notes["extra"],
    )


def case(family: str, name: str) -> tuple[Inputs, dict[str, Tensor]]:
    """Inputs of a case with the positions that the reference used, and its values by name.

    A name ``trained.…`` is a video under the rule of positions that the published weights were trained with.
    """
    options, values = name.removeprefix("trained."), load_file(VALUES / family / f"{name}.safetensors")
    inputs = prepared(family, options)
    stored = load_file(parity.DATA / "out" / family / f"{options}.safetensors")
    if name != options:
        return replace(inputs, position_ids=values["pos.text_model"], next_position=values["pos.next"]), values
    positions = stored.get("pos.text_model")
    if positions is None or positions.dim() < 3:
        positions = stored["pos.generate_prefill"][1:]
    following = stored["pos.generate_decode"][1, :, 0]
    return replace(inputs, position_ids=positions, next_position=following), values


class StageComparison(parity.Recorder):
    """Compares each stage with the reference and goes on with the reference's, so that no rounding adds up.

    `close` has the difference of each stage as a part of the reference's largest value.
    """

    def __init__(self, model: VLM, inputs: Inputs, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.close: dict[str, float] = {}
        self.tokens = inputs.attention_mask.bool()
        self.stages: dict[tuple[int, str], tuple[str, Tensor]] = {}

        def stage(module, name: str, key: str) -> None:
            keys = dict.fromkeys(key.replace("vis.", part) for part in ("vis.image.", "vis.video."))
            resident = [values[k] for k in keys if k in values]
            if resident:
                self.stages[id(module), name] = key, torch.cat(resident)

        stage(model.model, "token_embeddings", "txt.inputs_embeds")
        stage(model.language_model.norm, "output", "txt.norm")
        for i, block in enumerate(model.layers):
            stage(block, "layer_output", f"txt.layer.{i}")
        visual = model.visual
        stage(visual, "patch_embeddings", "vis.patch_embed")
        stage(visual.merger, "output", "vis.merger")
        for i, block in enumerate(visual.blocks):
            stage(block, "layer_output", f"vis.block.{i}")
        for i, merger in enumerate(getattr(visual, "deepstack_merger_list", [])):
            stage(merger, "output", f"vis.deepstack.{i}")

    def on_value(self, module, name, value):
        if (id(module), name) not in self.stages:
            return super().on_value(module, name, value)
        key, theirs = self.stages[id(module), name]
        rows = self.tokens if key.startswith("txt.") else slice(None)
        self.close[key] = parity.difference(value[rows], theirs[rows])
        return theirs

    def run(self, model: VLM, inputs: Inputs) -> Tensor:
        """Logits of the last token of each row."""
        token = observer.set(self)
        try:
            with torch.no_grad():
                return model(inputs, last_only=True)[:, 0]
        finally:
            observer.reset(token)


def greedy(model: VLM, inputs: Inputs, count: int) -> Tensor:
    """[batch count]: the likeliest tokens, one after another through a cache."""
    past, ids, mask, positions = model.new_cache(capacity=16), [], inputs.attention_mask, inputs.next_position
    with torch.no_grad():
        logits = model(inputs, cache=past, last_only=True)
        for step in range(count):
            ids.append(logits[:, -1].argmax(-1, keepdim=True))
            mask = torch.cat((mask, torch.ones_like(ids[-1])), 1)
            position = (positions + step)[:, None]
            inputs = Inputs(ids[-1], mask, torch.zeros_like(ids[-1]), position.expand(3, -1, -1), positions + step + 1)
            logits = model(inputs, cache=past)
    return torch.cat(ids, 1)
