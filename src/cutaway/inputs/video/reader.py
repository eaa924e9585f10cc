"""Read videos in files: counts and times from a scan of the packets, then only the frames that are needed.

The only place that knows PyAV. A scan reads the file once without decoding, so that the count is exact, variable rates
and edit lists included, and each frame can be sought by its own time: what is read is what a player shows. Which frames
are needed is decided in `cutaway.inputs.video.sampling`.
"""

from __future__ import annotations

import io
import struct
import warnings
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import av
import av.error
import numpy as np
import torch
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image
from torch import Tensor

from cutaway.errors import InputError, LimitError
from cutaway.inputs.image.open import DAMAGED, decoding, image_file, on_white, open_image, read_image
from cutaway.inputs.media import ANIMATED_FORMATS, DEMUXERS, IMAGE_FORMATS

ANIMATION_PIXELS = 2**28
"""Canvas times frames of an animated image: each frame is drawn over those before it, wanted or not."""

AHEAD = 32 * 2**20
"""Bytes of frames that are decoded at a time: a dozen of 720p, two of 2,160p."""

_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(DEMUXERS)}

_DAMAGED = (av.error.FFmpegError, OSError, ValueError, IndexError, MemoryError)
"""What PyAV raises over damaged files."""


@dataclass(frozen=True, eq=False)
class VideoSource:
    """Frames that can be read by number.

    - `count`: how many there are; `fps`: frames a second, None if nothing says; `size`: (height, width), upright.
    - `read(numbers)`: an iterator of uint8 [3 height width], one for each of the ascending `numbers`.
    """

    count: int
    fps: float | None
    size: tuple[int, int]
    read: Callable[[Sequence[int]], Iterator[Tensor]]


def open_file(source: Any, name: str) -> VideoSource:
    """Open a video file (path, bytes, open file, ``data:`` URI), an animated image, or a still, a video of one frame.

    Raises `InputError` for a missing, foreign, damaged or cut-off file, `LimitError` for more pixels than are read.
    """
    file = image_file(source, name)
    if _is_image(file):
        content = file.read_bytes() if isinstance(file, Path) else file.getvalue()  # frames are read later on
        return open_image_file(open_image(content, name), name)
    return _open_video(file, name)


def open_image_file(image: Image.Image, name: str) -> VideoSource:
    """Open a Pillow image: all frames of an animation, else the one. Raises `LimitError` as `open_file`."""
    with decoding(name):
        count = int(getattr(image, "n_frames", 1)) if image.format in ANIMATED_FORMATS else 1
        if count > 1 and count * image.width * image.height > ANIMATION_PIXELS:
            raise LimitError(
                f"An animation may have {ANIMATION_PIXELS:,} pixels over all its frames; {name} has {count} frames of "
                f"{image.height} x {image.width}. Shrink it, or give its frames as a list."
            )
        rate = _animation_rate(image, count) if count > 1 else None

    def read(numbers: Sequence[int]) -> Iterator[Tensor]:
        current = image.tell()
        try:
            for number in numbers:
                with decoding(name):
                    if count > 1:
                        image.seek(number)
                    pixels = read_image(image, name=name)
                yield pixels
        finally:
            with decoding(name):
                image.seek(current)  # the caller may hold the image

    pixels = next(read([0]))
    return VideoSource(count, rate, (pixels.shape[-2], pixels.shape[-1]), read)


def _animation_rate(image: Image.Image, count: int) -> float:
    """Frames a second on average, from the durations that each frame has in milliseconds."""
    current, duration = image.tell(), 0.0
    for number in range(count):
        image.seek(number)
        image.load()  # WebP has no duration before
        duration += float(image.info.get("duration") or 100)  # viewers show frames without one for 100
    image.seek(current)
    # Durations are rounded; a rate a hair above the true one would cost a frame where it is truncated.
    return round(1000 * count / duration, 6)


def _is_image(file: Path | io.BytesIO) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=IMAGE_FORMATS):
                return True
    except Image.DecompressionBombError:
        return True
    except DAMAGED:
        return False
    finally:
        if isinstance(file, io.BytesIO):
            file.seek(0)


@dataclass(frozen=True)
class _Scan:
    """What a pass over the packets tells: presentation times in order, None where the container has none."""

    count: int
    times: list[int] | None
    keys: list[int]


def _open_video(file: Path | io.BytesIO, name: str) -> VideoSource:
    with _Reader(file, name) as reader:
        scan, fps = reader.scan(), reader.rate()
    with _Reader(file, name) as reader:
        first = next(reader.frames([0], scan))
    if fps is None and scan.times and len(scan.times) > 1 and reader.time_base:
        span = (scan.times[-1] - scan.times[0]) * reader.time_base
        fps = (scan.count - 1) / span if span > 0 else None

    def read(numbers: Sequence[int]) -> Iterator[Tensor]:
        done = 0
        try:
            with _Reader(file, name) as again:
                for pixels in _ahead(again.frames(numbers, scan)):
                    yield pixels
                    done += 1
        except _Unseekable:
            with _Reader(file, name) as again:
                yield from _ahead(again.frames(numbers[done:], replace(scan, times=None)))

    return VideoSource(scan.count, fps, (first.shape[-2], first.shape[-1]), read)


def _ahead(frames: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same frames, some `AHEAD` bytes of them decoded before the first is yielded.

    The threads of what is done with a frame go on waiting busily for a while, in the way of the decoder's own.
    """
    buffer: deque[Tensor] = deque()
    for frame in frames:
        buffer.append(frame)
        if len(buffer) * frame.numel() >= AHEAD:
            while buffer:
                yield buffer.popleft()
    yield from buffer


class _Unseekable(Exception):  # noqa: N818 - a signal between two functions, no error of the caller's
    """After a seek the container's times are not those of the scan."""


class _Reader:
    """One opened video stream; every error of the library surfaces as `InputError`."""

    def __init__(self, file: Path | io.BytesIO, name: str, **options: str):
        self.file, self.name, self.options = file, name, options
        self.time_base: float | None = None

    def __enter__(self) -> _Reader:
        # A name or a playlist must lead nowhere else: no protocol but files, no demuxer that opens other files.
        target: Any = f"file:{self.file}" if isinstance(self.file, Path) else self.file
        if isinstance(self.file, io.BytesIO):
            self.file.seek(0)
        try:
            opened = av.open(target, mode="r", options=_OPTIONS | self.options)
            self.container = cast("InputContainer", opened)
        except _DAMAGED as error:
            raise self._broken("is no video that can be read", error) from error
        try:
            self.stream = self._pick()
        except InputError:
            self.container.close()
            raise
        self.time_base = float(self.stream.time_base) if self.stream.time_base else None
        return self

    def __exit__(self, *_: object) -> None:
        self.container.close()

    def _pick(self) -> VideoStream:
        streams = list(self.container.streams.video)
        if not streams:
            raise InputError(f"A video must have images; {self.name} has none in it. Give another file.")
        self.stream = streams[0]
        if self.stream.codec_context is None:
            raise self._broken("has images in a coding that is not known here")
        self.stream.thread_type = "AUTO"
        width, height, limit = self.stream.codec_context.width, self.stream.codec_context.height, Image.MAX_IMAGE_PIXELS
        if limit is not None:
            if width * height > limit:
                raise LimitError(
                    f"A frame may have {limit:,} pixels; {self.name} has {height} x {width}. Shrink it, or raise "
                    "PIL.Image.MAX_IMAGE_PIXELS."
                )
            self.stream.codec_context.options = {"max_pixels": str(limit)}  # a later frame may be larger
        return self.stream

    def _broken(self, what: str, error: BaseException | None = None) -> InputError:
        shown = f" ({self.file})" if isinstance(self.file, Path) else ""
        reason = f": {getattr(error, 'strerror', None) or error}" if error else ""
        return InputError(f"{self.name}{shown} {what}{reason}. The file is damaged or no video: fetch it again.")

    def rate(self) -> float | None:
        """Frames a second as the container states them."""
        rate = self.stream.average_rate or self.stream.guessed_rate
        return float(rate) if rate else None

    def scan(self) -> _Scan:
        """Return counts and times of all frames that are shown, from the packets alone."""
        times: list[int | None] = []
        keys, packets = [], 0
        try:
            for packet in self.container.demux(self.stream):
                if not packet.size:
                    continue
                packets += 1
                if packet.is_discard:
                    continue
                times.append(packet.pts)
                if packet.is_keyframe and packet.pts is not None:
                    keys.append(packet.pts)
        except _DAMAGED as error:
            raise self._broken("cannot be read to its end", error) from error
        if not times:
            raise self._broken("holds no frame")
        # Only this container's table of frames is exact enough to tell that the end is missing.
        if "mp4" in self.container.format.name and packets < self.stream.frames and not self.options:
            with _Reader(self.file, self.name, ignore_editlist="1") as everything:  # an edit list may hide packets
                packets = everything.packets()
            if packets < self.stream.frames:
                raise self._broken(f"is cut short: it announces {self.stream.frames} frames and holds {packets}")
        known = sorted(time for time in times if time is not None)
        exact = len(known) == len(times) and len(set(known)) == len(known)
        # Times in the packets' own order from a codec that reorders frames are counted, not shown (AVI).
        exact = exact and not (known == times and len(known) > 1 and self.stream.codec_context.has_b_frames)
        return _Scan(len(times), known if exact else None, sorted(keys))

    def packets(self) -> int:
        """How many packets the stream has, shown or not."""
        try:
            return sum(1 for packet in self.container.demux(self.stream) if packet.size)
        except _DAMAGED as error:
            raise self._broken("cannot be read to its end", error) from error

    def frames(self, numbers: Sequence[int], scan: _Scan) -> Iterator[Tensor]:
        """Yield uint8 [3 height width] of each of the ascending `numbers`."""
        shown = self._by_time(numbers, scan.times, scan.keys) if scan.times else self._in_order(numbers)
        last, pixels = None, None
        try:
            for frame in shown:
                if frame is not last or pixels is None:
                    last, pixels = frame, _rgb(frame)
                yield pixels
        except _DAMAGED as error:
            raise self._broken("cannot be decoded", error) from error

    def _in_order(self, numbers: Sequence[int]) -> Iterator[VideoFrame]:
        """For containers without times: decode on and count."""
        decoded, frame, at = self.container.decode(self.stream), None, -1
        for number in numbers:
            while at < number:
                following = next(decoded, None)
                if following is None:
                    break
                frame, at = following, at + 1
            if frame is None:
                raise self._broken(f"has no frame {number} that can be decoded")
            yield frame

    def _by_time(self, numbers: Sequence[int], times: list[int], keys: list[int]) -> Iterator[VideoFrame]:
        """Seek to the key frame before each wanted frame, unless decoding on gets there as soon."""
        decoded, frame, ahead = self.container.decode(self.stream), None, None
        for number in numbers:
            wanted, before = times[number], bisect_right(keys, times[number])
            if before and number and (frame is None or frame.pts is None or keys[before - 1] > frame.pts):
                decoded, ahead = self._seek(keys[before - 1], keys)
            # A packet may hold no image to show; then the one on display at that time is taken.
            while frame is None or frame.pts is None or frame.pts < wanted:
                ahead = ahead or next(decoded, None)
                if ahead is None or (frame is not None and ahead.pts is not None and ahead.pts > wanted):
                    break
                frame, ahead = ahead, None
            if frame is None:
                raise self._broken(f"has no frame {number} that can be decoded")
            yield frame

    def _seek(self, key: int, keys: list[int]) -> tuple[Iterator[VideoFrame], VideoFrame]:
        """A decoder that starts at or before the key frame shown at `key`, and the first frame from it."""
        self.container.seek(key, stream=self.stream)
        decoded = self.container.decode(self.stream)
        first = next(decoded, None)
        if first is None or first.pts is None or first.pts > key or first.pts not in keys:
            raise _Unseekable
        return decoded, first


def _rgb(frame: VideoFrame) -> Tensor:
    """Return uint8 [3 height width], turned and mirrored by the file's display matrix, transparent pixels on white."""
    if any(part.is_alpha for part in frame.format.components):
        array = on_white(frame.to_ndarray(format="rgba"))
    else:
        array = frame.to_ndarray(format="rgb24")
    return torch.from_numpy(np.ascontiguousarray(_as_displayed(array, frame))).permute(2, 0, 1)


def _as_displayed(array: np.ndarray, frame: VideoFrame) -> np.ndarray:
    """Turn and mirror [height width 3] by the display matrix, to the nearest quarter turn.

    The matrix maps a stored pixel (x, y) to (a x + c y, b x + d y) on the screen, up to a shift.
    """
    side = frame.side_data.get("DISPLAYMATRIX")
    if side is None or side.buffer_size < 36:
        return array
    a, b, _, c, d = struct.unpack("=5i", bytes(side)[:20])
    if a * d - b * c == 0:
        return array
    if abs(b) + abs(c) > abs(a) + abs(d):  # x and y change places
        array, a, d = array.swapaxes(0, 1), c, b
    return array[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
