"""Attention patterns of the text decoder and the vision encoder, read over the image."""
