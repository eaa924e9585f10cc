"""Vision attention: where patches look inside the vision encoder, for one image or video or a region of it.

Use it to see what the encoder mixes before the text decoder sees the image. A patch sees its own frame alone, and in
most layers of Qwen2.5-VL its own window alone; everything else has weight zero. Patterns are computed from queries and
keys as the forward passes, in pieces. The text decoder's attention is `attention_map`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.patterns import mean_over_queries
from cutaway.analysis.common.arguments import check_model, item_index, layer_numbers, sample_index
from cutaway.analysis.common.caption import caption
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import geometry
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.inputs.geometry.layout import MediaItem, to_raster
from cutaway.trace.run import run_values


@dataclass(frozen=True, eq=False)
class VisionAttention(Result, technique="vision_attention"):
    """Attention from patches of one image or video to all its patches, averaged over the patches that look.

    - `source`: the patches that look, in words. `about`: the model and the prompt. `item`: the image or video.
    - `weights`: "layer head frame row column" in the patch grid; each head's weights sum to one.
    """

    source: str
    about: str
    item: str
    weights: Array

    def map(self, layer: int | str | None = None, head: int | str | None = None) -> Array:
        """Return the weights "frame row column" of one layer and head; None averages over all."""
        where = {name: str(value) for name, value in (("layer", layer), ("head", head)) if value is not None}
        picked = self.weights.at(**where).values
        return Array.of(picked.reshape(-1, *picked.shape[-3:]).mean(0), "frame row column", unit="attention")

    def summary(self) -> str:
        """Return a table: each layer's strongest patch, and the smallest share of patches that have half the weight."""
        rows = []
        for layer in self.weights.names("layer"):
            result = self.map(layer)
            frame, row, column = result.peak()
            falling = np.sort(result.values.ravel())[::-1].cumsum()
            half = float((falling < falling[-1] / 2).sum() + 1) / result.values.size
            rows.append((layer, f"f{frame} r{row} c{column}", float(result.values.max()), half))
        columns = ("layer", "strongest patch", "weight", "share of patches with half")
        return f"Vision encoder, {self.item}, attention from {self.source}\n{table(columns, rows)}"

    def figure(self, background: Any = None, *, layer: int | str | None = None, frame: int = 0) -> Any:
        """Draw the layers' maps (mean over heads) beside the image; with `layer` its heads."""
        return self._draw("draw_vision_attention", background, layer, frame)


def vision_attention(
    model: Model,
    inputs: Inputs,
    *,
    image: int | None = None,
    video: int | None = None,
    box: tuple[float, float, float, float] | None = None,
    layers: int | Sequence[int] | None = None,
    edit: Mapping[str, Any] | None = None,
) -> VisionAttention:
    """Return the attention inside the vision encoder from the patches in `box`, or from all, of one image or video.

    - `image`, `video`: an index in the batch; default the only image or video of the batch.
    - `box`: (left, top, right, bottom) in pixels of the original image; it takes whole tokens, four patches each.
    - `layers`: vision layers by number, by default all. - `edit`: changes by address that are made in the run.

    Raises `InputError` for wrong arguments, or where the prompt has no such image.
    """
    check_model(model, "Vision attention")
    sample_index(inputs, 0)
    where = geometry(inputs)
    medium = item_index(inputs, image, video)
    item = where.item(**medium)
    patches = where.image_patches if item.kind == "image" else where.video_patches
    mine = torch.from_numpy(np.flatnonzero(patches.item == item.index))
    looking = torch.arange(len(mine))
    if box is not None:
        selected = where.select(box=box, **medium)
        in_box = selected.image_patches if item.kind == "image" else selected.video_patches
        looking = torch.isin(mine, in_box).nonzero()[:, 0]
    numbers = layer_numbers(layers, range(model.vision.num_layers), model.vision.num_layers)
    weights = _weights(model, inputs, numbers, (_encoder_order(inputs, item, mine), looking), edit)
    raster = torch.stack([to_raster(heads.T, item.grid, where.merge).permute(3, 0, 1, 2) for heads in weights])
    return VisionAttention(
        source="all patches" if box is None else f"box {', '.join(f'{side:g}' for side in box)}",
        about=caption(model, inputs, item.sample),
        item=f"{item.kind} {item.index}",
        weights=Array.of(raster, "layer head frame row column", {"layer": numbers}, "attention"),
    )


def _encoder_order(inputs: Inputs, item: MediaItem, patches: Tensor) -> Tensor:
    """The index in the encoder's sequence of the `patches` of an item, which are numbered among those of its kind."""
    where = geometry(inputs)
    before = 0 if item.kind == "image" else len(where.image_patches.item)
    if where.window_side is None:
        return patches + before
    return where.window_order(item.kind).argsort()[patches] + before


def _weights(
    model: Model,
    inputs: Inputs,
    layers: Sequence[int],
    patches: tuple[Tensor, Tensor],
    edit: Mapping[str, Any] | None,
) -> list[Tensor]:
    """For each layer [heads patches]: attention from the looking patches to all of the item, in the item's order."""
    reduce: dict[str, Callable[[Any], Any]] = {}
    for layer in layers:
        reducer, host = _MeanPattern(model.vision.head_dim**-0.5, *patches), f"vision.layers.{layer}.self_attn"
        reduce |= {
            f"{host}.inputs": reducer.segments,
            f"{host}.attention_queries": reducer.queries,
            f"{host}.attention_keys": reducer.keys,
        }
    values = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    return [values[f"vision.layers.{layer}.self_attn.attention_keys"] for layer in layers]


class _MeanPattern:
    """Of one vision layer: the mean pattern of the looking patches; `place` [patches] is each patch's sequence index.

    Attention stays inside a segment (a frame or window), so each segment's part is computed by itself.
    """

    def __init__(self, scale: float, position: Tensor, looking: Tensor) -> None:
        self.scale, self.position, self.looking = scale, position, looking
        self.ends: list[int] = []
        self.layer_queries = torch.empty(0)

    def segments(self, value: tuple[tuple, dict[str, Any]]) -> None:
        """The attention's arguments, with the ends of the segments."""
        self.ends = value[1]["cu_seqlens"].tolist()

    def queries(self, value: Tensor) -> None:
        """[1 heads patches head_dim]"""
        self.layer_queries = value[0]

    def keys(self, value: Tensor) -> Tensor:
        """[1 heads patches head_dim] to [heads patches of the item] float32"""
        total = torch.zeros(value.shape[1], value.shape[2])
        looking = self.position[self.looking]
        for start, stop in pairwise(self.ends):
            at = looking[(looking >= start) & (looking < stop)].to(value.device)
            if len(at):
                mean = mean_over_queries(self.layer_queries[:, at], value[0, :, start:stop], self.scale)
                total[:, start:stop] = mean.cpu() * len(at)
        self.layer_queries = torch.empty(0)
        return total[:, self.position] / len(looking)
