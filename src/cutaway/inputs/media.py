"""Media files and their arrangement: the table of media types, and which image or video belongs to which prompt.

Whatever has to know what a file is, asks `TYPES` here: which suffixes and first bytes are an image or a video, which
Pillow formats and which FFmpeg demuxers may open it. The rest of the module lists the images and videos of a call in
the order of their placeholders. It opens a file only to tell an animation from a still, and decodes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from cutaway.errors import InputError
from cutaway.inputs.text.messages import FROM_ARGUMENTS
from cutaway.storage import check_regular


@dataclass(frozen=True)
class MediaType:
    """A type of file.

    - `kind`: ``"image"`` or ``"video"``; `suffixes`: of its names; `head`: a pattern of its first bytes.
    - `pillow`: the Pillow format that reads it; `demuxer`: FFmpeg's. One of the two is set.
    - `animated`: further frames are an animation; in other image formats they are pages, previews or sizes.
    """

    kind: str
    suffixes: tuple[str, ...]
    head: bytes
    pillow: str | None = None
    demuxer: str | None = None
    animated: bool = False


TYPES = (
    MediaType("image", (".png", ".apng"), rb"\x89PNG", pillow="PNG", animated=True),
    MediaType("image", (".jpg", ".jpeg"), rb"\xff\xd8\xff", pillow="JPEG"),
    MediaType("image", (".gif",), rb"GIF8", pillow="GIF", animated=True),
    MediaType("image", (".webp",), rb"RIFF....WEBP", pillow="WEBP", animated=True),
    MediaType("image", (".bmp",), rb"BM", pillow="BMP"),
    MediaType("image", (".tif", ".tiff"), rb"II[*+]\0|MM\0[*+]", pillow="TIFF"),
    MediaType("image", (".ppm", ".pgm", ".pbm", ".pnm"), rb"P[1-6fFy]\s", pillow="PPM"),
    MediaType("image", (".jp2", ".j2k"), rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", pillow="JPEG2000"),
    MediaType("image", (".avif",), rb"....ftyp(avif|avis|heic|heix|mif1)", pillow="AVIF", animated=True),
    MediaType("image", (".ico",), rb"\0\0\x01\0", pillow="ICO"),
    MediaType("video", (".mp4", ".m4v", ".mov", ".3gp"), rb"....(ftyp|moov|mdat|wide)", demuxer="mov"),
    MediaType("video", (".mkv", ".webm"), rb"\x1a\x45\xdf\xa3", demuxer="matroska"),
    MediaType("video", (".avi",), rb"RIFF....AVI ", demuxer="avi"),
    MediaType("video", (".mpg", ".mpeg"), rb"\0\0\x01\xba", demuxer="mpeg"),
    MediaType("video", (".m2v", ".m1v"), rb"\0\0\x01\xb3", demuxer="mpegvideo"),
    MediaType("video", (".ts", ".m2ts"), rb"G.{187}G", demuxer="mpegts"),
    MediaType("video", (".h264", ".264"), rb"\0\0\0?\x01[\x09\x27\x47\x67]", demuxer="h264"),
    MediaType("video", (".h265", ".265", ".hevc"), rb"\0\0\0?\x01[\x40\x42\x44\x46]", demuxer="hevc"),
    MediaType("video", (".flv",), rb"FLV", demuxer="flv"),
    MediaType("video", (".wmv", ".asf"), rb"\x30\x26\xb2\x75", demuxer="asf"),
    MediaType("video", (".ogv", ".ogg"), rb"OggS", demuxer="ogg"),
)
"""Every type of file that is opened. A name alone never decides where the first bytes match one of them."""

IMAGE_FORMATS = tuple(entry.pillow for entry in TYPES if entry.pillow)
"""What `PIL.Image.open` may open: no format that runs another program (EPS) or that nobody gives as an image."""

ANIMATED_FORMATS = tuple(entry.pillow for entry in TYPES if entry.animated)

DEMUXERS = tuple(entry.demuxer for entry in TYPES if entry.demuxer)
"""What FFmpeg may open: containers alone, no playlist or list of files, which would open other files."""

_ANIMATIONS = (".gif", ".apng")
"""Names that say animation: in a list each of these is a video of its own, where other images are frames of one."""

_HEAD_BYTES = 189
"""Bytes of a file that tell its type: a transport stream's second packet begins at 188."""


def suffixes(kind: str) -> tuple[str, ...]:
    """Return the suffixes of files of a kind, ``"image"`` or ``"video"``."""
    return tuple(suffix for entry in TYPES if entry.kind == kind for suffix in entry.suffixes)


def kind_of(path: str | Path) -> str:
    """Return ``"image"`` or ``"video"``, by the file's first bytes, else by its name; an animation is a video.

    Raises `InputError` for a file that is neither, and for what is no regular file.
    """
    path = Path(path)
    check_regular(path, InputError)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}). Check its permissions.") from error
    entry = next((entry for entry in TYPES if re.match(entry.head, head, re.DOTALL)), None)
    if entry is None:
        entry = next((entry for entry in TYPES if path.suffix.lower() in entry.suffixes), None)
    if entry is None:
        raise InputError(
            f"A file must be an image or a video by its content or name; got {path}. Known images: "
            f"{' '.join(suffixes('image'))}; known videos: {' '.join(suffixes('video'))}."
        )
    return "video" if entry.animated and _frames(path) > 1 else entry.kind


def _frames(path: Path) -> int:
    """How many frames an animation has; a damaged one is left to the image reader's error."""
    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            return int(getattr(image, "n_frames", 1))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return 1


def arrange_images(images: Any) -> tuple[list[Any], list[int] | None]:
    """Return images in order, and how many each sample has when they came as one list per sample (else None).

    Raises `InputError` when lists and single images are mixed.
    """
    if images is None:
        return [], None
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:  # a stack of equal-sized images
        return list(images), None
    if not isinstance(images, list | tuple):
        return [images], None
    if any(isinstance(entry, list | tuple) for entry in images):
        return _flatten(images, "images")
    return list(images), None


def arrange_videos(videos: Any) -> tuple[list[Any], list[int] | None]:
    """Return videos in order, and how many each sample has when they came as one list per sample (else None).

    A list of images, or of names of image files, is one video; so is a pair of frames and their metadata.
    """
    if videos is None:
        return [], None
    if isinstance(videos, np.ndarray | Tensor) and videos.ndim == 5:
        return list(videos), None
    if not isinstance(videos, list | tuple) or _is_video(videos):
        return [videos], None
    if any(isinstance(entry, list | tuple) and not _is_video(entry) for entry in videos):
        samples = [[entry] if isinstance(entry, list | tuple) and _is_video(entry) else entry for entry in videos]
        return _flatten(samples, "videos")
    return list(videos), None


def split_pair(source: Any) -> tuple[Any, Any]:
    """Return (frames, metadata) of a pair as transformers' callers pass them; anything else with None as metadata.

    The second entry of a pair is a mapping, or an object with `total_num_frames` and `fps`.
    """
    if isinstance(source, list | tuple) and len(source) == 2 and _is_metadata(source[1]):
        return source[0], source[1]
    return source, None


def _is_metadata(entry: Any) -> bool:
    return isinstance(entry, Mapping) or (hasattr(entry, "total_num_frames") and hasattr(entry, "fps"))


def _is_video(entries: Sequence[Any]) -> bool:
    """Whether a list is one video: a pair with metadata, or frames."""
    return split_pair(entries)[1] is not None or (bool(entries) and all(_is_frame(entry) for entry in entries))


def _is_frame(entry: Any) -> bool:
    if isinstance(entry, np.ndarray | Tensor):
        return entry.ndim <= 3
    if isinstance(entry, str | Path):
        name = str(entry).lower()
        return name.endswith(suffixes("image")) and not name.endswith(_ANIMATIONS)
    return isinstance(entry, Image.Image)


def _flatten(samples: Sequence[Any], name: str) -> tuple[list[Any], list[int]]:
    for index, entry in enumerate(samples):
        if entry is not None and not isinstance(entry, list | tuple):
            raise InputError(
                f"`{name}` must be a flat list or one list per sample; entry {index} is a {type(entry).__name__} among "
                f"lists. Put it into a list of its own, or use an empty list for a sample without any."
            )
    lists = [[] if entry is None else list(entry) for entry in samples]
    return [entry for inner in lists for entry in inner], [len(inner) for inner in lists]


def arrange_metadata(metadata: Any, videos: int) -> list[Any]:
    """Return one metadata entry (or None) per video. Raises `InputError` for more or fewer entries than videos."""
    if metadata is None:
        return [None] * videos
    entries = list(metadata) if isinstance(metadata, list | tuple) else [metadata]
    if any(isinstance(entry, list | tuple) for entry in entries):
        entries = [inner for entry in entries for inner in (entry if isinstance(entry, list | tuple) else [entry])]
    if len(entries) != videos:
        raise InputError(
            f"`video_metadata` must have one entry per video; got {len(entries)} for {videos}. Put None where a video "
            "has none."
        )
    return entries


def fill(
    kind: str,
    placeholders: Sequence[int],
    in_messages: Sequence[list[Any] | None],
    arguments: tuple[list[Any], list[int] | None],
) -> list[Any]:
    """Return all images (or videos) of a batch in the order of their placeholders.

    - `placeholders`: how many each sample's prompt has; `in_messages`: the media of each sample's messages (None for a
      string prompt).
    - `arguments`: the call's `images=` (or `videos=`), arranged.

    Raises `InputError` with both numbers, sample by sample, when they do not match.
    """
    from_arguments = [
        count if media is None else sum(entry is FROM_ARGUMENTS for entry in media)
        for count, media in zip(placeholders, in_messages, strict=True)
    ]
    for sample, (count, media) in enumerate(zip(placeholders, in_messages, strict=True)):
        if media is not None and len(media) != count:
            raise InputError(
                f"The chat template must show every {kind}; got {count} placeholders for the {len(media)} "
                f"{kind}s of sample {sample}. Move them to a turn that the template shows, usually a user's."
            )
    media, by_sample = arguments
    if (by_sample is not None and by_sample != from_arguments) or len(media) != sum(from_arguments):
        came = f"{len(media)} (by sample {by_sample})" if by_sample is not None else f"{len(media)}"
        raise InputError(
            f"Placeholders and {kind}s must match: the text has {sum(from_arguments)} {kind} placeholders to fill (by "
            f"sample {from_arguments}); got {came}. Give one {kind} per placeholder, or one placeholder per {kind} "
            f"(`processor.prompt(text, images=…, videos=…)` writes them)."
        )
    rest = iter(media)
    filled: list[Any] = []
    for count, own in zip(placeholders, in_messages, strict=True):
        own = [FROM_ARGUMENTS] * count if own is None else own
        filled += [next(rest) if entry is FROM_ARGUMENTS else entry for entry in own]
    return filled


def is_batch(text: Any) -> bool:
    """Return whether `text` is a batch: a list of prompts, or of lists of messages."""
    return isinstance(text, list | tuple) and not (bool(text) and isinstance(text[0], Mapping))


def as_messages(text: str, images: Any = None, videos: Any = None, system: str | None = None) -> list[dict[str, Any]]:
    """Return messages for the processor: the images and videos (one or a list), then the text, in one user's turn."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in arrange_images(images)[0]]
    parts += [{"type": "video", "video": video} for video in arrange_videos(videos)[0]]
    turns: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    return [*turns, {"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
