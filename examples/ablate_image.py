"""Takes the image away, one way in after the other, and watches the answer.

An image reaches the text model as rows among the embeddings and as DeepStack terms after the first layers.
"""

from pathlib import Path

import cutaway

image = Path(__file__).parent / "media" / "square.png"
model = cutaway.load("nano")
prompt = model.prompt("What color is the square?", images=1)
taps = range(len(model.config.vision.deepstack_indexes))


def answer(features: bool, deepstack: bool) -> str:
    """The most likely next word with some ways cut."""
    with model.trace(prompt, images=[image]):
        if features:
            model.vision.image_features[:] = 0
        for k in taps if deepstack else ():
            model.layers[k].deepstack_output[:] = 0
        probabilities = model.next_token_probs[0]
    best = int(probabilities.argmax())
    return f"{model.tokenizer.decode([best])!r} {float(probabilities[best]):.0%}"


print("whole image:             ", answer(features=False, deepstack=False))
print("without image_features:    ", answer(features=True, deepstack=False))
print("without the DeepStack terms:", answer(features=False, deepstack=True))
print("without either:            ", answer(features=True, deepstack=True))
