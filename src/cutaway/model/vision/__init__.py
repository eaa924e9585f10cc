"""The vision encoders, one file per generation, and the parts that they share."""
