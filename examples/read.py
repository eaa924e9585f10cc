"""Reads values on the way from an image to an answer, and checks that they are the way.

The image enters the text model twice: as rows among the embeddings, and once more after each of the first layers.
"""

from pathlib import Path

import torch

import cutaway

image = Path(__file__).parent / "media" / "square.png"
model = cutaway.load("nano")
prompt = model.prompt("What color is the square?", images=1)

with model.trace(prompt, images=[image]):
    mask = model.vision.image_token_mask
    features = model.vision.image_features
    first = model.layers[0].input
    attended = model.layers[0].self_attn.attention_output
    mlp = model.layers[0].mlp.mlp_output
    out = model.layers[0].layer_output
    added = model.layers[0].deepstack_output
    entering = model.layers[1].input
    probabilities = model.next_token_probs

print(f"{int(mask.sum())} of {mask.shape[1]} tokens are the image's, {features.shape[-1]} numbers each")
print("they enter layer 0 as they are:", torch.equal(first[mask], features))
print("a layer adds to its input:", torch.allclose(first + attended + mlp, out, atol=1e-5))
print("DeepStack adds after layer 0:", torch.equal(entering[mask], out[mask] + added))
likely = probabilities[0].topk(3)
for chance, token in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
    print(f"{chance:6.1%}  {model.tokenizer.decode([token])!r}")
