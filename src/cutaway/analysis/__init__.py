"""Techniques on named values, one a file: each takes a model and inputs and returns a plain result with named axes."""
