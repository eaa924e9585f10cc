"""`Inputs`: all that a model is given for one call, as tensors, with the keys of transformers' processor.

It knows shapes and devices. It does not know how an image became patches, what a token says, or how positions are
counted: `cutaway.inputs` makes those and puts them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

KEYS = (
    "input_ids",
    "attention_mask",
    "mm_token_type_ids",
    "pixel_values",
    "image_grid_thw",
    "pixel_values_videos",
    "video_grid_thw",
    "second_per_grid_ts",
)
"""The keys that `Inputs` has as a mapping, those of transformers' processor, in its order."""

TEXT, IMAGE, VIDEO = 0, 1, 2
"""The values of `mm_token_type_ids`."""


@dataclass(frozen=True, eq=False)
class Inputs(Mapping[str, Tensor]):
    """What one call of the model takes.

    As a mapping it has the keys of transformers' processor that are present; the rest are attributes.

    - `input_ids`: [batch seq] int64, placeholders expanded.
    - `attention_mask`: [batch past+seq] int64, 0 at padding, anywhere in a sample: a masked token is as if it were not
      there. Longer than `input_ids` when a cache holds the past.
    - `mm_token_type_ids`: [batch seq] int64, 0 text and padding, 1 image, 2 video.
    - `pixel_values`, `pixel_values_videos`: [patches channels*time*height*width] float32, rows in merge-block order.
    - `image_grid_thw`, `video_grid_thw`: [items 3] int64, time, height and width in patches.
    - `second_per_grid_ts`: [videos] float32, seconds per temporal grid (Qwen2.5-VL).
    - `position_ids`: [3 batch seq] int64, time, height and width positions of every token.
    - `next_position`: [batch] int64, the position of the first token that follows each row.
    - `geometry`: the `cutaway.inputs.geometry.geometry.Geometry` of the batch, if images or videos were prepared by us.
    """

    input_ids: Tensor
    attention_mask: Tensor
    mm_token_type_ids: Tensor
    position_ids: Tensor
    next_position: Tensor
    pixel_values: Tensor | None = None
    image_grid_thw: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    second_per_grid_ts: Tensor | None = None
    geometry: Any = None

    def __getitem__(self, key: str) -> Tensor:
        value = getattr(self, key) if key in KEYS else None
        if value is None:
            raise KeyError(f"{key!r}; this batch has {', '.join(self)}")
        return value

    def __iter__(self) -> Iterator[str]:
        return (key for key in KEYS if getattr(self, key) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to(self, device: torch.device | str) -> Inputs:
        """The same batch with every tensor on `device`; this one if all are there."""
        device = torch.device(device)
        moved = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.device != device
        }
        return replace(self, **moved) if moved else self

    @property
    def rope_deltas(self) -> Tensor:
        """[batch 1] int64: the next position less the count of unpadded tokens (transformers' `rope_deltas`)."""
        return (self.next_position - self.attention_mask.sum(-1))[:, None]


class GeneratedText(str):
    """The text of an answer, without special tokens, that also has the `ids` it was generated as.

    As the content of an assistant's message it is put into the prompt as exactly these ids, wherever the chat template
    shows the answer unchanged. It is an ordinary string otherwise, and so is everything made of it.
    """

    ids: tuple[int, ...]

    def __new__(cls, text: str, ids: Sequence[int]) -> GeneratedText:
        """The text, and the ids without the end token, which the template writes."""
        generated = super().__new__(cls, text)
        generated.ids = tuple(ids)
        return generated

    def __getnewargs__(self) -> tuple[str, tuple[int, ...]]:  # type: ignore[override] - str's has one
        """What copies and pickles are made from."""
        return str(self), self.ids
