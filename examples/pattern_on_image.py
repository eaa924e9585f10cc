"""Lays over the image where the last token of the question looks, layer by layer."""

from pathlib import Path

import cutaway

image = Path(__file__).parent / "media" / "digit.png"
model = cutaway.load("nano")
inputs = model.prepare(model.prompt("What digit is this?", images=1), images=[image])

looks = []
with model.trace(inputs) as run:
    mask = model.vision.image_token_mask[0]
    for layer in model.layers:
        pattern = layer.self_attn.attention_probabilities  # step by step for this layer, the others stay fused
        looks.append(pattern[0, :, -1, mask].mean(0))  # mean over heads: one number for each image token

for layer, look in enumerate(looks):
    print(f"layer {layer}: {float(look.sum()):.0%} of the last token's attention is on the image")
strongest = max(looks, key=lambda look: float(look.sum()))
heat = run.geometry.heat(strongest, image=0)  # [height width], in the image's own pixels
print("strongest layer's heat map:", heat.shape, "peak at pixel", divmod(int(heat.argmax()), heat.shape[1]))
