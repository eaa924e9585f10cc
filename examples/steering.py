"""Adds a direction to the stream while the model answers: from "red" towards "blue"."""

from pathlib import Path

from PIL import Image, ImageDraw

import cutaway

model = cutaway.load("nano")
question = "What color is the square?"
prompt = model.prompt(question, images=1)
red = Image.open(Path(__file__).parent / "media" / "square.png")
blue = Image.new("RGB", red.size, "white")
ImageDraw.Draw(blue).rectangle((16, 16, 47, 47), fill="blue")

LAYER = model.num_layers - 2
address = f"layers.{LAYER}.layer_output"
ends = [model.run(prompt, images=[p], read=[address])[address][0, -1] for p in (red, blue)]
direction = ends[1] - ends[0]

for strength in (0.0, 0.5, 1.0, 1.5):
    with model.generate(prompt, images=[red], max_new_tokens=4) as run:
        for step in run:
            if step.phase == "prompt":
                model.layers[LAYER].layer_output[:, -1] += strength * direction
    print(f"strength {strength}: {run.text!r}")
