"""Where each token and patch lies in its image or video, and values drawn over it."""
