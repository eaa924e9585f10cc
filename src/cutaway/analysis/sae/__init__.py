"""Sparse autoencoders: load one, read a value in its features, edit features, find the regions they fire on."""
