"""Which words of the vocabulary lie nearest to the features of an image's tokens.

Features need not lie near any word: the merger was not trained to put them there. So every similarity stands beside
`chance`, what the same features reach with their dimensions shuffled. A word that is near is no description of the
image; it is where the feature points in the space of the word embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import geometry
from cutaway.analysis.lens.logit_lens import CHUNK
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.run import run_values

TABLES = ("embeddings", "head")


@dataclass(frozen=True, eq=False)
class NearestTokens(Result, technique="nearest_tokens"):
    """The nearest words to each token of one image or video.

    - `words`: [token][rank]; `similarity`: cosines "token rank"; tokens in raster order, frame by frame.
    - `chance`: the mean cosine of the nearest word when the features' dimensions are shuffled.
    - `grid`: frames, rows and columns.
    """

    item: str
    words: tuple[tuple[str, ...], ...]
    similarity: Array
    chance: float
    grid: tuple[int, int, int]
    against: str

    def summary(self) -> str:
        """The words that are nearest to most tokens."""
        first = [row[0] for row in self.words]
        best = sorted(dict.fromkeys(first), key=lambda w: -first.count(w))[:10]
        mean = {w: float(np.mean([self.similarity.values[n, 0] for n, v in enumerate(first) if v == w])) for w in best}
        rows = [(repr(word), first.count(word), mean[word]) for word in best]
        return (
            f"{self.item}: nearest words among the {self.against}\n{table(('word', 'tokens', 'mean cosine'), rows)}\n"
            f"Mean cosine of the nearest word {self.similarity.values[:, 0].mean():.3f}; by chance {self.chance:.3f}."
        )

    def figure(self, background: Any = None, *, frame: int = 0) -> Any:
        """The nearest word over each token of the image."""
        from cutaway.analysis.plots.maps import words_figure

        cells = self.similarity.values[:, 0].reshape(self.grid)[frame]
        words = np.array([row[0] for row in self.words], object).reshape(self.grid)[frame].tolist()
        title = f"nearest words among the {self.against} (by chance {self.chance:.2f})"
        return words_figure(cells, words, background, title=title, unit="cosine")


def nearest_tokens(
    model: Model,
    inputs: Inputs,
    *,
    image: int = 0,
    video: int | None = None,
    top: int = 5,
    against: str = "embeddings",
    seed: int = 0,
) -> NearestTokens:
    """The nearest vocabulary words, by cosine, to the features of one image or video, numbered in the batch.

    `against`: ``"embeddings"``, the rows of the embedding table, or ``"head"``, those of the head; the same where the
    model ties them. `seed` shuffles the control. Raises `InputError` for what there is not.
    """
    model.require_weights("The nearest words")
    if against not in TABLES or top < 1:
        raise InputError(f"`against` is {' or '.join(TABLES)}, and `top` at least 1; got {against!r} and {top}.")
    where = geometry(inputs)
    item = where.item(image=image) if video is None else where.item(video=video)
    name = f"vision.{item.kind}_features"
    features = run_values(model.root, lambda: model.root(inputs), read=name)[name]
    mine = (where.tokens.kind == item.kind) & (where.tokens.item == item.index)
    features = features[torch.from_numpy(where.tokens.token[mine]).to(features.device)].float()
    words = model.language_model.embed_tokens.weight if against == "embeddings" else model.lm_head.weight
    words = words.detach()[: len(model.tokenizer)]
    similarity, ids = _nearest(features, words, top)
    shuffle = torch.randperm(features.shape[1], generator=torch.Generator().manual_seed(seed)).to(features.device)
    spelled = [tuple(model.tokenizer.strings(row)) for row in ids.tolist()]
    return NearestTokens(
        item=f"{item.kind} {item.index}",
        words=tuple(spelled),
        similarity=Array.of(similarity, "token rank", unit="cosine"),
        chance=float(_nearest(features[:, shuffle], words, 1)[0].mean()),
        grid=(item.grid[0], item.grid[1] // where.merge, item.grid[2] // where.merge),
        against=against,
    )


def _nearest(features: Tensor, words: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Cosines and indices [tokens top] of the nearest rows of `words` [vocab hidden] to `features` [tokens hidden]."""
    lengths = words.float().norm(dim=-1).clamp(min=1e-12)
    pieces = F.normalize(features, dim=-1).split(max(1, CHUNK // (4 * len(words))))
    parts = [(piece.to(words.dtype) @ words.T / lengths).float().topk(min(top, len(words)), -1) for piece in pieces]
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])
