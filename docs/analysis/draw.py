"""Run the analyses that the pages of this folder show, draws their figures, and puts their text into the pages.

    python docs/analysis/draw.py [NAME …]

Run it when the bundled model changes, and look at every figure. A page's text stands below ``<!-- output: NAME -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

import cutaway
from cutaway.analysis.attention.rollout import attention_rollout
from cutaway.analysis.attention.text import attention_map
from cutaway.analysis.attention.vision import vision_attention
from cutaway.analysis.attribution.direct_logit import direct_logit_attribution
from cutaway.analysis.attribution.input_gradients import input_attribution
from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, question
from cutaway.analysis.common.result import table
from cutaway.analysis.intervention.ablation import ablate
from cutaway.analysis.intervention.attention_knockout import attention_knockout
from cutaway.analysis.intervention.image_pathways import image_pathways
from cutaway.analysis.intervention.patching import patch
from cutaway.analysis.lens.logit_lens import logit_lens
from cutaway.analysis.lens.nearest_tokens import nearest_tokens
from cutaway.analysis.lens.tuned_lens import train_tuned_lens
from cutaway.api import Model

HERE = Path(__file__).parent
QUESTION = "What color is the square?"


def square(colour: str) -> Image.Image:
    """A square on white, off the middle."""
    image = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(image).rectangle((112, 32, 175, 95), fill=colour)
    return image


def routes(model: Model) -> str:
    """Every subset of the image's routes."""
    inputs = question(model, QUESTION, images=[square("red")])
    result = image_pathways(model, inputs, metrics.probability(model.tokenizer, "red"))
    result.plot(HERE / "figures" / "pathways.png")
    return result.summary()


def cuts(model: Model) -> str:
    """Attention cut between groups of tokens, layer by layer."""
    inputs = question(model, QUESTION, images=[square("red")])
    result = attention_knockout(model, inputs, metrics.probability(model.tokenizer, "red"), width=1)
    result.plot(HERE / "figures" / "knockout.png")
    return result.summary()


def patching(model: Model) -> str:
    """By group of tokens, and by region over the image."""
    pair = Pair(*(question(model, QUESTION, images=[square(colour)]) for colour in ("red", "blue")))
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    result = patch(model, pair, metric, where="groups")
    result.plot(HERE / "figures" / "patching.png")
    regions = patch(model, pair, metric, where="regions 4x4", layers=[0, 1, 2])
    regions.plot(HERE / "figures" / "patching_regions.png", background=square("blue"))
    return result.summary()


def ablation(model: Model) -> str:
    """Heads in a ranked table, and regions over the image."""
    inputs, other = (question(model, QUESTION, images=[square(colour)]) for colour in ("red", "blue"))
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    heads = ablate(model, inputs, metric, component="head", how="resample", others=[other])
    heads.plot(HERE / "figures" / "ablation.png", count=12)
    regions = ablate(model, inputs, metric, component="token", how="mean", where="regions 4x4")
    regions.plot(HERE / "figures" / "ablation_regions.png", background=square("red"))
    return "\n".join(heads.summary().splitlines()[:14])


def lenses(model: Model) -> str:
    """The answer layer by layer, and words over the image."""
    red = square("red")
    result = logit_lens(model, question(model, QUESTION, images=[red]), words=["red", "blue"])
    result.plot(HERE / "figures" / "lens.png")
    result.plot(HERE / "figures" / "lens_image.png", background=red, layer=5)
    return result.summary()


def tuned(model: Model) -> str:
    """A tuned lens trained on squares of every colour and position; the divergence on held-out ones."""
    prompts = []
    for n in range(36):
        colour, offset = ("red", "blue", "green", "yellow", "orange", "purple")[n % 6], 32 * (n % 4)
        image = Image.new("RGB", (192, 192), "white")
        ImageDraw.Draw(image).rectangle((offset, 96 - offset, offset + 63, 159 - offset), fill=colour)
        prompts.append(question(model, QUESTION, images=[image]))
    divergence = train_tuned_lens(model, prompts, epochs=8).notes["divergence"]
    rows = [(name, divergence["logit"][name], divergence["tuned"][name]) for name in divergence["logit"]]
    return table(("after layer", "logit lens", "tuned lens"), rows)


def nearest(model: Model) -> str:
    """Words near the features of the square's image."""
    return nearest_tokens(model, question(model, QUESTION, images=[square("red")])).summary()


def attending(model: Model) -> str:
    """From the last token onto the image: layers, the heads of one, rollout, the vision encoder's own."""
    red = square("red")
    inputs = question(model, QUESTION, images=[red])
    result = attention_map(model, inputs)
    result.plot(HERE / "figures" / "attention.png", background=red)
    result.plot(HERE / "figures" / "attention_heads.png", background=red, layer=2)
    attention_rollout(model, inputs).plot(HERE / "figures" / "rollout.png", background=red)
    seen = vision_attention(model, inputs, box=(112, 32, 176, 96))
    seen.plot(HERE / "figures" / "vision_attention.png", background=red)
    return result.summary()


def attributing(model: Model) -> str:
    """The logit as a sum, and what heads read from the image."""
    red = square("red")
    result = direct_logit_attribution(model, question(model, QUESTION, images=[red]), answer="red", foil="blue")
    result.plot(HERE / "figures" / "attribution.png", count=15)
    result.plot(HERE / "figures" / "attribution_heads.png", kind="heads")
    result.plot(HERE / "figures" / "attribution_image.png", kind="image", background=red)
    return result.summary()


def patches(model: Model) -> str:
    """Integrated gradients down to the patches."""
    red = square("red")
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    result = input_attribution(model, question(model, QUESTION, images=[red]), metric, steps=128)
    result.plot(HERE / "figures" / "patches.png", background=red)
    return result.summary()


SHOWN: dict[str, Callable[[Model], str]] = {
    "pathways": routes,
    "knockout": cuts,
    "patching": patching,
    "ablation": ablation,
    "lens": lenses,
    "tuned lens": tuned,
    "nearest words": nearest,
    "attention": attending,
    "attribution": attributing,
    "patches": patches,
}
"""What is run, by the name of its output."""


def put(page: Path, name: str, text: str) -> None:
    """Write an output into its page, instead of the one that was there."""
    mark = f"<!-- output: {name} -->"
    before = page.read_text(encoding="utf-8")
    if mark in before:
        block = f"{mark}\n\n```text\n{text}\n```\n"
        after = re.sub(re.escape(mark) + r"\n(?:\n```text\n.*?\n```\n)?", lambda _: block, before, flags=re.S)
        page.write_text(after, encoding="utf-8")


def main() -> None:
    """Runs those named, or all."""
    model = cutaway.load("nano")
    for name in sys.argv[1:] or SHOWN:
        text = SHOWN[name](model)
        for page in HERE.glob("*.md"):
            put(page, name, text)
        print(f"{name}\n{text}\n")


if __name__ == "__main__":
    main()
