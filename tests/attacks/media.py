"""Damaged images and videos: bytes of real files flipped, cut, repeated and swapped, opened both ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from cutaway.inputs.image.patches import prepare_image
from cutaway.inputs.video.patches import prepare_video
from tests.inputs.media import NEW, NEW_VIDEOS, noise, saved, write_video

STILLS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "JPEG2000")
ANIMATIONS = ("GIF", "PNG", "WEBP", "TIFF")
VIDEOS = {
    "mp4": ("libx264", "yuv420p"),
    "mov": ("mpeg4", "yuv420p"),
    "mkv": ("libx264", "yuv420p"),
    "webm": ("libvpx", "yuv420p"),
    "avi": ("mpeg4", "yuv420p"),
    "ts": ("mpeg2video", "yuv420p"),
}


def seeds(folder: Path) -> dict[str, bytes]:
    """Small whole files of every format, by name."""
    image = Image.fromarray(noise(40, 48, 3))
    files = {f"still.{form}": saved(image, form) for form in STILLS}
    files["palette.PNG"] = saved(image.convert("P"), "PNG", transparency=3)
    files["deep.PNG"] = saved(Image.fromarray(noise(20, 20).astype("uint16")), "PNG")
    files["turned.JPEG"] = saved(image, "JPEG", exif=_turned())
    frames = [Image.fromarray(noise(24, 24, 3, seed=seed)) for seed in range(4)]
    for form in ANIMATIONS:
        files[f"moving.{form}"] = saved(frames[0], form, save_all=True, append_images=frames[1:], duration=100)
    for suffix, (codec, pixels) in VIDEOS.items():
        path = folder / f"video.{suffix}"
        write_video(path, codec, frames=8, gop=4, pixels=pixels)
        files[path.name] = path.read_bytes()
    return files


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A copy with one to eight faults, most of them in the header."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        if not data:
            break
        near = chance.random() < 0.6
        at = chance.randrange(min(len(data), 200) if near else len(data))
        kind = chance.randrange(6)
        if kind < 2:
            data[at] = chance.randrange(256)
        elif kind == 2:
            data[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\xff\xff"))
        elif kind == 3:
            del data[at : at + chance.randint(1, 64)]
        elif kind == 4:
            data[at:at] = data[at : at + chance.randint(1, 64)] * chance.randint(1, 8)
        elif chance.random() < 0.5:
            del data[at:]
    return bytes(data)


def cases(chance: random.Random, count: int, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Damaged files in turn over the formats, each opened as an image and as a video."""
    files = list(seeds(folder).items())
    for number in range(count):
        name, content = files[number % len(files)]
        if number % 50 == 49:  # two formats in one file
            content = content[: chance.randrange(len(content))] + chance.choice(files)[1]
        data = damaged(content, chance)
        as_video = chance.random() < 0.3 if name.startswith("still") else True
        yield f"{number} {name}", _opener(data, as_video)


def _opener(data: bytes, as_video: bool) -> Callable[[], object]:
    if as_video:
        return lambda: prepare_video(data, NEW_VIDEOS, num_frames=2)
    return lambda: prepare_image(data, NEW)
