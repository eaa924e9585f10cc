"""What `draw.py` does, for the pages on what is learned from many images: steering, probes, sparse autoencoders.

python docs/analysis/draw_learned.py [NAME …]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from draw import HERE, QUESTION, put
from PIL import Image, ImageDraw

import cutaway
from cutaway.analysis.common import metrics
from cutaway.analysis.common.activations import harvest
from cutaway.analysis.common.prompts import question
from cutaway.analysis.probing.probes import probe
from cutaway.analysis.sae.regions import feature_regions
from cutaway.analysis.sae.sae import SAE
from cutaway.analysis.steering.sweep import steer
from cutaway.api import Model

COLOURS = ("red", "blue", "green", "yellow")


def square(colour: str, corner: int = 0) -> Image.Image:
    """A square on white, at one of nine places."""
    image = Image.new("RGB", (192, 192), "white")
    left, top = 16 + 48 * (corner % 3), 16 + 48 * (corner // 3)
    ImageDraw.Draw(image).rectangle((left, top, left + 63, top + 63), fill=colour)
    return image


def steering(model: Model) -> str:
    """From blue to red at every layer, on green squares."""
    positive, negative = (
        [question(model, QUESTION, images=[square(c, n)]) for n in (0, 4, 8)] for c in ("red", "blue")
    )
    request = [question(model, QUESTION, images=[square("blue", n)]) for n in (2, 6)]
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    result = steer(model, request, metric, positive=positive, negative=negative, controls=3, max_new_tokens=4)
    result.plot(HERE / "figures" / "steering.png")
    return result.summary()


def probes(model: Model) -> str:
    """The square's place (its row) from the last token, layer by layer."""
    images = [square(colour, position) for colour in COLOURS for position in range(9)]
    rows = [("top", "middle", "bottom")[position // 3] for _ in COLOURS for position in range(9)]
    result = probe(model, [question(model, QUESTION, images=[p]) for p in images], labels=rows)
    result.plot(HERE / "figures" / "probes.png")
    return result.summary()


def colours(model: Model) -> SAE:
    """A dictionary made by hand: a feature for each colour, the direction of its squares' tokens."""
    prompts = [question(model, QUESTION, images=[square(c, n)]) for c in COLOURS for n in (0, 4, 8)]
    inside = []
    for n, prompt in enumerate(prompts):
        left = 16 + 48 * (n % 3)
        box = {"box": (left + 16, left + 16, left + 48, left + 48)}
        inside.append(harvest(model, [prompt], value="vision.image_features", where=box)["vision.image_features"])
    every = harvest(model, prompts, value="vision.image_features", where="image")["vision.image_features"].mean(0)
    ways = torch.cat(inside).reshape(len(COLOURS), 3, -1).mean(1)
    middle = (ways.mean(0) + every) / 2
    unit = torch.nn.functional.normalize(ways - ways.mean(0), dim=-1)
    heights = ((ways - middle) * unit).sum(-1)
    return SAE(unit.T.contiguous(), -heights / 2, unit, middle)


def sae(model: Model) -> str:
    """The regions on which the hand-made features fire, over images of two squares."""
    images = []
    for n, colour in enumerate(COLOURS * 2):
        image = square(colour, n % 3)
        image.paste(square(COLOURS[(n + 1) % 4]).crop((16, 16, 80, 80)), (112, 112))
        images.append(image)
    prompts = [question(model, QUESTION, images=[p]) for p in images]
    result = feature_regions(model, prompts, sae=colours(model), value="vision.image_features", top=3, loss=True)
    result.plot(HERE / "figures" / "sae.png", backgrounds=images)
    return result.summary()


SHOWN: dict[str, Callable[[Model], str]] = {"steering": steering, "probes": probes, "sae": sae}


def main() -> None:
    """Runs those named, or all."""
    model = cutaway.load("nano")
    for name in sys.argv[1:] or SHOWN:
        text = SHOWN[name](model)
        put(HERE / f"{name}.md", name, text)
        print(f"{name}\n{text}\n")


if __name__ == "__main__":
    main()
