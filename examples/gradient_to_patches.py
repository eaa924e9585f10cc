"""Asks which patches the answer's logit depends on: its gradient at the patch embeddings, times their values."""

from pathlib import Path

import cutaway

image = Path(__file__).parent / "media" / "digit.png"
model = cutaway.load("nano")
inputs = model.prepare(model.prompt("What digit is this?", images=1), images=[image])

with model.trace(inputs, grad=True) as run:
    patches = model.vision.patch_embeddings  # [1 patches vision_hidden]
    patches.retain_grad()
    logits = model.logits[0, -1]
    best = int(logits.argmax())
    logits[best].backward()

matters = (patches * patches.grad).sum(-1)[0].detach()
print(f"answer {model.tokenizer.decode([best])!r}; {len(matters)} patches, in merge-block order")
for row in matters.abs().argsort(descending=True)[:5].tolist():
    print(f"patch {row}: {float(matters[row]):+.3f}")
