"""Images and a video file to patches: large, many, and a video, beside transformers' processors with Pillow.

The floor of the video is plain decoding of every frame up to the last wanted one, and the patches of the frames alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import OURS, Work
from benchmarks.loading import FOLDER
from benchmarks.models import noise
from cutaway.inputs.image.patches import ImageBatch, patch_rows
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.video.patches import open_video, prepare_video, video_size


def image_sides(images: list[Any]) -> dict[str, Callable[[], Any]]:
    """Patches of the images by either library, with the published settings of Qwen3-VL."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = ImageSettings.published(whole_video=True)
    theirs = Qwen2VLImageProcessorPil(
        patch_size=settings.patch_size,
        merge_size=settings.merge_size,
        temporal_patch_size=settings.temporal_patch_size,
        image_mean=list(settings.mean),
        image_std=list(settings.std),
        size={"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels},
    )

    def ours() -> Tensor:
        opened = ImageBatch(images, settings, {})
        opened.patches()
        return opened.rows

    return {
        OURS: ours,
        "transformers PIL": lambda: theirs(images=images, return_tensors="pt")["pixel_values"],
    }


def video_file(width: int, height: int, seconds: int, rate: int = 30) -> Path:
    """An h264 file: a window that wanders over an image."""
    path = FOLDER / f"video-{width}-{height}-{seconds}.mp4"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.asarray(noise(width + 256, height))
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("libx264", rate=rate, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for n in range(seconds * rate):
            x = int(128 + 127 * np.sin(n / 20))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image[:, x : x + width]), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def video_sides(quick: bool) -> dict[str, Callable[[], Any]]:
    """A video at two frames a second: ours, and what cannot be saved: decoding, and the patches of the frames."""
    path = video_file(96, 64, 2) if quick else video_file(1280, 720, 30)
    settings = VideoSettings.published(whole_video=True)
    video = open_video(path, settings)
    size = video_size(len(video.indices), *video.size, settings)

    def floor() -> None:
        wanted, last, frames = set(video.indices), video.indices[-1], []
        with av.open(str(path)) as container:
            container.streams.video[0].thread_type = "AUTO"
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    frames.append(torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1))
                if number == last:
                    break
        patch_rows(iter(frames), len(frames), size, settings)

    def ours() -> None:
        prepare_video(path, settings)

    return {OURS: ours, "floor: decoding and patches": floor}


def works(quick: bool) -> Sequence[Work]:
    large = (96, 64) if quick else (4000, 3000)
    many = 2 if quick else 32
    return [
        Work("image of 12 megapixels to patches", lambda: image_sides([noise(*large)]), target=0.6),
        Work(
            "32 images of 640 × 480 to patches",
            lambda: image_sides([noise(640, 480, n) for n in range(many)]),
            target=0.6,
        ),
        Work("video of 30 s, 720p, at 2 fps to patches", partial(video_sides, quick), target=1.1),
    ]
