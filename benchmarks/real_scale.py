"""Whether the 2B shape reads a photograph and a video file on this CPU in bounded memory, with the real vocabulary.

    python benchmarks/real_scale.py [--size Qwen3-VL-2B] [--threads 2]

Random bfloat16 weights; a photograph of 1,000 × 1,500 pixels (scikit-image's, enlarged) and an h264 file made here,
each asked about with four tokens generated. The process' peak is set against weights, cache and what is above them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image
from skimage import data

import cutaway

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import qwen_vocabulary  # type: ignore[import-not-found]

GIB = 2**30


def peak() -> float:
    """Largest resident size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def photograph() -> Image.Image:
    """A real photograph of 1,500 × 1,000 pixels."""
    return Image.fromarray(data.astronaut()).resize((1500, 1000), Image.Resampling.LANCZOS)


def video_file(path: Path, seconds: int = 4, rate: int = 24) -> Path:
    """An h264 file of 640 × 360: a window that wanders over a photograph."""
    image = np.asarray(Image.fromarray(data.astronaut()).resize((900, 900)))
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for n in range(seconds * rate):
            x = int(130 + 120 * np.sin(n / 20))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image[200:560, x : x + 640]), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="Qwen3-VL-2B")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        qwen_vocabulary.build().save(str(Path(folder) / "tokenizer.json"))
        began = time.perf_counter()
        model = cutaway.random(options.size, dtype="bfloat16", tokenizer=folder)
        weights = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values()) / GIB
        drawn = time.perf_counter() - began
        print(f"{options.size}: weights {weights:.2f} GiB, drawn in {drawn:.0f} s, peak {peak():.2f} GiB", flush=True)
        video = video_file(Path(folder) / "video.mp4")
        for name, arguments in (("photograph", {"images": [photograph()]}), ("video", {"videos": [video]})):
            began = time.perf_counter()
            prompt = model.prompt("What is shown?", **{kind: len(items) for kind, items in arguments.items()})
            inputs = model.prepare(prompt, **arguments)
            prepared = time.perf_counter() - began
            result = model.generate(inputs, max_new_tokens=4, ignore_eos=True)
            tokens = inputs.input_ids.shape[1]
            text = model.config.text
            cache = 2 * text.num_layers * text.num_kv_heads * text.head_dim * 2 * (tokens + 4) / GIB
            print(
                f"{name}: {tokens} tokens, prepared in {prepared:.1f} s, four tokens {result.ids[0]} after "
                f"{time.perf_counter() - began - prepared:.0f} s; cache {cache:.2f} GiB, peak {peak():.2f} GiB, "
                f"{peak() - weights - cache:.2f} GiB above weights and cache",
                flush=True,
            )


if __name__ == "__main__":
    main()
