"""Where the image enters the text stream: features scattered over their placeholders, DeepStack terms added to them.

Rows are counted before anything is scattered, since one row too many would shift every image after it. This module
does not know where features come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.errors import InputError


def scatter(embeddings: Tensor, mask: Tensor, features: Tensor, kind: str) -> Tensor:
    """`embeddings` [batch seq hidden] with `features` [tokens hidden] in the rows of `mask` [batch seq], in order."""
    positions = int(mask.sum())
    if positions != features.shape[0]:
        raise InputError(
            f"Every {kind} placeholder takes one row of features: the batch has {positions} placeholder tokens and "
            f"{features.shape[0]} rows. Prepare text and {kind}s together with the model's processor."
        )
    return embeddings.masked_scatter(mask[..., None], features.to(embeddings.dtype))


def add_at(stream: Tensor, mask: Tensor, terms: Tensor) -> Tensor:
    """`stream` [batch seq hidden] with `terms` [tokens hidden] added to the rows of `mask` [batch seq], in order."""
    return stream.masked_scatter(mask[..., None], stream[mask] + terms.to(stream.dtype))


def sequence_order(image_mask: Tensor, video_mask: Tensor) -> Tensor | None:
    """[tokens] int64: for each visual token in sequence order its row among [all images' rows; all videos' rows].

    None where that is the identity: only images, or only videos.
    """
    images = int(image_mask.sum())
    if images == 0 or not bool(video_mask.any()):
        return None
    rows = torch.zeros_like(image_mask, dtype=torch.int64)
    rows = rows.masked_scatter(image_mask, torch.arange(images, device=rows.device))
    rows = rows.masked_scatter(video_mask, torch.arange(images, images + int(video_mask.sum()), device=rows.device))
    return rows[image_mask | video_mask]
