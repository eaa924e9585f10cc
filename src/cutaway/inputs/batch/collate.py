"""Build `Inputs` from arrays with the keys of transformers' processor: checks, token types, positions and geometry.

The processor ends here, and so does a batch that was prepared elsewhere (transformers' processor, a data set of ids).
Nothing is tokenised, opened or resized here.
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
    """Create tensors on the CPU and outside inference mode, whatever the caller's defaults are."""
    with torch.device("cpu"), torch.inference_mode(False):
        yield


@cpu_tensors()
def build_inputs(
    mapping: Mapping[str, Any], config: Config, sources: tuple[Sequence[MediaInfo], Sequence[MediaInfo]] | None = None
) -> Inputs:
    """Return `Inputs` built from any mapping with the keys of transformers' processor.

    - `input_ids` [batch seq] or [seq] are required.
    - `attention_mask` [batch seq], of 0 and 1 or bool: without it nothing is masked.
    - `mm_token_type_ids` [batch seq]: without them they follow from ids and grids.
    - `position_ids` [3 batch seq], or [4 batch seq] as transformers' generate makes them, are kept; without them they
      are counted (`mrope_positions`).
    - `sources`: the images and the videos as they came, for the geometry; not a key.

    Raises `InputError` for an unknown key, for values that a key cannot have, and for parts that do not fit together.
    """
    arrays = {key: value for key, value in mapping.items() if value is not None}
    if "role" in arrays:
        raise InputError("Messages are a list of dicts; got one message. Put it into a list.")
    unknown = [key for key in arrays if key not in BATCH_KEYS]
    if unknown:
        raise InputError(
            f"A batch has the keys {', '.join(BATCH_KEYS)}; got {', '.join(map(repr, unknown))} as well. "
            f"Leave them out."
        )
    ids = _ids(arrays, config)
    mask = check_mask(_like_ids(arrays.get("attention_mask", torch.ones_like(ids)), ids, "attention_mask")).long()
    fields = {key: _tensor(arrays[key], key) for key in KEYS[3:] if key in arrays}
    for kind, (pixels, grids) in _PIXELS.items():
        _check_pixels(fields, pixels, grids, kind, config)
    if "mm_token_type_ids" in arrays:
        types = _whole(_like_ids(arrays["mm_token_type_ids"], ids, "mm_token_type_ids"), "mm_token_type_ids")
    else:
        types = _types(ids, mask, fields, config)
    positions, next_position = _count_positions(types, mask, fields, config)
    if "position_ids" in arrays:
        positions, next_position = _check_positions(arrays["position_ids"], mask)
    geometry = Geometry(
        ids,
        types,
        mask,
        fields.get("image_grid_thw"),
        fields.get("video_grid_thw"),
        config,
        ((), _video_sources(fields, config)) if sources is None else sources,
    )
    return Inputs(ids, mask, types, positions, next_position, **fields, geometry=geometry)


def batch_of_keywords(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The prepared batch that was given as keywords (``model(**inputs)``), and the other options."""
    batch = {name: value for name, value in options.items() if name in BATCH_KEYS}
    if "input_ids" not in batch:
        raise InputError(
            f"A prompt is needed: a string, messages, `Inputs`, or `input_ids` and the rest as `**inputs`; got "
            f"{', '.join(options) or 'nothing'}."
        )
    return batch, {name: value for name, value in options.items() if name not in batch}


def check_mask(mask: Tensor) -> Tensor:
    """Return an attention mask of 0 and 1 (or bool) as it is; raise `InputError` for any other value."""
    if mask.dtype != torch.bool and mask.device.type != "meta" and not bool(((mask == 0) | (mask == 1)).all()):
        others = mask[(mask != 0) & (mask != 1)].flatten()
        raise InputError(
            f"`attention_mask` has the values 1 (a token) and 0 (padding), or is bool; got {others[0].item()}. A batch "
            f"holds one sample per entry of the first axis: give packed samples one by one, and an additive mask as "
            f"`mask == 0`."
        )
    return mask


def _count_positions(types: Tensor, mask: Tensor, fields: dict[str, Tensor], config: Config) -> tuple[Tensor, Tensor]:
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


def _video_sources(fields: dict[str, Tensor], config: Config) -> list[MediaInfo]:
    """Return each video's size and the seconds of its grids, from `second_per_grid_ts`; an empty list without it."""
    if "second_per_grid_ts" not in fields or "video_grid_thw" not in fields:
        return []
    patch = config.vision.patch_size
    steps = fields["second_per_grid_ts"].flatten().tolist()
    if len(steps) != len(fields["video_grid_thw"]):
        raise InputError(
            f"`second_per_grid_ts` has one entry per video; got {len(steps)} for "
            f"{len(fields['video_grid_thw'])} videos."
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


def _ids(arrays: Mapping[str, Any], config: Config) -> Tensor:
    if "input_ids" not in arrays:
        raise InputError(f"A batch needs `input_ids`; got {', '.join(map(str, arrays)) or 'nothing'}.")
    ids = _tensor(arrays["input_ids"], "input_ids")
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"`input_ids` are whole numbers [batch seq]; got {ids.dtype} of shape {tuple(ids.shape)}.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= config.text.vocab_size:
        raise InputError(
            f"Token ids of this model go from 0 to {config.text.vocab_size - 1}; these go from {low} to {high}. Use "
            f"this checkpoint's own tokenizer."
        )
    return ids.long()


def _like_ids(value: Any, ids: Tensor, name: str) -> Tensor:
    array = _tensor(value, name).to(ids.device)
    array = array[None] if array.ndim == 1 else array
    if array.shape != ids.shape:
        raise InputError(f"`{name}` is [batch seq] like `input_ids` {tuple(ids.shape)}; got {tuple(array.shape)}.")
    return array


def _whole(array: Tensor, name: str) -> Tensor:
    """Return an array of whole numbers as int64; raise `InputError` for fractions, infinities and NaN."""
    if array.is_floating_point() and not bool((array == array.round()).logical_and(array.isfinite()).all()):
        raise InputError(f"`{name}` are whole numbers; got {array.dtype} with fractions.")
    return array.long()


def _check_pixels(fields: dict[str, Tensor], pixels: str, grids: str, kind: int, config: Config) -> None:
    """Raise `InputError` unless patches and grids are both there, or both not, and agree in number."""
    if pixels not in fields and grids not in fields:
        return
    if pixels not in fields or grids not in fields:
        missing, there = (pixels, grids) if grids in fields else (grids, pixels)
        raise InputError(f"`{pixels}` and `{grids}` come together; got `{there}` but no `{missing}`. Give both.")
    vision = config.vision
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    patches = fields[pixels]  # [patches channels*time*height*width]
    if patches.ndim != 2 or patches.shape[1] != width or not patches.is_floating_point():
        raise InputError(
            f"`{pixels}` is [patches {width}] of floats for this model; got {patches.dtype} of shape "
            f"{tuple(patches.shape)}."
        )
    counts = [t * h * w for t, h, w in read_grids(fields[grids], vision.spatial_merge_size, kind)]
    if sum(counts) != patches.shape[0]:
        raise InputError(
            f"`{pixels}` has {patches.shape[0]} patches, `{grids}` describes {sum(counts)} (by "
            f"{KIND_NAMES[kind]} {counts}). "
            f"Take both from one call of the processor."
        )


def _types(ids: Tensor, mask: Tensor, fields: dict[str, Tensor], config: Config) -> Tensor:
    """Return the token types [batch seq] that ids and grids imply.

    Where ids have more placeholders than grids describe, those that do not follow a vision start are text: a model can
    write a placeholder's id in an answer.
    """
    merge, types = config.vision.spatial_merge_size, torch.full_like(ids, TEXT)
    for kind, pad in ((IMAGE, config.image_token_id), (VIDEO, config.video_token_id)):
        expected = sum(t * h * w for t, h, w in read_grids(fields.get(_PIXELS[kind][1]), merge, kind)) // merge**2
        slots = (ids == pad) & (mask != 0)
        if int(slots.sum()) > expected:
            slots = slots & _introduced(ids, slots, config.vision_start_token_id)
        types[slots] = kind
    return types


def _introduced(ids: Tensor, slots: Tensor, start: int) -> Tensor:
    """Return [batch seq] bool: whether a slot belongs to a run of slots that begins right after a vision start."""
    before = torch.nn.functional.pad(ids, (1, 0), value=-1)[:, :-1] == start
    first = slots & ~torch.nn.functional.pad(slots, (1, 0))[:, :-1]
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    run_start = torch.where(first, position, 0).cummax(-1).values
    return before.gather(-1, run_start) & slots


def _check_positions(value: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the caller's `position_ids` as [3 batch seq] and the next positions [batch]."""
    positions = _tensor(value, "position_ids").to(mask.device)
    if positions.ndim == 3 and positions.shape[0] == 4:  # transformers' generate puts plain text positions in front
        positions = positions[1:]
    if positions.ndim != 3 or positions.shape != (3, *mask.shape):
        raise InputError(f"`position_ids` are [3 batch seq], here {(3, *mask.shape)}; got {tuple(positions.shape)}.")
    positions = _whole(positions, "position_ids")
    largest = torch.where(mask[None] != 0, positions, -1).amax((0, 2))  # [batch]
    return positions, largest + 1
