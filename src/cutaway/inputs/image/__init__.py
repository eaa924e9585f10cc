"""Open an image and turn it into the patches that the vision encoder reads."""
