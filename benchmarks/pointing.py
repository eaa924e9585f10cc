"""Do patching and attention point at the object? Peaks over 100 images that the bundled model has never seen.

    python benchmarks/pointing.py [--images 100] [--seed 7]

Each image is one shape of a random colour, size and place on a plain ground. Patching takes the same image with the
shape in another colour as the corrupt one and asks which token's stream, after the last DeepStack block, carries the
colour back. Attention is that of the last token, averaged over heads and layers. A peak counts as found where its token
overlaps the shape's box; chance is the share of tokens that do. A shuffled control draws the peak at random.
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image, ImageDraw

import cutaway
from cutaway.analysis.attention.text import attention_map
from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, question
from cutaway.analysis.common.token_selection import geometry, token_groups
from cutaway.analysis.intervention.patching import patch
from cutaway.api import Model

SIDE = 128
COLORS = ("red", "green", "blue", "yellow", "purple")
Box = tuple[int, int, int, int]


def drawn(color: str, shape: str, box: Box, ground: str) -> Image.Image:
    """One shape on a ground."""
    image = Image.new("RGB", (SIDE, SIDE), ground)
    pen = ImageDraw.Draw(image)
    (pen.rectangle if shape == "square" else pen.ellipse)((box[0], box[1], box[2] - 1, box[3] - 1), fill=color)
    return image


def peaks(model: Model, dice: np.random.Generator) -> dict[str, tuple[bool, float]]:
    """For one image: whether each technique's peak is on the shape, and chance."""
    color, other = dice.choice(COLORS, 2, replace=False)
    shape, ground = dice.choice(["square", "circle"]), dice.choice(["white", "black"])
    size = int(dice.integers(28, 49))
    left, top = (int(n) for n in dice.integers(0, SIDE - size + 1, 2))
    box = (left, top, left + size, top + size)
    text = f"What color is the {shape}?"
    clean, corrupt = (question(model, text, images=[drawn(c, shape, box, ground)]) for c in (color, other))
    image = token_groups(model, clean)["image"]
    on = geometry(clean).select(image=0, box=box).mask[0][image].numpy()
    positions = {str(int(n)): image[n : n + 1] for n in range(len(image))}
    block = max(0, len(model.config.vision.deepstack_indexes) - 1)
    metric = metrics.logit_difference(model.tokenizer, color, other)
    effect = patch(
        model, Pair(clean, corrupt), metric, where=positions, layers=[block], attribution=False
    ).effect.values[0]
    _, row, column = attention_map(model, clean).peak()
    columns = (
        clean.image_grid_thw[0, 2] // model.config.vision.spatial_merge_size if clean.image_grid_thw is not None else 1
    )
    chance = float(on.mean())
    return {
        "patching": (bool(on[effect.argmax()]), chance),
        "attention": (bool(on[int(row * columns + column)]), chance),
        "at random": (bool(on[dice.integers(len(on))]), chance),
    }


def main() -> None:
    """Prints the share of images whose peak is on the shape."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=int, default=100)
    options.add_argument("--seed", type=int, default=7)
    arguments = options.parse_args()
    model, dice = cutaway.load("nano"), np.random.default_rng(arguments.seed)
    results = [peaks(model, dice) for _ in range(arguments.images)]
    for name in results[0]:
        hits, chances = zip(*(each[name] for each in results), strict=True)
        print(f"{name:10s} {np.mean(hits):6.1%} of {len(hits)} images (chance {np.mean(chances):.1%})")


if __name__ == "__main__":
    main()
