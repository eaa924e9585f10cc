"""What the tests of images and videos share: settings of both generations, saved reference values, small videos."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from cutaway.inputs.settings import ImageSettings, VideoSettings

PRE = Path(__file__).parents[1] / "data" / "pre"
TABLES = json.loads((PRE / "tables.json").read_text())

OLD = ImageSettings.published(whole_video=False)
NEW = ImageSettings.published(whole_video=True)
OLD_VIDEOS = VideoSettings.published(whole_video=False)
NEW_VIDEOS = VideoSettings.published(whole_video=True)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """uint8 noise of a shape."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    """The content of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise_video(frames: int, height: int = 64, width: int = 96) -> np.ndarray:
    """Smooth frames [frames height width 3] that all differ."""
    y, x = np.mgrid[0:height, 0:width]
    each = [np.stack([x * 2 % 256, y * 3 % 256, np.full_like(x, 4 * i % 256)], -1) for i in range(frames)]
    return np.stack(each).astype(np.uint8)


def write_video(
    path: Path,
    codec: str = "libx264",
    *,
    frames: int = 60,
    fps: Fraction | int = 30,
    pixels: str = "yuv420p",
    gop: int = 12,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    times: list[int] | None = None,
) -> list[np.ndarray]:
    """Writes a video and gives back all its frames as they decode from start to end; `times` are milliseconds."""
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = 64, 96, pixels, gop
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, array in enumerate(noise_video(frames)):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            if times:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
