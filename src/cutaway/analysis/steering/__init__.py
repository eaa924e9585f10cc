"""Steering vectors: directions from contrasting prompts, added to a value while the model answers."""
