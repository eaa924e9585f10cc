"""Split an answer's logit into the model's components, or follow its gradient to the pixels of the image."""
