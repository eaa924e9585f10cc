"""A question and its images and videos as messages: the media first, then the text, in one user's turn."""

from __future__ import annotations

from typing import Any

from cutaway.inputs.gather import arrange_images, arrange_videos


def as_messages(text: str, images: Any = None, videos: Any = None, system: str | None = None) -> list[dict[str, Any]]:
    """Messages for the processor, with the media inside; `images` and `videos` are one or a list."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in arrange_images(images)[0]]
    parts += [{"type": "video", "video": video} for video in arrange_videos(videos)[0]]
    turns: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    return [*turns, {"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
