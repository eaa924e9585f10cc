"""Keeps the last layer's stream at every step while an answer is generated."""

from pathlib import Path

import torch

import cutaway

image = Path(__file__).parent / "media" / "shapes.png"
model = cutaway.load("nano")
prompt = model.prompt("Describe the image.", images=1)

with model.generate(prompt, images=[image], max_new_tokens=12) as run:
    kept = [model.layers[-1].layer_output[:, -1].save() for _ in run]

streams = torch.cat(kept)
print("answer:", run.text)
print("streams:", tuple(streams.shape), "for", len(run.ids[0]), "tokens")
alike = torch.nn.functional.cosine_similarity(streams[:-1], streams[1:])
print("cosine from step to step:", [round(value, 2) for value in alike.tolist()])
