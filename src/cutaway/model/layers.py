"""The leaf modules: torch's own, made `Named`, and the norm and the gated MLP that the text decoder is built of.

They know shapes and dtypes. They do not know which block they sit in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutaway.named import Named, Value

M = TypeVar("M", bound=nn.Module)


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32, the precision of norms, softmaxes and states; float64 stays as it is."""
    return x if x.dtype is torch.float64 else x.float()


def wide_softmax(x: Tensor) -> Tensor:
    """Return the softmax over the last axis, computed in float32, or in float64 for a model in float64."""
    return F.softmax(x, dim=-1, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


class Stack(nn.ModuleList, Generic[M]):
    """`torch.nn.ModuleList` that knows the class of its members, for type checkers."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[M]: ...

        def __getitem__(self, index: int) -> M: ...  # type: ignore[override]


class _Fillable:
    """Leaves weights on `meta` as they are: filling nothing would load a second's worth of torch's tracing code."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # type: ignore[attr-defined]
            super().reset_parameters()  # type: ignore[misc]


class Linear(_Fillable, Named, nn.Linear):
    """`torch.nn.Linear` with `input` and `output`."""


class Embedding(_Fillable, Named, nn.Embedding):
    """`torch.nn.Embedding` with `input` and `output`."""


class LayerNorm(_Fillable, Named, nn.LayerNorm):
    """`torch.nn.LayerNorm` with `input` and `output`."""


class RMSNorm(Named):
    """Root-mean-square norm (Zhang and Sennrich 2019) over the last axis, computed in float32 or float64.

    `centred` weights are stored as an offset from one (Qwen3.5). The result is rounded to the input's dtype before it
    is scaled, as the reference does.
    """

    def __init__(self, width: int, eps: float, *, centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.centred = eps, centred
        if centred:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[… width] to the same shape."""
        weight = self.weight
        if self.centred:
            return torch.rms_norm(widened(x), weight.shape, 1.0 + widened(weight), self.eps).to(x.dtype)
        normed = torch.rms_norm(widened(x), weight.shape, None, self.eps)
        return weight * (normed if x.dtype is torch.float32 else normed.to(x.dtype))

    def extra_repr(self) -> str:
        """Width and epsilon, for the printout."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class GatedMLP(Named):
    """SwiGLU (Shazeer 2020): ``down(silu(gate(x)) * up(x))``."""

    mlp_hidden = Value("batch seq intermediate", "`silu(gate) * up`, what `down_proj` reads")
    mlp_output = Value("batch seq hidden", "what the MLP adds to the stream")

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden, bias=False)
        self.up_proj = Linear(width, hidden, bias=False)
        self.down_proj = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch seq hidden] to the same shape."""
        hidden = self.value("mlp_hidden", F.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.value("mlp_output", self.down_proj(hidden))
