"""Figures of results: tables, bars, lines, and values beside the image that they belong to."""
