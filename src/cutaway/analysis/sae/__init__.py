"""Sparse autoencoders: load, read features, edit by them."""
