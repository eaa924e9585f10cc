"""A toy of the kind of tree that a trace works on: two stages, blocks, and one value of every sort."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutaway.named import Alias, Named, Value
from cutaway.trace.run import Run


class Linear(Named, nn.Linear):
    pass


class Attention(Named):
    queries = Value("batch seq width", "queries")
    probabilities = Value("batch query key", "the pattern", computed=True)
    patterns = Value("query key", "the pattern of each row", is_list=True, computed=True)
    scores = Value("batch query key", "never there")
    attention_output = Value("batch seq width", "what it adds")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(width, width), Linear(width, width), Linear(width, width)
        self.mark_unavailable("scores", "the toy fuses them. Read `probabilities`.")

    def forward(self, x: Tensor, *, scale: float, bounds: Tensor | None = None) -> Tensor:
        q = self.value("queries", self.q(x))
        k, v = self.k(x), self.v(x)
        if self.wants("probabilities", "patterns"):
            weights = self.value("probabilities", torch.softmax(q @ k.transpose(-1, -2) * scale, -1))
            if self.wants("patterns"):
                weights = torch.stack(self.value("patterns", list(weights.unbind(0))))
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=scale)[:, 0]
        return self.value("attention_output", out)


class Block(Named):
    layer_output = Value("batch seq width", "the stream after the block")
    extra = Value("tokens width", "what is added after the first block", why_absent="The input has no image.")

    def __init__(self, width: int, index: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(width), Linear(width, width)
        if index:
            self.mark_unavailable("extra", "it is added after block 0 only.")

    self_attn = Alias("attn")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x, scale=x.shape[-1] ** -0.5)
        x = x + torch.tanh(self.mlp(x))
        return self.value("layer_output", x)


class Tower(Named):
    """Native [rows width], served with a leading axis."""

    stream = Value("1 rows width", "the rows", add_batch_axis=True)
    rows_mask = Value("batch seq", "where rows go", from_inputs=True, writable=False, dtype="bool")
    pair = Value("rows width", "a piece of a split")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = Linear(width, 2 * width)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.proj(self.value("stream", rows * 1)).chunk(2, -1)
        return self.value("pair", first), second


class Decoder(Named):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, i) for i in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, extra: Tensor | None) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 0 and extra is not None:
                x = x + block.value("extra", extra).mean(0)
        return self.norm(x)


class Toy(Named):
    ids = Value("batch seq", "the ids", from_inputs=True, writable=False, dtype="int64")
    size = Value("2", "the size of the ids", from_inputs=True, writable=False)
    embeddings = Value("batch seq width", "what enters block 0")
    logits = Value("batch seq vocab", "the head's output")
    probs = Value("batch vocab", "softmax at the last place", computed=True, writable=False)

    layers = Alias("decoder.blocks")
    vision = Alias("tower")
    stream = Alias("tower.stream")

    def __init__(self, width: int = 6, depth: int = 3, vocab: int = 11, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocab, width)
            self.tower, self.decoder, self.head = Tower(width), Decoder(width, depth), Linear(width, vocab)
            for parameter in self.parameters():
                parameter.data = torch.randn_like(parameter) * 0.6
        self.num_layers = depth

    def forward(self, ids: Tensor, rows: Tensor | None = None) -> Tensor:
        x, extra = self.embed(ids), None
        if rows is not None:
            first, extra = self.tower(rows)
            x = x + first.mean(0)
        hidden = self.decoder(self.value("embeddings", x), extra)
        logits = self.value("logits", self.head(hidden))
        if self.wants("probs"):
            self.value("probs", logits[:, -1].softmax(-1))
        return logits


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
ROWS = torch.linspace(-1, 1, 30).view(5, 6)


def opened(toy: nn.Module, *, ids: Tensor = IDS, rows: Tensor | None = ROWS, **options: Any) -> Run:
    """A run of the toy over the usual input."""
    return Run(toy, lambda: toy(ids, rows), input_values=input_values(ids), **options)


def input_values(ids: Tensor = IDS) -> Mapping[str, Tensor | Callable[[], Any]]:
    return {"ids": ids, "size": lambda: torch.tensor(ids.shape), "vision.rows_mask": lambda: ids > 3}
