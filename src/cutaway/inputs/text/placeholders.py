"""From a prompt to ids: each placeholder of an image or video becomes as many as there are tokens in its grids.

It knows the tokenizer, the control tokens of images and videos, and grids. It does not know pixels, files or messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cutaway.batch import IMAGE, TEXT, VIDEO
from cutaway.config import Config
from cutaway.errors import CheckpointError
from cutaway.inputs.geometry.layout import Grid
from cutaway.inputs.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class VideoPlan:
    """What a prompt needs to know of a video: its grid in patches, and the stamps of its temporal grids."""

    grid: Grid
    stamps: tuple[str, ...] = ()


class PlaceholderExpander:
    """Counts and expands the placeholders of one model's prompts."""

    def __init__(self, tokenizer: Tokenizer, config: Config) -> None:
        """`CheckpointError` when the vocabulary lacks the control tokens that the config names."""
        self._tokenizer, self._timestamps = tokenizer, config.timestamps
        self._merge = config.vision.spatial_merge_size
        self._kinds = {config.image_token_id: IMAGE, config.video_token_id: VIDEO}
        self.image, self.video = self._name(config.image_token_id), self._name(config.video_token_id)
        self.start, self.end = self._name(config.vision_start_token_id), self._name(config.vision_end_token_id)
        image, video = re.escape(self.image), re.escape(self.video)
        self._placeholder = re.compile(f"{image}|{video}")
        self._outer = re.compile(f"{image}|{re.escape(self.start)}{video}{re.escape(self.end)}|{video}")

    def _name(self, id: int) -> str:
        name = self._tokenizer.name_of(id)
        if name is None:
            raise CheckpointError(
                f"config.json names the token id {id}, which the tokenizer (of {len(self._tokenizer)} tokens) does not "
                f"have. The config and the tokenizer files are not of one checkpoint."
            )
        return name

    def count(self, text: str) -> tuple[int, int]:
        """How many image and video placeholders a prompt (with marks) has."""
        result = self._placeholder.findall(text)
        return result.count(self.image), result.count(self.video)

    def ids(
        self, text: str, images: Iterator[Grid], plans: Iterator[VideoPlan], nested: bool = False
    ) -> tuple[list[int], list[int]]:
        """Ids and token types of a prompt (with marks), images and videos taken from the iterators as they occur.

        On the families with time stamps a video becomes, per temporal grid, its stamp and the grid's tokens between a
        vision start and a vision end, in place of the template's own pair; with `nested` inside it.
        """
        runs: list[int] = []

        def replaced(match: re.Match[str]) -> str:
            if match[0] == self.image:
                runs.append(self._cells(next(images)))
                return self.image
            plan = next(plans)
            if not self._timestamps:
                runs.append(self._cells(plan.grid))
                return match[0]
            runs.extend([self._cells((1, *plan.grid[1:]))] * plan.grid[0])
            return "".join(f"{stamp}{self.start}{self.video}{self.end}" for stamp in plan.stamps)

        pattern = self._outer if self._timestamps and not nested else self._placeholder
        return self._repeated(self._tokenizer.encode_marked(pattern.sub(replaced, text)), runs)

    def _repeated(self, ids: Sequence[int], runs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids with each placeholder repeated, and their types."""
        counts, expanded, types = iter(runs), [], []
        for id in ids:
            kind = self._kinds.get(id, TEXT)
            times = 1 if kind == TEXT else next(counts)
            expanded += [id] * times
            types += [kind] * times
        return expanded, types

    def _cells(self, grid: Grid) -> int:
        return grid[0] * grid[1] * grid[2] // self._merge**2
