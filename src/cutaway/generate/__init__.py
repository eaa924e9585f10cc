"""From logits to tokens: sampling and the loop around the model, which keeps the cache."""
