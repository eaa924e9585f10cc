"""Puts what one image became into the run of another: the answer follows the features, not the pixels."""

from pathlib import Path

from PIL import Image, ImageDraw

import cutaway

model = cutaway.load("nano")
prompt = model.prompt("What color is the square?", images=1)
taps = range(len(model.config.vision.deepstack_indexes))
red = Image.open(Path(__file__).parent / "media" / "square.png")
blue = Image.new("RGB", red.size, "white")
ImageDraw.Draw(blue).rectangle((16, 16, 47, 47), fill="blue")

with model.trace(prompt, images=[blue]):
    features = model.vision.image_features
    terms = [model.layers[k].deepstack_output for k in taps]
    before = model.next_token_probs[0].argmax()

with model.trace(prompt, images=[red]):
    model.vision.image_features = features
    for k in taps:
        model.layers[k].deepstack_output = terms[k]
    after = model.next_token_probs[0].argmax()

print("the red image:", model.ask("What color is the square?", images=[red]))
print("the blue image:", model.tokenizer.decode([int(before)]))
print("the red image with the blue one's features:", model.tokenizer.decode([int(after)]))
assert before == after
