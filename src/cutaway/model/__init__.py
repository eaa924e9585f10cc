"""The computation: one text decoder for all lines, one file per vision encoder, and the flow that joins them."""
