"""Runs the analyses that the pages of this folder show, draws their figures, and puts their text into the pages.

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
from cutaway.analysis import metrics
from cutaway.analysis.ablation import ablate
from cutaway.analysis.pairs import Pair, question
from cutaway.analysis.patching import patch
from cutaway.subject import Subject

HERE = Path(__file__).parent
ASKED = "What color is the square?"


def square(colour: str) -> Image.Image:
    """A square on white, off the middle."""
    picture = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(picture).rectangle((112, 32, 175, 95), fill=colour)
    return picture


def patching(model: Subject) -> str:
    """By group of tokens, and by region over the picture."""
    pair = Pair(*(question(model, ASKED, images=[square(colour)]) for colour in ("red", "blue")))
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    found = patch(model, pair, metric, where="groups")
    found.plot(HERE / "figures" / "patching.png")
    regions = patch(model, pair, metric, where="regions 4x4", blocks=[0, 1, 2])
    regions.plot(HERE / "figures" / "patching_regions.png", picture=square("blue"))
    return found.summary()


def ablation(model: Subject) -> str:
    """Heads in a ranked table, and regions over the picture."""
    inputs, other = (question(model, ASKED, images=[square(colour)]) for colour in ("red", "blue"))
    metric = metrics.logit_difference(model.tokenizer, "red", "blue")
    heads = ablate(model, inputs, metric, component="head", how="resample", others=[other])
    heads.plot(HERE / "figures" / "ablation.png", count=12)
    regions = ablate(model, inputs, metric, component="token", how="mean", where="regions 4x4")
    regions.plot(HERE / "figures" / "ablation_regions.png", picture=square("red"))
    return "\n".join(heads.summary().splitlines()[:14])


SHOWN: dict[str, Callable[[Subject], str]] = {"patching": patching, "ablation": ablation}
"""What is run, by the name of its output."""


def put(page: Path, name: str, text: str) -> None:
    """Writes an output into its page, in place of the one that was there."""
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
