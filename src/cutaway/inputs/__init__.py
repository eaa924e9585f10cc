"""From pictures, clips and messages to the tensors that a model is given."""
