"""Where patches look inside the vision encoder: its own patterns, one image, video or region at a time.

A patch sees its own frame alone, and on most layers of Qwen2.5-VL its own window alone; what lies outside has weight
zero. The patterns are computed from queries and keys as the forward passes, in chunks. It says nothing about the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.attention.pattern_rows import mean_rows, numbered
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import geometry
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.inputs.geometry.layout import MediaItem, to_raster
from cutaway.trace.run import run_values


@dataclass(frozen=True, eq=False)
class VisionAttention(Result, technique="vision_attention"):
    """What patches of one image or video spend on its patches, averaged over the patches that look.

    `weights`: "layer head frame row column" in the patch grid; each head's sum to one.
    """

    source: str
    item: str
    weights: Array

    def map(self, layer: int | str | None = None, head: int | str | None = None) -> Array:
        """The weights "frame row column" of one layer and head; None averages."""
        where = {name: str(value) for name, value in (("layer", layer), ("head", head)) if value is not None}
        picked = self.weights.at(**where).values
        return Array.of(picked.reshape(-1, *picked.shape[-3:]).mean(0), "frame row column", unit="attention")

    def summary(self) -> str:
        """For each layer the strongest patch and how even the map is, as the part of patches that hold half of it."""
        rows = []
        for layer in self.weights.names("layer"):
            values = self.map(layer).values
            frame, row, column = np.unravel_index(int(values.argmax()), values.shape)
            falling = np.sort(values.ravel())[::-1].cumsum()
            half = float((falling < falling[-1] / 2).sum() + 1) / values.size
            rows.append((layer, f"f{frame} r{row} c{column}", float(values.max()), half))
        columns = ("layer", "strongest patch", "weight", "part of patches with half")
        return f"Vision encoder, {self.item}, from {self.source}\n{table(columns, rows)}"

    def figure(self, background: Any = None, *, layer: int | str | None = None, frame: int = 0) -> Any:
        """The layers' maps over the image, mean over heads; with `layer` its heads."""
        from cutaway.analysis.plots.figures import Panel, panels_figure

        axis = "layer" if layer is None else "head"
        panels = [] if background is None else [Panel(background, None, "image")]
        for name in self.weights.names(axis):
            found = self.map(name) if layer is None else self.map(layer, name)
            panels.append(Panel(background, found.values[frame], f"{axis} {name}"))
        title = f"Vision encoder, attention from {self.source}" + ("" if layer is None else f", layer {layer}")
        return panels_figure(panels, title=title, unit="attention")


def vision_attention(
    model: Model,
    inputs: Inputs,
    *,
    image: int = 0,
    video: int | None = None,
    box: tuple[float, float, float, float] | None = None,
    layers: int | Sequence[int] | None = None,
    edit: Mapping[str, Any] | None = None,
) -> VisionAttention:
    """Attention of the vision encoder's layers from the patches in `box`, or from all, of one image or video.

    `image` and `video` count in the batch; `box` is (left, top, right, bottom) in the image's pixels. A region takes
    whole tokens, the four patches of each. Raises `InputError` for what there is not.
    """
    model.require_weights("Attention")
    where = geometry(inputs)
    medium: dict[str, Any] = {"image": image} if video is None else {"video": video}
    item = where.item(**medium)
    patches = where.image_patches if item.kind == "image" else where.video_patches
    mine = torch.from_numpy(np.flatnonzero(patches.item == item.index))
    chosen = torch.arange(len(mine))
    if box is not None:
        selected = where.select(box=box, **medium)
        rows = selected.image_patches if item.kind == "image" else selected.video_patches
        chosen = torch.isin(mine, rows).nonzero()[:, 0]
    wanted = numbered(layers, range(model.vision.num_layers), model.vision.num_layers)
    found = _weights(model, inputs, wanted, (_packed(inputs, item, mine), chosen), edit)
    merge = where.merge
    raster = torch.stack([to_raster(heads.T, item.grid, merge).permute(3, 0, 1, 2) for heads in found])
    return VisionAttention(
        source="all patches" if box is None else f"box {', '.join(f'{side:g}' for side in box)}",
        item=f"{item.kind} {item.index}",
        weights=Array.of(raster, "layer head frame row column", {"layer": wanted}, "attention"),
    )


def _packed(inputs: Inputs, item: MediaItem, mine: Tensor) -> Tensor:
    """Where the patches `mine` of an item, counted among their kind, stand in the encoder's row."""
    where = geometry(inputs)
    before = 0 if item.kind == "image" else len(where.image_patches.item)
    if where.window_side is None:
        return mine + before
    return where.window_order(item.kind).argsort()[mine] + before


def _weights(
    model: Model,
    inputs: Inputs,
    layers: Sequence[int],
    patches: tuple[Tensor, Tensor],
    edit: Mapping[str, Any] | None,
) -> list[Tensor]:
    """For each layer [heads patches]: attention from the chosen patches to all of the item, in its own order."""
    reduce: dict[str, Callable[[Any], Any]] = {}
    for layer in layers:
        taker, place = _Segments(model.vision.head_dim**-0.5, *patches), f"vision.layers.{layer}.self_attn"
        reduce |= {
            f"{place}.inputs": taker.segments,
            f"{place}.attention_queries": taker.queries,
            f"{place}.attention_keys": taker.keys,
        }
    found = run_values(model.root, lambda: model.root(inputs), read=list(reduce), reduce=reduce, edit=edit)
    return [found[f"vision.layers.{layer}.self_attn.attention_keys"] for layer in layers]


class _Segments:
    """Takes a layer's segments, queries and keys; `place` [patches] is each patch's place in the encoder's row."""

    def __init__(self, scale: float, place: Tensor, chosen: Tensor) -> None:
        self.scale, self.place, self.chosen = scale, place, chosen
        self.ends: list[int] = []
        self.held = torch.empty(0)

    def segments(self, value: tuple[tuple, dict[str, Any]]) -> None:
        """The attention's arguments"""
        self.ends = value[1]["cu_seqlens"].tolist()

    def queries(self, value: Tensor) -> None:
        """[1 heads patches head_dim]"""
        self.held = value[0]

    def keys(self, value: Tensor) -> Tensor:
        """[1 heads patches head_dim] to [heads patches of the item] float32"""
        total = torch.zeros(value.shape[1], value.shape[2])
        looking = self.place[self.chosen]
        for start, stop in pairwise(self.ends):
            rows = looking[(looking >= start) & (looking < stop)].to(value.device)
            if len(rows):
                pattern = mean_rows(self.held[:, rows], value[0, :, start:stop], self.scale)
                total[:, start:stop] = pattern.cpu() * len(rows)
        self.held = torch.empty(0)
        return total[:, self.place] / len(looking)
