"""Chat templates, tokenizers and the placeholders of images and videos."""
