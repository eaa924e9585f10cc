"""Read a video, sample its frames and turn them into patches."""
