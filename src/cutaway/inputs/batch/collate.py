"""Arrays with the keys of transformers' processor to `Inputs`: checked, with token types and positions filled in.

It knows the keys, the config and how placeholders, grids and pixels must agree. It does not tokenise or open anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import IMAGE, KEYS, TEXT, VIDEO, Inputs
from cutaway.config import Config
from cutaway.errors import InputError
from cutaway.inputs.batch.mrope import KIND_NAMES, mrope_positions, read_grids
from cutaway.inputs.geometry.geometry import Geometry
from cutaway.inputs.geometry.layout import MediaInfo

BATCH_KEYS = (*KEYS, "position_ids")
"""The keywords of a prepared batch."""

_PIXELS = {IMAGE: ("pixel_values", "image_grid_thw"), VIDEO: ("pixel_values_videos", "video_grid_thw")}


@contextmanager
def cpu_tensors() -> Iterator[None]:
    """A batch is made on the CPU and can have gradients, whatever the default device and inference mode are."""
    with torch.device("cpu"), torch.inference_mode(False):
        yield


@cpu_tensors()
def build_inputs(
    mapping: Mapping[str, Any], config: Config, sources: tuple[Sequence[MediaInfo], Sequence[MediaInfo]] | None = None
) -> Inputs:
    """`Inputs` from any mapping with transformers' keys.

    `input_ids` [batch seq] (or [seq]) is required. Without `attention_mask` nothing is masked. Without
    `mm_token_type_ids` they follow from ids and grids. `position_ids` [3 batch seq], or [4 batch seq] as transformers'
    generate makes them, are kept; otherwise they are counted. `sources` are the images and videos as they came, for
    the geometry. `InputError` when a key is unknown or parts disagree.
    """
    given = {key: value for key, value in mapping.items() if value is not None}
    if "role" in given:
        raise InputError("this is one message, and messages are a list of them: put it into a list.")
    unknown = [key for key in given if key not in BATCH_KEYS]
    if unknown:
        raise InputError(
            f"a batch has the keys {', '.join(BATCH_KEYS)}; got {', '.join(map(repr, unknown))} as well. "
            f"Leave them out."
        )
    ids = _ids(given, config)
    mask = _like_ids(given.get("attention_mask", torch.ones_like(ids)), ids, "attention_mask")
    fields = {key: _tensor(given[key], key) for key in KEYS[3:] if key in given}
    for kind, (pixels, grids) in _PIXELS.items():
        _check_pixels(fields, pixels, grids, kind, config)
    if "mm_token_type_ids" in given:
        types = _like_ids(given["mm_token_type_ids"], ids, "mm_token_type_ids")
    else:
        types = _types(ids, mask, fields, config)
    places, following = _counted(types, mask, fields, config)
    if "position_ids" in given:
        places, following = _given_positions(given["position_ids"], mask)
    geometry = Geometry(
        ids,
        types,
        mask,
        fields.get("image_grid_thw"),
        fields.get("video_grid_thw"),
        config,
        ((), _clocks(fields, config)) if sources is None else sources,
    )
    return Inputs(ids, mask, types, places, following, **fields, geometry=geometry)


def batch_of_keywords(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The prepared batch that was given as keywords (``model(**inputs)``), and the other options."""
    batch = {name: value for name, value in options.items() if name in BATCH_KEYS}
    if "input_ids" not in batch:
        raise InputError(
            f"A prompt is needed: a string, messages, `Inputs`, or `input_ids` and the rest as `**inputs`; got "
            f"{', '.join(options) or 'nothing'}."
        )
    return batch, {name: value for name, value in options.items() if name not in batch}


def _counted(types: Tensor, mask: Tensor, fields: dict[str, Tensor], config: Config) -> tuple[Tensor, Tensor]:
    return mrope_positions(
        types,
        mask,
        fields.get("image_grid_thw"),
        fields.get("video_grid_thw"),
        merge=config.vision.spatial_merge_size,
        timestamps=config.timestamps,
        tokens_per_second=config.vision.tokens_per_second,
        second_per_grid=fields.get("second_per_grid_ts"),
    )


def _clocks(fields: dict[str, Tensor], config: Config) -> list[MediaInfo]:
    """What seconds per grid tell of the videos; nothing where there are none."""
    if "second_per_grid_ts" not in fields or "video_grid_thw" not in fields:
        return []
    patch = config.vision.patch_size
    steps = fields["second_per_grid_ts"].flatten().tolist()
    if len(steps) != len(fields["video_grid_thw"]):
        raise InputError(
            f"`second_per_grid_ts` has one entry per video; got {len(steps)} for {len(fields['video_grid_thw'])} videos."
        )
    return [
        MediaInfo((height * patch, width * patch), tuple(index * step for index in range(time)))
        for (time, height, width), step in zip(fields["video_grid_thw"].tolist(), steps, strict=True)
    ]


def _tensor(value: Any, name: str) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"`{name}` must be a tensor, an array or a rectangle of numbers: {error}.") from error


def _ids(given: Mapping[str, Any], config: Config) -> Tensor:
    if "input_ids" not in given:
        raise InputError(f"a batch needs `input_ids`; got {', '.join(given) or 'nothing'}.")
    ids = _tensor(given["input_ids"], "input_ids")
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"`input_ids` are whole numbers [batch seq]; got {ids.dtype} of shape {tuple(ids.shape)}.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= config.text.vocab_size:
        raise InputError(
            f"ids go from 0 to {config.text.vocab_size - 1}; these go from {low} to {high}. Use this checkpoint's own "
            f"tokenizer."
        )
    return ids.long()


def _like_ids(value: Any, ids: Tensor, name: str) -> Tensor:
    array = _tensor(value, name).to(ids.device)
    array = array[None] if array.ndim == 1 else array
    if array.shape != ids.shape:
        raise InputError(f"`{name}` is [batch seq] like `input_ids` {tuple(ids.shape)}; got {tuple(array.shape)}.")
    return array.long()


def _check_pixels(fields: dict[str, Tensor], pixels: str, grids: str, kind: int, config: Config) -> None:
    """Raises unless pixel rows and grids are both there, or both not, and count the same patches."""
    if pixels not in fields and grids not in fields:
        return
    if pixels not in fields or grids not in fields:
        missing, there = (pixels, grids) if grids in fields else (grids, pixels)
        raise InputError(f"`{pixels}` and `{grids}` come together; there is `{there}` but no `{missing}`.")
    vision = config.vision
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    rows = fields[pixels]
    if rows.ndim != 2 or rows.shape[1] != width or not rows.is_floating_point():
        raise InputError(
            f"`{pixels}` is [patches {width}] of floats for this model; got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    counts = [t * h * w for t, h, w in read_grids(fields[grids], vision.spatial_merge_size, kind)]
    if sum(counts) != rows.shape[0]:
        raise InputError(
            f"`{pixels}` has {rows.shape[0]} patches, `{grids}` describes {sum(counts)} (by {KIND_NAMES[kind]} {counts}). "
            f"Take both from one call of the processor."
        )


def _types(ids: Tensor, mask: Tensor, fields: dict[str, Tensor], config: Config) -> Tensor:
    """Token types from ids and grids.

    Where ids have more placeholders than grids describe, those that no vision start introduces are text: a model can
    emit a placeholder's id in an answer.
    """
    merge, types = config.vision.spatial_merge_size, torch.full_like(ids, TEXT)
    for kind, pad in ((IMAGE, config.image_token_id), (VIDEO, config.video_token_id)):
        wanted = sum(t * h * w for t, h, w in read_grids(fields.get(_PIXELS[kind][1]), merge, kind)) // merge**2
        slots = (ids == pad) & (mask != 0)
        if int(slots.sum()) > wanted:
            slots = slots & _introduced(ids, slots, config.vision_start_token_id)
        types[slots] = kind
    return types


def _introduced(ids: Tensor, slots: Tensor, start: int) -> Tensor:
    """[batch seq] whether a slot belongs to a run of slots that begins right after a vision start."""
    before = torch.nn.functional.pad(ids, (1, 0), value=-1)[:, :-1] == start
    first = slots & ~torch.nn.functional.pad(slots, (1, 0))[:, :-1]
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    run_start = torch.where(first, place, 0).cummax(-1).values
    return before.gather(-1, run_start) & slots


def _given_positions(value: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    places = _tensor(value, "position_ids").to(mask.device)
    if places.ndim == 3 and places.shape[0] == 4:  # transformers' generate puts plain text positions in front
        places = places[1:]
    if places.ndim != 3 or places.shape != (3, *mask.shape):
        raise InputError(f"`position_ids` are [3 batch seq], here {(3, *mask.shape)}; got {tuple(places.shape)}.")
    reached = torch.where(mask[None] != 0, places, -1).amax((0, 2))
    return places.long(), reached.long() + 1
