"""Steps two runs in turn, and copies a value from one to the other while both are half way."""

from pathlib import Path

import cutaway

model = cutaway.load("nano")
prompt = model.prompt("What color is the square?", images=1)
media = Path(__file__).parent / "media"

with (
    model.trace(prompt, images=[media / "square.png"]) as one,
    model.trace(prompt, images=[media / "square.png"]) as other,
):
    other.vision.image_features[:] = 0
    for layer in range(model.num_layers):
        here, there = one.layers[layer].layer_output, other.layers[layer].layer_output
        print(f"layer {layer}: the last token's streams are {float((here - there)[0, -1].norm()):.2f} apart")
    there[:] = here  # from here on the second run is the first
    same = (one.logits == other.logits).all()

print("logits equal after the copy:", bool(same))
