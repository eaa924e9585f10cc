"""Draws the images and the video in `examples/media/`: scenes of the bundled model's world that it never saw.

Digits are scans that were held out of training. Run it as ``python -m training.nano.examples`` when new weights are
bundled; it writes the files anew and prints what is in each. Those of the present weights were drawn before the world
was widened.
"""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

from training.nano import world
from training.nano.world import Contents, Look

FOLDER = Path(__file__).parents[2] / "examples" / "media"
PLAIN = Look(part="test", printed=0.0, warp=0.0, turned=0.0, outlined=0.0)

SCENES: dict[str, tuple[int, tuple[int, int], Contents]] = {
    # seed, (height, width), what is in it: the first thing's kind and color come last
    "digit": (15, (96, 96), Contents(["digit"], first=("digit", "blue"))),
    "square": (5, (96, 128), Contents(["square"], first=("square", "red"))),
    "shapes": (159, (128, 128), Contents(["star", "triangle", "circle"], first=("star", "yellow"))),
}
VIDEO_SEED, VIDEO_GRIDS, VIDEO_SIZE = 2, 3, (96, 96)


def main() -> None:
    """Writes every file and prints what is in it."""
    FOLDER.mkdir(exist_ok=True)
    for name, (seed, size, contents) in SCENES.items():
        scene = world.scene(np.random.default_rng(seed), *size, contents, PLAIN)
        Image.fromarray(scene.image).save(FOLDER / f"{name}.png", optimize=True)
        print(name, [(thing.color, thing.content) for thing in scene.things], "on", scene.ground)
    video = world.video(np.random.default_rng(VIDEO_SEED), VIDEO_GRIDS, *VIDEO_SIZE, PLAIN)
    write(video.frames, FOLDER / "video.mp4")
    print("video", video.thing.color, video.thing.content, video.move, video.new_color)


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
