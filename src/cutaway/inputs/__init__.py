"""From images, videos and messages to the tensors that a model is given."""
