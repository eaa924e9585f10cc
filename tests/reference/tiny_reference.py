"""The reference's tiny models, and its way of embedding patches."""

from __future__ import annotations

import families
import parity
import torch
import torch.nn.functional as F

from cutaway.model.vision.parts import PatchProjection


def reference_of(family: str, dtype: torch.dtype = torch.float32):
    """The family's tiny checkpoint, loaded by transformers."""
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    position = parity.DATA / "ckpt" / family
    settings = (
        {"experts_implementation": "eager"} if family in families.MIXTURES else {}
    )  # the grouped one needs wide rows
    return AutoModelForImageTextToText.from_pretrained(
        position, dtype=dtype, attn_implementation="sdpa", **settings
    ).eval()


def convolved(self: PatchProjection, patches: torch.Tensor) -> torch.Tensor:
    """The reference's patch embedding: a convolution whose kernel equals its stride; its sums run in another order."""
    kernel = self.weight
    out = F.conv3d(
        patches.to(kernel.dtype).view(-1, *kernel.shape[1:]), kernel, self.bias, stride=tuple(kernel.shape[2:])
    )
    return out.view(-1, kernel.shape[0])
