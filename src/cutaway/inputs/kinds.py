"""Whether a file is an image or a video, told by its first bytes, else by its name.

It opens nothing beyond those bytes; whether the file is whole is found out when it is read.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from cutaway.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif", ".ico")
CLIP_SUFFIXES = (
    ".mp4",
    ".m4v",
    ".mov",
    ".mkv",
    ".webm",
    ".avi",
    ".mpg",
    ".mpeg",
    ".ts",
    ".flv",
    ".wmv",
    ".ogv",
    ".3gp",
)

_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*", b"P5", b"P6", b"\0\0\0\x0cjP  ")
_VIDEOS = (b"\x1a\x45\xdf\xa3", b"FLV", b"\0\0\x01\xba", b"\0\0\x01\xb3", b"OggS", b"\x30\x26\xb2\x75")
_STILL_BRANDS = (b"avif", b"heic", b"heix", b"mif1")


def kind_of(path: str | Path) -> str:
    """``"image"`` or ``"video"``; an animated GIF or WebP is a video. Raises `InputError` when it cannot be told."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path} cannot be read: {why}. Give the path of an image or video.") from error
    known = _by_content(head, path)
    if known is None:
        suffix = path.suffix.lower()
        known = "image" if suffix in IMAGE_SUFFIXES else "video" if suffix in CLIP_SUFFIXES else None
    if known is None:
        raise InputError(
            f"{path} is neither an image nor a video by its content or name. Known images: "
            f"{' '.join(IMAGE_SUFFIXES)}; known videos: {' '.join(CLIP_SUFFIXES)}."
        )
    return known


def _by_content(head: bytes, path: Path) -> str | None:
    if head.startswith(b"GIF8") or (head.startswith(b"RIFF") and head[8:12] == b"WEBP"):
        return _moving(path)
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "video"
    if head[4:8] == b"ftyp":  # the ISO container holds stills too; its brand tells
        return "image" if head[8:12] in _STILL_BRANDS else "video"
    if head.startswith(_IMAGES):
        return "image"
    return "video" if head.startswith(_VIDEOS) else None


def _moving(path: Path) -> str:
    """A GIF or WebP is a video when it has more than one frame; a damaged one is left to the image reader's error."""
    try:
        with Image.open(path) as image:
            return "video" if getattr(image, "n_frames", 1) > 1 else "image"
    except (OSError, SyntaxError, ValueError):
        return "image"
