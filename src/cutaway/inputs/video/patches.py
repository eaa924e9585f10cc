"""Turn a video file, a list of frames or an array into the rows of patches that the vision encoder reads.

Sampling is in `cutaway.inputs.video.sampling`, reading files in `reader`, the arithmetic in
`cutaway.inputs.image.patches`; this module puts them in order and keeps what prompts, positions and geometry need. It
knows nothing of tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.image.open import read_image, to_numpy, video_array
from cutaway.inputs.image.patches import Patches, check_divisible, fit_image, fit_video, patch_rows
from cutaway.inputs.media import arrange_metadata, split_pair
from cutaway.inputs.options import array_layout
from cutaway.inputs.settings import VideoSettings
from cutaway.inputs.video.reader import VideoSource, open_file, open_image_file
from cutaway.inputs.video.sampling import (
    ASSUMED_FPS,
    Metadata,
    check_count,
    check_rate,
    grid_seconds,
    read_metadata,
    sample,
)

ACCEPTED = (
    "a video file (path, bytes, open file or data: URI), a list of frames, a pair (frames, metadata), "
    "or an array [frames height width channels] or [frames channels height width]"
)


@dataclass(frozen=True, eq=False)
class Video:
    """The sampled frames of a video, not yet decoded.

    - `indices`: the number of each in the source; `total_frames`: how many the source has; `source_fps`: its frames a
      second; `size`: (height, width) in pixels, upright.
    - `frames()`: an iterator of uint8 [3 height width], in order, a few decoded at a time; it can be called again.
    """

    indices: tuple[int, ...]
    source_fps: float
    total_frames: int
    size: tuple[int, int]
    frames: Callable[[], Iterator[Tensor]]


@dataclass(frozen=True, eq=False)
class VideoPatches(Patches):
    """A video as the vision encoder reads it: `Patches`, and when its frames are shown.

    - `indices`: the source number of each frame used, before the last is repeated to fill a temporal grid.
    - `source_fps`, `total_frames`: of the source.
    - `frame_seconds`: when each frame is shown, index / source_fps.
    - `seconds`: the time of each temporal grid, as its stamp says it (3-VL, 3.5): the mean over the grid's frames.
    - `seconds_per_grid`: seconds from one temporal grid to the next (2.5-VL).
    """

    indices: tuple[int, ...]
    source_fps: float
    total_frames: int
    frame_seconds: tuple[float, ...]
    seconds: tuple[float, ...]
    seconds_per_grid: float


def prepare_video(
    source: Any,
    settings: VideoSettings,
    *,
    metadata: Any = None,
    fps: float | None = None,
    num_frames: int | None = None,
    do_sample_frames: bool | None = None,
    layout: str | None = None,
    name: str = "the video",
) -> VideoPatches:
    """Return the patches of `source`; arguments and errors as `open_video`, and the errors of `video_size`.

    Frames are resized and cut one at a time: besides the result only those are held that a file's reader decodes ahead.
    """
    video = open_video(
        source, settings, metadata=metadata, fps=fps, num_frames=num_frames, do_sample_frames=do_sample_frames,
        layout=layout, name=name,
    )  # fmt: skip
    return video_patches(video, settings, name=name)


def video_patches(video: Video, settings: VideoSettings, *, name: str = "the video") -> VideoPatches:
    """Return the patches of an opened video, its frames resized and cut one at a time; errors as `video_size`."""
    count, time = len(video.indices), settings.temporal_patch_size
    size = video_size(count, *video.size, settings, name=name)
    rows = patch_rows(video.frames(), count, size, settings)
    return VideoPatches(
        rows=rows,
        grid=(-(-count // time), size[0] // settings.patch_size, size[1] // settings.patch_size),
        original_size=video.size,
        resized_size=size,
        indices=video.indices,
        source_fps=video.source_fps,
        total_frames=video.total_frames,
        frame_seconds=tuple(index / video.source_fps for index in video.indices),
        seconds=grid_seconds(video.indices, video.source_fps, time),
        seconds_per_grid=time / (count / video.total_frames * video.source_fps),
    )


def open_video(
    source: Any,
    settings: VideoSettings,
    *,
    metadata: Any = None,
    fps: float | None = None,
    num_frames: int | None = None,
    do_sample_frames: bool | None = None,
    layout: str | None = None,
    name: str = "the video",
) -> Video:
    """Sample the frames of `source` without decoding them.

    - `source`: a video file (path, bytes, open file, ``data:`` URI), an animated image, a still one (a video of one
      frame), a list of frames (each anything that is an image, all of one size), or an array or tensor
      [frames height width channels] or [frames channels height width]; or a pair of one of these and its metadata.
    - `metadata`: of frames without a file: `fps` of the source, `total_num_frames` of it, `frames_indices` of those
      that came; a mapping or an object, each part may be missing. Frames that its indices show to be a selection are
      not sampled again.
    - `fps`, `num_frames`: sample so many frames a second, or so many in all, even where the settings do not sample.
      With `do_sample_frames=False`, `fps` is the rate of the given frames where the metadata has none.
    - `layout`: ``"thwc"`` or ``"tchw"`` for an array whose shape does not tell.

    A rate that nothing gives is taken as 24 frames a second, with a warning. Raises `InputError` for everything that
    is no video or contradicts itself, `LimitError` for frames of too many pixels.
    """
    fps = None if fps is None else check_rate(fps, "fps")
    num_frames = None if num_frames is None else check_count(num_frames, "num_frames")
    if fps is not None and num_frames is not None:
        raise InputError(
            f"`fps` and `num_frames` exclude each other; got fps={fps} and num_frames={num_frames}. Give one."
        )
    source, own_metadata = split_pair(source)
    if metadata is not None and own_metadata is not None:
        raise InputError(f"Metadata is given once; {name} is a pair with its own. Leave `video_metadata` out for it.")
    described = read_metadata(metadata if own_metadata is None else own_metadata, name)
    opened = _open(source, layout, name)
    selected = _check_selection(described, opened.count, name)
    wanted = do_sample_frames
    if wanted is None:
        wanted = fps is not None or num_frames is not None or (settings.do_sample_frames and not selected)
    if wanted and selected:
        raise InputError(
            f"Frames are sampled once; {name} was sampled already: frames_indices name {opened.count} frames of a "
            "longer video. Leave fps, num_frames and do_sample_frames out, or give all frames."
        )
    rate = described.fps or opened.fps or (None if wanted else fps) or _assumed_rate(opened.count)
    if wanted:
        if described.total not in (None, opened.count):
            raise InputError(
                f"Metadata must fit the frames: that of {name} says {described.total}, got {opened.count}. Give all to "
                "be sampled, or do_sample_frames=False with frames_indices."
            )
        numbers = sample(opened.count, rate, settings, fps=fps, num_frames=num_frames, name=name)
        return Video(numbers, rate, opened.count, opened.size, lambda: opened.read(numbers))
    numbers = tuple(range(opened.count))
    indices, total = _described_frames(described, opened.count, name)
    return Video(indices, rate, total, opened.size, lambda: opened.read(numbers))


class VideoBatch:
    """The videos of a call, in order: opened and sampled first, their frames decoded when their patches are made."""

    def __init__(self, sources: list[Any], settings: VideoSettings, options: dict[str, Any]) -> None:
        """`settings` have the call's options applied; `options` are those for videos (`fps`, `video_metadata` …)."""
        self._settings = settings
        metadata = arrange_metadata(options.get("video_metadata"), len(sources))
        selection = {key: options[key] for key in ("fps", "num_frames", "do_sample_frames") if key in options}
        self._videos: list[Video] = []
        for index, (source, message) in enumerate(zip(sources, metadata, strict=True)):
            is_array = isinstance(split_pair(source)[0], np.ndarray | Tensor | list | tuple)
            axes = array_layout(options, video=True) if is_array else None
            self._videos.append(
                open_video(source, settings, metadata=message, layout=axes, name=f"videos[{index}]", **selection)
            )

    def counts(self) -> list[int]:
        """Return the tokens of every video from its size and number of frames, time stamps not counted."""
        return [
            video_token_count(len(video.indices), *video.size, self._settings, name=f"videos[{index}]")
            for index, video in enumerate(self._videos)
        ]

    def patches(self) -> list[VideoPatches]:
        """Return the patches of every video."""
        return [
            video_patches(video, self._settings, name=f"videos[{index}]") for index, video in enumerate(self._videos)
        ]


def video_size(
    frames: int, height: int, width: int, settings: VideoSettings, *, name: str = "the video"
) -> tuple[int, int]:
    """Return (height, width) in pixels of the resized frames of a video of `frames` frames of `height` x `width`.

    A single frame counts as a temporal grid of its repetitions. Raises `InputError` for a video that no size fits.
    """
    if not settings.do_resize:
        check_divisible((height, width), settings, name)
        return height, width
    frames = max(frames, settings.temporal_patch_size)
    low, high, factor = settings.min_pixels, settings.max_pixels, settings.factor
    if settings.cap_pixels_per_frame:
        high = _capped_pixels(frames, settings)
    if settings.whole_video:
        return fit_video(frames, height, width, factor, low, high, settings.temporal_patch_size, name)
    return fit_image(height, width, factor, low, high, name)


def video_token_count(frames: int, height: int, width: int, settings: VideoSettings, *, name: str = "the video") -> int:
    """Return how many video tokens `frames` frames of `height` x `width` pixels become, time stamps not counted."""
    rows, columns = video_size(frames, height, width, settings, name=name)
    grids = -(-frames // settings.temporal_patch_size)
    return grids * (rows // settings.factor) * (columns // settings.factor)


def _capped_pixels(frames: int, settings: VideoSettings) -> int:
    """`max_pixels` under the cap: for the video where the budget is the video's, else for a frame."""
    area, floor = settings.factor**2, int(settings.min_pixels * 1.05)
    if settings.whole_video:
        share = min(settings.max_video_tokens * area, settings.max_pixels // frames)
        return max(share, floor) * frames
    share = int(settings.max_video_tokens * area * 0.9) * settings.temporal_patch_size // frames
    return max(min(settings.max_pixels, share), floor)


def _open(source: Any, layout: str | None, name: str) -> VideoSource:
    if isinstance(source, np.ndarray | Tensor):
        return _open_array(video_array(to_numpy(source, name), layout, name), name)
    if isinstance(source, list | tuple):
        return _open_list(source, layout, name)
    if layout is not None:
        raise InputError(
            f"`layout` is for arrays and tensors; {name} is {type(source).__name__}; got {layout!r}. Leave it out."
        )
    if isinstance(source, Image.Image):
        return open_image_file(source, name)
    if isinstance(source, str | Path | bytes | bytearray | memoryview) or hasattr(source, "read"):
        return open_file(source, name)
    raise InputError(f"{name} must be {ACCEPTED}; got {type(source).__name__}.")


def _open_array(array: np.ndarray, name: str) -> VideoSource:
    """For [frames height width channels]."""

    def read(numbers: Sequence[int]) -> Iterator[Tensor]:
        return (read_image(array[number], layout="hwc", name=f"frame {number} of {name}") for number in numbers)

    return VideoSource(len(array), None, (array.shape[1], array.shape[2]), read)


def _open_list(frames: Sequence[Any], layout: str | None, name: str) -> VideoSource:
    if not frames:
        raise InputError(f"{name} must have a frame; got an empty list. Give at least one image.")
    layouts = {None: None, "thwc": "hwc", "tchw": "chw", "hwc": "hwc", "chw": "chw"}
    if layout not in layouts:
        raise InputError(f"`layout` must be 'hwc' or 'chw' for the frames of a video; got {layout!r}.")

    def one(number: int) -> Tensor:
        frame = frames[number]
        axes = layouts[layout] if isinstance(frame, np.ndarray | Tensor) else None
        return read_image(frame, layout=axes, name=f"frame {number} of {name}")

    def read(numbers: Sequence[int]) -> Iterator[Tensor]:
        for number in numbers:
            pixels = one(number)
            if tuple(pixels.shape[-2:]) != size:
                raise InputError(
                    f"the frames of {name} must have one size; got {size[0]} x {size[1]} pixels for the first and "
                    f"{pixels.shape[-2]} x {pixels.shape[-1]} for frame {number}. Resize them, or give them as images."
                )
            yield pixels

    first = one(0)
    size = (first.shape[-2], first.shape[-1])
    return VideoSource(len(frames), None, size, read)


def _check_selection(described: Metadata, count: int, name: str) -> bool:
    """Whether the metadata shows the `count` frames to be a selection from a longer video; raises if they cannot be."""
    if described.indices is None:
        return False
    if len(described.indices) != count:
        raise InputError(
            f"The metadata's frames_indices of {name} must name every frame; "
            f"got {len(described.indices)} of them for {count} frames."
        )
    if described.total is not None and max(described.indices) >= described.total:
        raise InputError(
            f"frames_indices count from 0 and stay below the total; the metadata of {name} says {described.total} "
            f"frames, got {max(described.indices)}. Correct one of the two."
        )
    return described.indices != tuple(range(count)) or (described.total or count) > count


def _described_frames(described: Metadata, count: int, name: str) -> tuple[tuple[int, ...], int]:
    """(indices, total) of frames that are all used as they came."""
    if described.indices is None:
        if described.total not in (None, count):
            warnings.warn(
                f"The metadata of {name} says {described.total} frames; got {count} without frames_indices, taken as "
                f"frames 0 to {count - 1}.",
                stacklevel=3,
            )
        return tuple(range(count)), count
    if described.total is not None or count == 1:
        return described.indices, described.total or described.indices[-1] + 1
    # Without a total: what there would be if the spacing went on to the end.
    return described.indices, max(
        described.indices[-1] + 1, round(count * (described.indices[-1] - described.indices[0]) / (count - 1))
    )


def _assumed_rate(count: int) -> float:
    if count > 1:
        warnings.warn(
            f"A video came without its rate and is taken as {ASSUMED_FPS:g} frames a second. "
            'Give video_metadata=[{"fps": …}] for right times and sampling.',
            stacklevel=3,
        )
    return ASSUMED_FPS
