"""A checkpoint run here and by transformers on the same inputs, value by value.

Text, an image, two images and a video are prepared by the folder's own processor; both models are given the same ids,
patches and positions, so that what is compared is the models: where the two libraries count a video's positions or mark
its prompt differently, ours are taken. Preparation itself is not compared. One model is in memory at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.api import Model, load
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.generate.loop import Generation, forward
from cutaway.generate.settings import Settings
from cutaway.tasks.reference import Reference, require

LIMITS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest difference that rounding explains over a whole model, as a part of the value's largest number."""

KINDS = ("patch_embeddings", "attention_output", "mlp_output", "layer_output", "token_embeddings", "logits")
"""The values that are the output of a module under the same name in both trees, but for `patch_embeddings`."""


@dataclass(frozen=True)
class Compared:
    """A value: its address, the largest difference as a part of its largest number, whether every bit is the same.

    A value of another shape, or with a NaN on one side, differs by infinity.
    """

    address: str
    difference: float
    equal: bool


@dataclass(frozen=True)
class Case:
    """One input: its size, its values in the forward's order, and the likeliest tokens, ours and theirs."""

    name: str
    tokens: int
    patches: int
    values: tuple[Compared, ...]
    ids: tuple[int, ...]
    their_ids: tuple[int, ...]

    @property
    def worst(self) -> Compared:
        """The value that differs most."""
        return max(self.values, key=lambda value: value.difference)


@dataclass(frozen=True)
class Verification:
    """What was compared, with which limit, and the verdict.

    `agrees`: every difference is within `limit`, and in float32 the likeliest tokens are the same.
    """

    name: str
    family: str
    dtype: str
    device: str
    transformers: str
    limit: float
    cases: tuple[Case, ...]
    agrees: bool


def verify(
    name: str,
    *,
    dtype: str = "float32",
    device: str | None = None,
    max_new_tokens: int = 8,
    limit: float | None = None,
) -> Verification:
    """Runs a checkpoint here and by transformers, and compares them.

    - `name`: a folder, the bundled model or a hub id. - `dtype`: float32 tells a fault from rounding best.
    - `limit`: a larger difference is a fault; by default that of `LIMITS`.

    Raises `InputError` without a transformers that knows the family, and what `load` raises.
    """
    require()
    if dtype not in LIMITS:
        raise InputError(f"dtype must be one of {', '.join(LIMITS)}, in which the two can be compared; got {dtype!r}.")
    model = load(name, dtype=dtype, device=device)
    require(model.config.family)
    cases = inputs_of(model)
    ours = {case: (values(model, inputs), greedy(model, inputs, max_new_tokens)) for case, inputs in cases.items()}
    mixture = model.config.text.experts is not None
    facts = (model.config.family, str(model.dtype).removeprefix("torch."), str(model.device))
    places, folder = paths(model), model.origin.folder
    assert folder is not None  # `load` with weights always has one
    place, kind = model.device, model.dtype
    del model
    reference = Reference(folder, mixture=mixture, dtype=kind, device=place)
    most = LIMITS[facts[1]] if limit is None else limit
    compared = []
    for case, inputs in cases.items():
        seen, ids = ours[case]
        theirs, their_ids = reference.run(inputs, {places[a]: a for a in seen}, max_new_tokens)
        found = tuple(compare(address, seen[address], theirs.get(address)) for address in seen)
        patches = sum(0 if p is None else len(p) for p in (inputs.pixel_values, inputs.pixel_values_videos))
        compared.append(Case(case, inputs.input_ids.shape[1], patches, found, ids, their_ids))
    agrees = all(v.difference <= most for c in compared for v in c.values)
    same = facts[1] != "float32" or all(c.ids == c.their_ids for c in compared)
    return Verification(str(name), *facts, reference.version, most, tuple(compared), agrees and same)


def inputs_of(model: Model) -> dict[str, Inputs]:
    """The inputs of every case that the folder's processor can prepare."""
    processor = model.processor
    given: dict[str, dict[str, Any]] = {"text": {}}
    if processor.image_settings is not None:
        given["image"] = {"images": [noise_image(120, 168)]}
        given["two images"] = {"images": [noise_image(96, 96), noise_image(150, 70)]}
    if processor.video_settings is not None:
        frames = torch.stack([noise_image(96, 128, seed) for seed in range(6)])
        given["video"] = {"videos": [frames], "video_metadata": [{"fps": 2.0}]}
    return {name: model.prepare(question(model, media), **media) for name, media in given.items()}


def question(model: Model, media: dict[str, Any]) -> str:
    """A prompt by the folder's chat template, or in the families' plain form where it has none."""
    images, videos = len(media.get("images", ())), len(media.get("videos", ()))
    words = "Describe what is here, in a few words."
    if model.processor.template is not None:
        return model.prompt(words, images=images, videos=videos)
    mark = "<|vision_start|><|{}_pad|><|vision_end|>".format
    return (
        f"<|im_start|>user\n{mark('image') * images}{mark('video') * videos}{words}<|im_end|>\n<|im_start|>assistant\n"
    )


def noise_image(height: int, width: int, seed: int = 0) -> Tensor:
    """[3 height width] uint8: slopes, an edge that wanders with the seed, and noise."""
    rows, columns = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)[None]
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))
    edge = (columns > 0.3 + 0.1 * seed).float()
    plain = torch.stack([rows.expand(height, width), columns.expand(height, width), edge.expand(height, width)])
    return (255 * (0.8 * plain + 0.2 * noise)).to(torch.uint8)


def paths(model: Model) -> dict[str, str]:
    """For every value that is compared the path of the module whose output it is, in the names that both trees have."""
    found = {}
    for row in model.values():
        name, host = row.address.rsplit(".", 1)[-1], row.host.partition(" ")[0]
        if row.why_unavailable is None and name in KINDS:
            found[row.address] = f"{host}.patch_embed" if name == "patch_embeddings" else host
    found |= {"token_embeddings": "model.language_model", "logits": "lm_head"}
    found |= {"projector.output": "model.visual.merger", "language_model.norm.output": "model.language_model.norm"}
    for index in range(len(model.config.vision.deepstack_indexes)):
        found[f"vision.deepstack_merger_list.{index}.output"] = f"model.visual.deepstack_merger_list.{index}"
    return found


def values(model: Model, inputs: Inputs) -> dict[str, Tensor]:
    """Our values, in the forward's order, on the CPU; those of the vision encoder only where it runs."""
    blind = inputs.pixel_values is None and inputs.pixel_values_videos is None
    asked = [a for a in paths(model) if not (blind and a.startswith(("vision.", "projector.")))]
    return dict(model.run(inputs, read=asked, reduce=lambda value: value.cpu()))


def greedy(model: Model, inputs: Inputs, count: int) -> tuple[int, ...]:
    """Our likeliest tokens, one after another, an end token or not."""
    settings = Settings(max_new_tokens=count, ignore_eos=True)
    generation = Generation(model.root, inputs, settings)
    while forward(model.root, generation):
        pass
    return tuple(generation.result.ids[0])


def compare(address: str, ours: Tensor, theirs: Tensor | None) -> Compared:
    """The difference of one value; `theirs` may lack our leading axis of one."""
    if theirs is None or theirs.numel() != ours.numel():
        return Compared(address, math.inf, False)
    theirs = theirs.reshape(ours.shape)
    if torch.equal(ours, theirs):
        return Compared(address, 0.0, True)
    scale = theirs.double().abs().max()
    off = float((ours.double() - theirs.double()).abs().max() / scale.clamp(min=1e-30))
    return Compared(address, off if math.isfinite(off) else math.inf, False)
