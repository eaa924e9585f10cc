"""Which frames of a video are taken, and when they are shown: arithmetic on counts and rates alone.

Seconds are computed from frame numbers and the source's rate, never from a file's packets, since the models were
trained on that. This module does not know frames, files or pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cutaway.errors import InputError, LimitError
from cutaway.inputs.settings import VideoSettings

ASSUMED_FPS = 24.0
"""Frames a second of a video that comes without a rate."""

_KEYS = ("fps", "total_num_frames", "frames_indices")
_IDLE = {"width", "height", "duration", "video_backend", "do_sample_frames"}
"""Keys of metadata that other tools write and nothing here needs."""


@dataclass(frozen=True)
class Metadata:
    """What the caller says of a video: frames a second, frames of the whole video, and which of them came."""

    fps: float | None = None
    total: int | None = None
    indices: tuple[int, ...] | None = None


def read_metadata(source: Any, name: str = "the video") -> Metadata:
    """`source`, a mapping or an object with any of `fps`, `total_num_frames`, `frames_indices`; None says nothing.

    Raises `InputError` for unknown keys and for values that no video has.
    """
    if source is None or isinstance(source, Metadata):
        return source or Metadata()
    if isinstance(source, Mapping):
        strange = sorted(str(key) for key in set(source) - set(_KEYS) - _IDLE)
        if strange:
            raise InputError(f"the metadata of {name} may have {', '.join(_KEYS)}, got {', '.join(strange)}")
        values = [source.get(key) for key in _KEYS]
    elif any(hasattr(source, key) for key in _KEYS):
        values = [getattr(source, key, None) for key in _KEYS]
    else:
        raise InputError(f"the metadata of {name} must be a mapping with {', '.join(_KEYS)}, got {source!r}")
    fps, total, indices = values
    return Metadata(
        fps=None if fps is None else check_rate(fps, f"the metadata's fps of {name}"),
        total=None if total is None else check_count(total, f"the metadata's total_num_frames of {name}"),
        indices=None if indices is None else _indices(indices, name),
    )


def check_rate(value: Any, what: str) -> float:
    """`value` as a rate in frames a second; raises `InputError` unless it is a finite number above 0."""
    sound = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not sound or not math.isfinite(value) or value <= 0:
        raise InputError(f"{what} must be frames a second, a number above 0, got {value!r}")
    return float(value)


def check_count(value: Any, what: str) -> int:
    """`value` as a count; raises `InputError` unless it is a whole number above 0."""
    sound = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not sound or not math.isfinite(value) or value < 1 or value != int(value):
        raise InputError(f"{what} must be a whole number above 0, got {value!r}")
    return int(value)


def sample(
    total: int,
    source_fps: float,
    settings: VideoSettings,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    name: str = "the video",
) -> tuple[int, ...]:
    """Indices, ascending, of the frames taken from `total` frames shown at `source_fps` a second.

    `num_frames` asks for a count, `fps` for a rate, neither for what the settings say. Videos as a whole (3-VL, 3.5)
    are sampled evenly with both ends, and more frames than there are repeat some. Otherwise (2-VL, 2.5-VL) the count is
    made even and frames are taken from the start on. Fewer frames than a temporal grid has are all taken.

    Raises `InputError` for both arguments at once, for neither without a default, and for a count that cannot be had.
    """
    if fps is not None and num_frames is not None:
        raise InputError(f"fps and num_frames exclude each other, got fps={fps} and num_frames={num_frames}; give one")
    if fps is None and num_frames is None:
        num_frames, fps = settings.num_frames, settings.fps
        if fps is None and num_frames is None:
            raise InputError(f"sampling frames of {name} needs fps= or num_frames=, and these settings have no default")
    if num_frames is not None and num_frames > max(total, settings.max_frames):
        raise LimitError(
            f"num_frames may be at most {settings.max_frames} or the video's own count, got {num_frames} for {total} "
            "frames; ask for fewer"
        )
    if settings.whole_video:
        return _with_both_ends(total, source_fps, settings, fps, num_frames)
    return _from_the_start(total, source_fps, settings, fps, num_frames, name)


def grid_seconds(indices: Sequence[int], fps: float, temporal: int) -> tuple[float, ...]:
    """The second of each temporal grid: the mean over its first and last frame, the last frame repeated to fill it."""
    full = [*indices, *[indices[-1]] * (-len(indices) % temporal)]
    shown = [index / fps for index in full]
    return tuple((shown[i] + shown[i + temporal - 1]) / 2 for i in range(0, len(shown), temporal))


def time_stamp(second: float) -> str:
    """The text that stands before a temporal grid: ``<0.3 seconds>`` (3-VL, 3.5)."""
    return f"<{second:.1f} seconds>"


def _with_both_ends(
    total: int, source_fps: float, settings: VideoSettings, fps: float | None, num_frames: int | None
) -> tuple[int, ...]:
    if num_frames is None:
        count = int(total / source_fps * (fps or 0))
        num_frames = min(max(count, settings.min_frames), settings.max_frames, total)
    return tuple(np.linspace(0, total - 1, num_frames).round().astype(int).tolist())


def _from_the_start(
    total: int, source_fps: float, settings: VideoSettings, fps: float | None, num_frames: int | None, name: str
) -> tuple[int, ...]:
    step = settings.temporal_patch_size
    if total < step and (num_frames or step) <= step:
        return tuple(range(total))
    if num_frames is not None:
        count = max(round(num_frames / step) * step, step)
    else:
        most = math.floor(min(settings.max_frames, total) / step) * step
        wanted = min(max(total / source_fps * (fps or 0), settings.min_frames), most, total)
        count = math.floor(wanted / step) * step
    if count > total:
        raise InputError(
            f"{name} has {total} frames, and num_frames={num_frames} asks for {count}; "
            f"ask for {max(total // step * step, 1)} or fewer"
        )
    # torch.arange, because its float32 values before truncation decide between two frames.
    return tuple(torch.arange(0, total, total / count).int().tolist()[:count])


def _indices(values: Any, name: str) -> tuple[int, ...]:
    if isinstance(values, np.ndarray | torch.Tensor):
        values = values.tolist()
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InputError(f"the metadata's frames_indices of {name} must be a list of frame numbers, got {values!r}")
    result = list(values)
    for value in result:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise InputError(f"the metadata's frames_indices of {name} must be whole numbers from 0 on, got {value!r}")
    return tuple(int(value) for value in result)
