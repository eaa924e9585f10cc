"""What the vision encoders share: where patches lie, packed attention, blocks, the merger.

All images and videos of a batch run as one row of patches, in merge-block order: the neighbours that the merger folds
into one token are consecutive. Attention runs inside each frame (or window). This module does not know text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutaway.config import VisionConfig
from cutaway.model import varlen
from cutaway.model.layers import Linear, wide_softmax
from cutaway.model.rope import rotate
from cutaway.named import Alias, Named, Value


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU by a sigmoid."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu": F.gelu,
    "silu": F.silu,
    "quick_gelu": quick_gelu,
}

Norm = Callable[..., nn.Module]
"""A norm class of `layers`, called with a width and ``eps``."""


@dataclass(frozen=True)
class PatchLayout:
    """Where each patch of the packed row lies.

    - `rows`, `columns`: [patches] int64, place in the item's grid, in patches.
    - `heights`, `widths`: [patches] int64, size of the item's grid, in patches.
    - `cu_seqlens`: [frames+1] int32 on the CPU, where each frame begins.
    """

    rows: Tensor
    columns: Tensor
    heights: Tensor
    widths: Tensor
    cu_seqlens: Tensor

    @classmethod
    def of(cls, grids: Sequence[Sequence[int]], merge: int, device: torch.device) -> PatchLayout:
        """The layout of items with `grids` (time, height, width in patches), each in merge-block order."""
        rows, columns, heights, widths, lengths = [], [], [], [], []
        for time, height, width in grids:
            blocks = (
                torch.arange(height * width, device="cpu")
                .view(height // merge, merge, width // merge, merge)
                .transpose(1, 2)
                .flatten()
            )
            rows.append((blocks // width).repeat(time))
            columns.append((blocks % width).repeat(time))
            heights.append(torch.full((time * height * width,), height, device="cpu"))
            widths.append(torch.full((time * height * width,), width, device="cpu"))
            lengths += [height * width] * time
        ends = torch.tensor([0, *lengths], device="cpu").cumsum(0, dtype=torch.int32)
        parts = [torch.cat(part).to(device) for part in (rows, columns, heights, widths)]
        return cls(*parts, cu_seqlens=ends)


def resampling(layout: PatchLayout, side: int) -> tuple[Tensor, Tensor]:
    """Which four of the `side` × `side` learned positions each patch mixes, and how much: [patches 4] int64, float32.

    Bilinear with aligned corners: the first and last patch of an axis sit on the first and last position.
    """
    row_at, row_part = _axis(layout.rows, layout.heights, side)
    column_at, column_part = _axis(layout.columns, layout.widths, side)
    positions = (row_at[:, :, None] * side + column_at[:, None, :]).flatten(1)
    return positions, (row_part[:, :, None] * column_part[:, None, :]).flatten(1)


def _axis(index: Tensor, size: Tensor, side: int) -> tuple[Tensor, Tensor]:
    source = index.float() * (side - 1) / (size - 1).clamp(min=1)
    below = source.floor()
    at = torch.stack((below, below + 1), 1)
    parts = (1 - (source[:, None] - at).abs()).clamp(min=0)
    return at.long().clamp(max=side - 1), parts


def packed_attention(queries: Tensor, keys: Tensor, values: Tensor, ends: list[int], scale: float) -> Tensor:
    """Attention inside each segment ``ends[i]:ends[i+1]`` of [1 heads patches head_dim], fused.

    Neighbouring segments of one length run as one batch: a video's frames, images of one size, windows.
    """
    outputs, start = [], 0
    lengths = [b - a for a, b in pairwise(ends)]
    for length, run in groupby(lengths):
        count = len(list(run))
        part = slice(start, start + count * length)
        start += count * length
        q, k, v = (x[0, :, part].unflatten(1, (count, length)).transpose(0, 1) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(q, k, v, scale=scale)
        outputs.append(out.transpose(0, 1).flatten(1, 2)[None])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


class PatchProjection(Named):
    """The patch embedding's weight in the published five-dimensional shape, applied as a matrix product.

    A convolution whose kernel equals its stride is a product with the flattened kernel, and far quicker.
    """

    def __init__(self, config: VisionConfig, *, bias: bool) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.weight = nn.Parameter(torch.empty(config.hidden_size, config.in_channels, *kernel))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, patches: Tensor) -> Tensor:
        """[patches channels*time*height*width] to [patches hidden]."""
        return F.linear(patches.to(self.weight.dtype), self.weight.flatten(1), self.bias)


class PatchEmbedding(Named):
    """Holds `proj` under its published name."""

    def __init__(self, config: VisionConfig, *, bias: bool) -> None:
        super().__init__()
        self.proj = PatchProjection(config, bias=bias)

    def forward(self, patches: Tensor) -> Tensor:
        """[patches channels*time*height*width] to [patches hidden]."""
        return self.proj(patches)


class VisionAttention(Named):
    """Attention inside each segment of the packed row: qkv -> rotary -> attention per segment -> proj."""

    attention_queries = Value("1 heads patches head_dim", "queries after the rotary, the whole row")
    attention_keys = Value("1 heads patches head_dim", "keys after the rotary, the whole row")
    attention_values = Value("1 heads patches head_dim", "values, the whole row")
    attention_scores = Value("heads patches patches", "never one tensor: see `attention_patterns`")
    attention_probabilities = Value("heads patches patches", "never one tensor: see `attention_patterns`")
    attention_patterns = Value(
        "heads query key", "the pattern of each image, frame or window of the row", is_list=True, computed=True
    )
    attention_head_outputs = Value("1 patches heads head_dim", "each head's weighted values, before `proj`")
    attention_output = Value("1 patches vision_hidden", "what attention adds to the stream", add_batch_axis=True)

    def __init__(self, config: VisionConfig, implementation: str) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.scale, self.implementation = config.head_dim**-0.5, implementation
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = Linear(config.hidden_size, config.hidden_size)
        for name in ("attention_scores", "attention_probabilities"):
            self.mark_unavailable(
                name,
                "attention runs inside each image, frame or window, so no one tensor is the block's pattern. Read "
                "`attention_patterns`, a list with one [heads n n] for each; the split points are "
                '`self_attn.inputs[1]["cu_seqlens"]`.',
            )

    def forward(self, x: Tensor, *, cu_seqlens: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """[patches hidden] to the same shape; `cu_seqlens` [segments+1] says where each segment begins."""
        queries, keys, values = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        queries = self.value("attention_queries", rotate(queries, *rope).transpose(0, 1)[None])
        keys = self.value("attention_keys", rotate(keys, *rope).transpose(0, 1)[None])
        values = self.value("attention_values", values.transpose(0, 1)[None])
        ends = cu_seqlens.tolist()
        if self.implementation == "eager" or self.wants("attention_patterns"):
            heads = self._stepwise(queries, keys, values, ends)
        elif self.implementation == "varlen":
            varlen.check(queries)
            q, k, v = (x[0].transpose(0, 1) for x in (queries, keys, values))
            heads = varlen.segments(q, k, v, ends, causal=False).transpose(0, 1)[None]
        else:
            heads = packed_attention(queries, keys, values, ends, self.scale)
        heads = self.value("attention_head_outputs", heads.transpose(1, 2))
        return self.value("attention_output", self.proj(heads[0].flatten(1)))

    def _stepwise(self, queries: Tensor, keys: Tensor, values: Tensor, ends: list[int]) -> Tensor:
        spans = [slice(a, b) for a, b in pairwise(ends)]
        scores = [queries[0, :, s] @ keys[0, :, s].transpose(-1, -2) * self.scale for s in spans]
        patterns = [wide_softmax(s).to(queries.dtype) for s in scores]
        patterns = self.value("attention_patterns", patterns)
        return torch.cat([p @ values[0, :, s] for p, s in zip(patterns, spans, strict=True)], 1)[None]


class VisionMLP(Named):
    """Linear layers around an activation, under the family's published names (`names`).

    Two names: ``last(act(first(x)))``. Three: ``last(act(first(x)) * second(x))``, the gated form (Shazeer 2020).
    """

    mlp_hidden = Value(
        "1 patches vision_intermediate", "what the last layer reads, after the activation", add_batch_axis=True
    )
    mlp_output = Value("1 patches vision_hidden", "what the MLP adds to the stream", add_batch_axis=True)

    def __init__(self, config: VisionConfig, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.activation = names, ACTIVATIONS[config.hidden_act]
        for name in names[:-1]:
            self.add_module(name, Linear(config.hidden_size, config.intermediate_size))
        self.add_module(names[-1], Linear(config.intermediate_size, config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """[patches hidden] to the same shape."""
        first, *second, last = (self.get_submodule(name) for name in self.names)
        hidden = self.activation(first(x))
        if second:
            hidden = hidden * second[0](x)
        return self.value("mlp_output", last(self.value("mlp_hidden", hidden)))


class VisionBlock(Named):
    """``h = x + attn(norm1(x)); out = h + mlp(norm2(h))``, on [patches hidden]."""

    layer_output = Value("1 patches vision_hidden", "the stream after the block", add_batch_axis=True)
    self_attn = Alias("attn")

    def __init__(self, config: VisionConfig, implementation: str, norm: Norm, mlp_names: tuple[str, ...]) -> None:
        super().__init__()
        self.norm1 = norm(config.hidden_size, eps=config.norm_eps)
        self.norm2 = norm(config.hidden_size, eps=config.norm_eps)
        self.attn = VisionAttention(config, implementation)
        self.mlp = VisionMLP(config, mlp_names)

    def forward(self, x: Tensor, *, cu_seqlens: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """[patches hidden] to the same shape."""
        x = x + self.attn(self.norm1(x), cu_seqlens=cu_seqlens, rope=rope)
        x = x + self.mlp(self.norm2(x))
        return self.value("layer_output", x)
