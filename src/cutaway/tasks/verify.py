"""Run a checkpoint here and in transformers on the same inputs, and compare value by value.

The folder's own processor prepares text, an image, two images and a video; both models get the same ids, patches and
positions, so that only the models are compared. Where the two libraries differ in a video's positions or prompt, ours
are used. Preprocessing itself is not compared. One model is in memory at a time.
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
from cutaway.generate.loop import Generation, run_step
from cutaway.generate.settings import Settings
from cutaway.tasks.reference import Reference, require

LIMITS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest difference that rounding explains over a whole model, divided by the value's largest number."""

COMPARED_VALUES = ("patch_embeddings", "attention_output", "mlp_output", "layer_output", "token_embeddings", "logits")
"""The values that are the output of a module under the same name in both trees, but for `patch_embeddings`."""


@dataclass(frozen=True)
class Compared:
    """A value: its address, the largest difference divided by its largest number, whether every bit is the same.

    A value of another shape, or with a NaN on one side, differs by infinity.
    """

    address: str
    difference: float
    equal: bool


@dataclass(frozen=True)
class Case:
    """One input: its size, its values in the forward's order, and the greedy tokens, ours and theirs."""

    name: str
    tokens: int
    patches: int
    values: tuple[Compared, ...]
    ids: tuple[int, ...]
    their_ids: tuple[int, ...]

    @property
    def worst(self) -> Compared:
        """Return the value that differs most."""
        return max(self.values, key=lambda value: value.difference)


@dataclass(frozen=True)
class Verification:
    """The result: what was compared, with which limit, and whether the two agree.

    `agrees`: every difference is within `limit`, and in float32 the greedy tokens are the same.
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
    """Run a checkpoint here and in transformers, and compare them.

    - `name`: a folder, the bundled model or a hub id. - `dtype`: float32 tells a fault from rounding best.
    - `limit`: a larger difference is a fault; by default that of `LIMITS`.

    Raises `InputError` unless a transformers is installed that has the family, and what `load` raises.
    """
    require()
    if dtype not in LIMITS:
        raise InputError(f"`dtype` is one of {', '.join(LIMITS)}, in which the two can be compared; got {dtype!r}.")
    model = load(name, dtype=dtype, device=device)
    require(model.config.family)
    cases = inputs_of(model)
    ours = {case: (values(model, inputs), greedy(model, inputs, max_new_tokens)) for case, inputs in cases.items()}
    mixture = model.config.text.experts is not None
    facts = (model.config.family, str(model.dtype).removeprefix("torch."), str(model.device))
    module_paths, folder = paths(model), model.folder
    assert folder is not None  # `load` with weights always has one
    device_of_model, kind = model.device, model.dtype
    del model
    reference = Reference(folder, mixture=mixture, dtype=kind, device=device_of_model)
    most = LIMITS[facts[1]] if limit is None else limit
    compared = []
    for case, inputs in cases.items():
        seen, ids = ours[case]
        theirs, their_ids = reference.run(inputs, {module_paths[a]: a for a in seen}, max_new_tokens)
        differences = tuple(compare(address, seen[address], theirs.get(address)) for address in seen)
        patches = sum(0 if p is None else len(p) for p in (inputs.pixel_values, inputs.pixel_values_videos))
        compared.append(Case(case, inputs.input_ids.shape[1], patches, differences, ids, their_ids))
    agrees = all(v.difference <= most for c in compared for v in c.values)
    same = facts[1] != "float32" or all(c.ids == c.their_ids for c in compared)
    return Verification(str(name), *facts, reference.version, most, tuple(compared), agrees and same)


def inputs_of(model: Model) -> dict[str, Inputs]:
    """Return the inputs of every case that the folder's processor can prepare, by name."""
    processor = model.processor
    media_by_case: dict[str, dict[str, Any]] = {"text": {}}
    if processor.image_settings is not None:
        media_by_case["image"] = {"images": [example_image(120, 168)]}
        media_by_case["two images"] = {"images": [example_image(96, 96), example_image(150, 70)]}
    if processor.video_settings is not None:
        frames = torch.stack([example_image(96, 128, seed) for seed in range(6)])
        media_by_case["video"] = {"videos": [frames], "video_metadata": [{"fps": 2.0}]}
    return {name: model.prepare(verification_prompt(model, media), **media) for name, media in media_by_case.items()}


def verification_prompt(model: Model, media: dict[str, Any]) -> str:
    """Return a prompt by the folder's chat template, or in the families' plain form where it has none."""
    images, videos = len(media.get("images", ())), len(media.get("videos", ()))
    words = "Describe what is here, in a few words."
    if model.processor.template is not None:
        return model.prompt(words, images=images, videos=videos)
    mark = "<|vision_start|><|{}_pad|><|vision_end|>".format
    return (
        f"<|im_start|>user\n{mark('image') * images}{mark('video') * videos}{words}<|im_end|>\n<|im_start|>assistant\n"
    )


def example_image(height: int, width: int, seed: int = 0) -> Tensor:
    """Return an image [3 height width] uint8: gradients, a vertical edge that moves with the seed, and noise."""
    vertical, horizontal = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)[None]
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))
    edge = (horizontal > 0.3 + 0.1 * seed).float()
    plain = torch.stack([vertical.expand(height, width), horizontal.expand(height, width), edge.expand(height, width)])
    return (255 * (0.8 * plain + 0.2 * noise)).to(torch.uint8)


def paths(model: Model) -> dict[str, str]:
    """Return, for every compared value, the path of the module whose output it is; both trees have these paths."""
    module_of = {}
    for info in model.values():
        name, host = info.address.rsplit(".", 1)[-1], info.host.partition(" ")[0]
        if info.why_unavailable is None and name in COMPARED_VALUES:
            module_of[info.address] = f"{host}.patch_embed" if name == "patch_embeddings" else host
    module_of |= {"token_embeddings": "model.language_model", "logits": "lm_head"}
    module_of |= {"projector.output": "model.visual.merger", "language_model.norm.output": "model.language_model.norm"}
    for index in range(len(model.config.vision.deepstack_indexes)):
        module_of[f"vision.deepstack_merger_list.{index}.output"] = f"model.visual.deepstack_merger_list.{index}"
    return module_of


def values(model: Model, inputs: Inputs) -> dict[str, Tensor]:
    """Return our values in the forward's order, on the CPU; those of the vision encoder only where it runs."""
    text_only = inputs.pixel_values is None and inputs.pixel_values_videos is None
    addresses = [a for a in paths(model) if not (text_only and a.startswith(("vision.", "projector.")))]
    return dict(model.run(inputs, read=addresses, reduce=lambda value: value.cpu()))


def greedy(model: Model, inputs: Inputs, count: int) -> tuple[int, ...]:
    """Return our greedy tokens; end tokens do not stop the generation."""
    settings = Settings(max_new_tokens=count, ignore_eos=True)
    generation = Generation(model.root, inputs, settings)
    while run_step(model.root, generation):
        pass
    return tuple(generation.result.ids[0])


def compare(address: str, ours: Tensor, theirs: Tensor | None) -> Compared:
    """Return the difference of one value; `theirs` may lack our leading axis of size one."""
    if theirs is None or theirs.numel() != ours.numel():
        return Compared(address, math.inf, False)
    theirs = theirs.reshape(ours.shape)
    if torch.equal(ours, theirs):
        return Compared(address, 0.0, True)
    scale = theirs.double().abs().max()
    difference = float((ours.double() - theirs.double()).abs().max() / scale.clamp(min=1e-30))
    return Compared(address, difference if math.isfinite(difference) else math.inf, False)
