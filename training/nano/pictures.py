"""Draws the pictures and the clip in `examples/media/`: scenes of the bundled model's world that it never saw.

Digits are scans that were held out of training. Run it as ``python -m training.nano.pictures``; what is in each file is
in its name.
"""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

from training.nano import world

FOLDER = Path(__file__).parents[2] / "examples" / "media"
TEST = world.Source(part="test", warp=0.0)

SCENES: dict[str, tuple[int, tuple[int, int], list[str], tuple[str, str]]] = {
    # seed, (height, width), what is in it, the first thing and its colour
    "digit": (15, (96, 96), ["digit"], ("digit", "blue")),
    "square": (5, (96, 128), ["square"], ("square", "red")),
    "shapes": (159, (128, 128), ["star", "triangle", "circle"], ("star", "yellow")),
}
CLIP_SEED, CLIP_GRIDS, CLIP_SIZE = 2, 3, (96, 96)


def main() -> None:
    """Writes every file and prints what is in it."""
    FOLDER.mkdir(exist_ok=True)
    for name, (seed, size, kinds, first) in SCENES.items():
        scene = world.scene(np.random.default_rng(seed), *size, source=TEST, kinds=kinds, first=first)
        Image.fromarray(scene.picture).save(FOLDER / f"{name}.png", optimize=True)
        print(name, [(thing.color, thing.content) for thing in scene.things], "on", scene.ground)
    clip = world.clip(np.random.default_rng(CLIP_SEED), CLIP_GRIDS, *CLIP_SIZE)
    write(clip.frames, FOLDER / "video.mp4")
    print("clip", clip.thing.color, clip.thing.content, clip.move, clip.new_color)


def write(frames: np.ndarray, path: Path) -> None:
    """Frames [n height width 3] as an MPEG-4 file at the world's frame rate, hardly compressed."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=int(world.FRAME_RATE), options={"qscale": "1", "qmin": "1", "qmax": "1"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame))))
        file.mux(stream.encode())


if __name__ == "__main__":
    main()
