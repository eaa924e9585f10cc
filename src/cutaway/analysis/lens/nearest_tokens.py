"""The vocabulary words whose embeddings lie nearest to the features of an image's tokens.

Use it to see what an image's features resemble before any text layer has read them. They need not lie near any word:
the merger was not trained to put them there, so every similarity is reported beside the chance level, what the same
features reach with their dimensions shuffled. A near word is a direction in embedding space, no description of the
image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.analysis.common.arguments import check_choice, check_count, check_model, item_index, sample_index
from cutaway.analysis.common.caption import caption
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import geometry
from cutaway.analysis.lens.logit_lens import CHUNK
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.trace.run import run_values

VOCABULARIES = ("embeddings", "head")


@dataclass(frozen=True, eq=False)
class NearestTokens(Result, technique="nearest_tokens"):
    """The nearest words to each token of one image or video, in raster order, frame by frame.

    - `item`: the image or video. `about`: the model and the prompt. `grid`: frames, rows and columns.
    - `words`: [token][rank]; `similarity`: cosines, "token rank".
    - `chance`: the mean cosine of the nearest word when the features' dimensions are shuffled.
    - `vocabulary`: whose rows the features were compared with.
    """

    item: str
    about: str
    words: tuple[tuple[str, ...], ...]
    similarity: Array
    chance: float
    grid: tuple[int, int, int]
    vocabulary: str

    def summary(self) -> str:
        """Return a table of the words that are nearest to most tokens, and the mean cosine beside chance."""
        nearest = [ranked[0] for ranked in self.words]
        best = sorted(dict.fromkeys(nearest), key=lambda word: -nearest.count(word))[:10]
        cosines = self.similarity.values[:, 0]
        mean = {word: float(cosines[[other == word for other in nearest]].mean()) for word in best}
        rows = [(repr(word), nearest.count(word), mean[word]) for word in best]
        return (
            f"{self.item}: nearest words among the {self.vocabulary}\n"
            f"{table(('word', 'tokens', 'mean cosine'), rows)}\n"
            f"Mean cosine of the nearest word {cosines.mean():.3f}; by chance {self.chance:.3f}."
        )

    def figure(self, background: Any = None, *, frame: int = 0) -> Any:
        """Draw the nearest word and its cosine on each cell, beside the image."""
        return self._draw("draw_nearest_tokens", background, frame)


def nearest_tokens(
    model: Model,
    inputs: Inputs,
    *,
    image: int | None = None,
    video: int | None = None,
    top: int = 5,
    vocabulary: str = "embeddings",
    seed: int = 0,
) -> NearestTokens:
    """Return the vocabulary words that are nearest, by cosine, to the features of one image or video.

    - `image`, `video`: an index in the batch; default the only image or video. - `top`: words kept for each token.
    - `vocabulary`: ``"embeddings"``, the rows of the embedding table, or ``"head"``, those of the output head; the
      same where the model ties them.
    - `seed`: of the shuffled control.

    Raises `InputError` for wrong arguments.
    """
    check_model(model, "Nearest tokens")
    sample_index(inputs, 0)
    check_choice("vocabulary", vocabulary, VOCABULARIES)
    check_count("top", top)
    where = geometry(inputs)
    item = where.item(**item_index(inputs, image, video))
    address = f"vision.{item.kind}_features"
    features = run_values(model.root, lambda: model.root(inputs), read=address)[address]
    mine = (where.tokens.kind == item.kind) & (where.tokens.item == item.index)
    features = features[torch.from_numpy(where.tokens.token[mine]).to(features.device)].float()  # [tokens hidden]
    vectors = model.language_model.embed_tokens.weight if vocabulary == "embeddings" else model.lm_head.weight
    vectors = vectors.detach()[: len(model.tokenizer)]  # [vocab hidden]
    similarity, ids = _nearest(features, vectors, top)
    shuffle = torch.randperm(features.shape[1], generator=torch.Generator().manual_seed(seed)).to(features.device)
    return NearestTokens(
        item=f"{item.kind} {item.index}",
        about=caption(model, inputs, item.sample),
        words=tuple(tuple(model.tokenizer.strings(ranked)) for ranked in ids.tolist()),
        similarity=Array.of(similarity, "token rank", unit="cosine"),
        chance=float(_nearest(features[:, shuffle], vectors, 1)[0].mean()),
        grid=(item.grid[0], item.grid[1] // where.merge, item.grid[2] // where.merge),
        vocabulary=vocabulary,
    )


def _nearest(features: Tensor, vectors: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Cosines and indices [tokens top] of the `vectors` [vocab hidden] nearest to `features` [tokens hidden]."""
    lengths = vectors.float().norm(dim=-1).clamp(min=1e-12)
    pieces = F.normalize(features, dim=-1).split(max(1, CHUNK // (4 * len(vectors))))
    parts = [
        (piece.to(vectors.dtype) @ vectors.T / lengths).float().topk(min(top, len(vectors)), -1) for piece in pieces
    ]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])
