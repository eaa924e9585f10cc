"""Split an answer's logit into components, or follow its gradient to the image."""
