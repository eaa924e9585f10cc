"""One batch of unlike rows: no image, one, two of other sizes. Each row's values are told apart by geometry."""

from pathlib import Path

import cutaway

media = Path(__file__).parent / "media"
model = cutaway.load("nano")
inputs = model.processor(
    text=[
        model.prompt("What color is the sky?"),
        model.prompt("What digit is this?", images=1),
        model.prompt("Which image shows the red square?", images=2),
    ],
    images=[media / "digit.png", media / "square.png", media / "shapes.png"],
    padding_side="left",
    return_tensors="pt",
)
values = model.run(inputs, read=["layers.*.layer_output", "vision.image_features", "next_token_probs"])
print("features of all images:", tuple(values["vision.image_features"].shape))
for index, grid in enumerate(inputs["image_grid_thw"].tolist()):
    tokens = inputs.geometry.select(image=index).mask  # [batch seq], true at this image's tokens
    row = int(tokens.any(1).nonzero())
    size = float(values["layers.2.layer_output"][tokens].norm(dim=-1).mean())
    print(f"image {index}: row {row}, grid {grid}, {int(tokens.sum())} tokens, mean stream norm {size:.1f}")
for row, probabilities in enumerate(values["next_token_probs"]):
    print(f"row {row}: {model.tokenizer.decode([int(probabilities.argmax())])!r}")
