"""The computation: one text decoder for all families, one file per vision encoder, and the flow that joins them."""
