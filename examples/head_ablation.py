"""Switches off one attention head at a time, in one pass each, and ranks heads by what the answer loses."""

from pathlib import Path

import torch

import cutaway

image = Path(__file__).parent / "media" / "digit.png"
model = cutaway.load("nano")
inputs = model.prepare(model.prompt("What digit is this?", images=1), images=[image])
plain = model.run(inputs, read=["next_token_probs"])["next_token_probs"][0]
answer = int(plain.argmax())
print(f"answer {model.tokenizer.decode([answer])!r} at {float(plain[answer]):.1%}")

losses = torch.zeros(model.num_layers, model.num_heads)
for layer in range(model.num_layers):
    for head in range(model.num_heads):

        def off(outputs: torch.Tensor, head: int = head) -> None:
            outputs[:, :, head] = 0

        edit = {f"layers.{layer}.self_attn.attention_head_outputs": off}
        probs = model.run(inputs, read=["next_token_probs"], edit=edit)["next_token_probs"][0]
        losses[layer, head] = plain[answer] - probs[answer]

for index in losses.flatten().argsort(descending=True)[:5].tolist():
    layer, head = divmod(index, model.num_heads)
    print(f"layer {layer} head {head}: {float(losses[layer, head]):+.1%}")
