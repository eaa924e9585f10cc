"""Conversations as people write them, beside the reference: mixed batches, videos, images side by side, later turns.

Our `Inputs` go into both models, so a difference is the model's. Each row is compared alone as well as in its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import parity
import pytest
import torch

from cutaway.batch import Inputs
from cutaway.checkpoint.families import FAMILIES
from cutaway.generate.loop import generate
from cutaway.generate.settings import Settings
from cutaway.inputs.processor import Processor
from cutaway.model.vision.parts import PatchProjection
from tests.reference.tiny_reference import convolved, reference_of

TRAINED = ("qwen2_vl", "qwen2_5_vl")  # where positions behind a video are the trained form's, not the reference's
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
STEPS = 5
CLOSE = {"qwen3_5": 1e-4, "qwen3_5_moe": 1e-4}  # the delta rule's sums run in another order: rounding, over four blocks


def user(words: str) -> str:
    return f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Row:
    """A prompt with what it shows: (height, width) of its images, (frames, height, width) of its videos."""

    text: str
    images: list[tuple[int, int]] = field(default_factory=list)
    videos: list[tuple[int, int, int]] = field(default_factory=list)


CONVERSATIONS = {
    "a video before an image": [Row(user(f"{VIDEO}and then{IMAGE}?"), [(64, 96)], [(5, 64, 64)])],
    "images side by side": [Row(user(f"{IMAGE}{IMAGE}which one?"), [(64, 96), (70, 70)])],
    "images between one pair of markers": [
        Row(user("<|vision_start|><|image_pad|><|image_pad|><|vision_end|>which?"), [(64, 96), (70, 70)])
    ],
    "a video of one frame": [Row(user(f"{VIDEO}?"), [], [(1, 64, 96)])],
    "a later turn shows more": [
        Row(
            f"{user(f'{IMAGE}what is it?')}a thing<|im_end|>\n{user(f'and {IMAGE}?{VIDEO}')}",
            [(64, 96), (128, 64)],
            [(4, 64, 64)],
        )
    ],
    "a mixed batch": [
        Row(user("hi")),
        Row(user(f"{IMAGE}what?"), [(64, 96)]),
        Row(user(f"see {VIDEO} and {IMAGE}"), [(128, 64)], [(5, 64, 64)]),
        Row(user(f"{IMAGE}{IMAGE}which?"), [(64, 96), (70, 70)]),
    ],
}
BATCH = CONVERSATIONS["a mixed batch"]


@cache
def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)


def prepared(family: str, rows: list[Row], **options: Any) -> Inputs:
    videos = [noise(*size) for row in rows for size in row.videos]
    model = parity.tiny(family)
    return Processor.from_folder(parity.DATA / "ckpt" / family, model.config)(
        [row.text for row in rows],
        images=[noise(*size) for row in rows for size in row.images] or None,
        videos=videos or None,
        video_metadata=[{"fps": 2.0, "total_num_frames": len(video)} for video in videos] or None,
        do_sample_frames=False,
        layout="hwc",
        **options,
    )


def their_answer(theirs, inputs: Inputs) -> list[int]:
    """The reference's likeliest tokens after one row, through its cache, with its own logits alone."""
    ids, options = [], dict(inputs) | {"position_ids": inputs.position_ids}
    mask, position = inputs.attention_mask, inputs.next_position[None, :, None].expand(3, -1, -1)
    past = None
    for step in range(STEPS):
        out = theirs(**options, cache=past, use_cache=True)
        selection, past = out.logits[:, -1:].argmax(-1), out.cache
        ids.append(int(selection))
        mask = torch.cat((mask, torch.ones_like(selection)), 1)
        options = {"input_ids": selection, "attention_mask": mask, "position_ids": position + step}
        options["mm_token_type_ids"] = torch.zeros_like(selection)
    return ids


@pytest.fixture(params=FAMILIES, scope="module")
def pair(request):
    """(family, the reference, ours)."""
    return request.param, reference_of(request.param), parity.tiny(request.param)


@pytest.mark.parametrize("story", CONVERSATIONS)
@torch.no_grad()
def test_logits_and_answers(pair, monkeypatch, story: str) -> None:
    family, theirs, ours = pair
    rows = CONVERSATIONS[story]
    inputs = prepared(family, rows, padding_side="left")
    answers = generate(ours, inputs, Settings(max_new_tokens=STEPS)).ids
    assert answers == [their_answer(theirs, prepared(family, [row])) for row in rows]
    monkeypatch.setattr(PatchProjection, "forward", convolved)
    tokens = inputs.attention_mask.bool()
    expected = theirs(**inputs, position_ids=inputs.position_ids, use_cache=False).logits[tokens]
    assert parity.difference(ours(inputs)[tokens], expected) < CLOSE.get(family, 1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_row_in_a_mixed_batch_is_the_row_alone(pair, side: str) -> None:
    family, _, ours = pair
    inputs = prepared(family, BATCH, padding_side=side)
    together, ids = ours(inputs), generate(ours, inputs, Settings(max_new_tokens=STEPS)).ids
    for index, row in enumerate(BATCH):
        alone, tokens = prepared(family, [row]), inputs.attention_mask[index].bool()
        assert torch.equal(inputs.position_ids[:, index, tokens], alone.position_ids[:, 0])
        assert parity.difference(together[index, tokens], ours(alone)[0]) < 1e-5
        assert ids[index] == generate(ours, alone, Settings(max_new_tokens=STEPS)).ids[0]


def shown(family: str, story: str) -> list[Row]:
    """The rows whose positions the reference finds, and by the same rule: it raises at images between one pair."""
    rows = [] if "between" in story else CONVERSATIONS[story]
    return [row for row in rows if not (row.videos and family in TRAINED)]


@pytest.mark.parametrize(
    ("pair", "story"),
    [(family, story) for family in FAMILIES for story in CONVERSATIONS if shown(family, story)],
    indirect=["pair"],
)
def test_positions(pair, story: str) -> None:
    family, theirs, _ = pair
    inputs = prepared(family, shown(family, story), padding_side="left")
    expected, deltas = theirs.model.get_rope_index(**{key: inputs[key] for key in inputs if "pixel" not in key})
    tokens = inputs.attention_mask.bool()
    assert torch.equal(inputs.position_ids[:, tokens], expected[:, tokens])
    assert torch.equal(inputs.rope_deltas, deltas.view(-1, 1))
