"""What the stream would say if the model stopped after a layer: the logit lens, image tokens included.

Every position of the stream after every layer is put through the model's own final norm and head. After the last layer
that is the model's output itself. Early layers may speak another language than the head: a word that is not there need
not be missing from the stream. The tuned lens (`tuned_lens`) learns each layer's language.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.metrics import one_id
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import (
    TokenSelection,
    media_tokens,
    one_medium,
    select_tokens,
    token_labels,
)
from cutaway.analysis.lens.residual_stream import accumulated_residual, unembed
from cutaway.analysis.lens.tuned_lens import TunedLens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

CHUNK = 1 << 26
"""Bytes of logits that exist at one time."""


@dataclass(frozen=True, eq=False)
class LogitLens(Result, technique="logit_lens"):
    """The likeliest words at positions of the stream, layer by layer.

    - `words`: [layer][token][rank]; `probabilities`: the same as an array "layer token rank". Layers are named by their
      number, what enters layer 0 ``"embeddings"``. - `entropy`: "layer token", in nats.
    - `tracked`: "word layer token", probabilities of words that were asked for, or None; `ranks`: their ranks, 0 first.
    - `positions` of the tokens; `images`: grid and positions of each image and video.
    - `kind`: ``"logit"`` or ``"tuned"``; `at`: which stream was read.
    """

    words: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: Array
    entropy: Array
    tracked: Array | None
    ranks: Array | None
    positions: tuple[int, ...]
    media: dict[str, dict[str, tuple[int, ...]]]
    kind: str
    at: str

    def cells(self, values: np.ndarray, item: str | None = None, frame: int = 0) -> np.ndarray:
        """[rows columns] of a value per token [tokens], over one image or frame; NaN where a token was not read."""
        place = self.media[one_medium(self.media, item)]
        if not 0 <= frame < place["grid"][0]:
            raise InputError(f"{one_medium(self.media, item)} has {place['grid'][0]} temporal grids, from 0.")
        where = {position: n for n, position in enumerate(self.positions)}
        found = [values[where[p]] if p in where else np.nan for p in place["tokens"]]
        return np.array(found).reshape(place["grid"])[frame]

    def summary(self) -> str:
        """The likeliest word of the last position read and of each image's tokens, layer by layer."""
        rows = []
        groups = {"last read": [len(self.positions) - 1]}
        for item, place in self.media.items():
            groups[item] = [n for n, p in enumerate(self.positions) if p in place["tokens"]]
        for b, layer in enumerate(self.probabilities.names("layer")):
            likely = [_often([self.words[b][t][0] for t in tokens]) if tokens else "" for tokens in groups.values()]
            rows.append((layer, float(self.entropy.values[b].mean()), *likely))
        heads = ("layer", "mean entropy", *(name for name in groups))
        return f"{self.kind.capitalize()} lens on {self.at}: likeliest words\n{table(heads, rows)}"

    def _check_rank(self, rank: int) -> None:
        kept = self.probabilities.shape[2]
        if not 0 <= rank < kept:
            raise InputError(f"The lens kept the {kept} likeliest words, rank 0 to {kept - 1}; there is no {rank}.")

    def figure(
        self,
        background: Any = None,
        *,
        layer: int | str | None = None,
        item: str | None = None,
        frame: int = 0,
        rank: int = 0,
    ) -> Any:
        """With `layer` the words over an image; without it a table of layers and positions.

        `image` is what was prepared, or that frame of a video; None draws the cells alone. `rank` 1 draws the second
        likeliest words. A table has at most 24 positions, the last ones.
        """
        from cutaway.analysis.plots.maps import words_figure, words_table

        if layer is not None:
            self._check_rank(rank)
            b = self.probabilities.names("layer").index(_named(self.probabilities, layer))
            cells = self.cells(self.probabilities.values[b, :, rank], item, frame)
            numbers = self.cells(np.arange(len(self.positions)), item, frame)
            words = [["" if np.isnan(n) else self.words[b][int(n)][rank] for n in row] for row in numbers]
            name = "what enters layer 0" if layer == "embeddings" else f"after layer {layer}"
            return words_figure(
                cells, words, background, title=f"{self.kind} lens, {name}", unit="probability", limits=(0, 1)
            )
        self._check_rank(rank)
        shown = slice(-24, None)
        names = {"layer": self.probabilities.names("layer"), "token": self.probabilities.names("token")[shown]}
        values = Array.of(self.probabilities.values[:, shown, rank], "layer token", names, "probability")
        words = [[entry[rank] for entry in row[shown]] for row in self.words]
        return words_table(values, words, title=f"{self.kind} lens on {self.at}", limits=(0, 1))


def logit_lens(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "all",
    layers: int | Sequence[int] | None = None,
    at: str = "stream",
    top: int = 5,
    words: Sequence[str | int] = (),
    tuned: TunedLens | str | Path | None = None,
    row: int = 0,
    edit: Mapping[str, Any] | None = None,
) -> LogitLens:
    """The lens at `tokens` of a row (as in `select_tokens`; every token by default).

    - `layers`: after which layers, by number; default what enters layer 0 and after every layer.
    - `at`: ``"stream"``, what the next layer reads, DeepStack terms included; ``"layer_output"`` leaves those out.
    - `top`: words a position. - `words`: of one token each, whose probability and rank are followed.
    - `tuned`: a trained lens to translate each layer by, or its file.

    Memory: the streams at the tokens read, [layers tokens hidden]. Raises `InputError` for what there is not.
    """
    model.require_weights("A lens")
    if at not in ("stream", "layer_output") or top < 1:
        raise InputError(f'`at` is "stream" or "layer_output" and `top` at least 1; got {at!r} and {top}.')
    chosen = select_tokens(model, inputs, tokens, row)
    followed = torch.tensor([one_id(model.tokenizer, word) for word in words], dtype=torch.int64)
    if isinstance(tuned, str | Path):
        tuned = TunedLens.load(tuned)
    if tuned is not None:
        tuned.check(model)
    names, streams = accumulated_residual(model, inputs, layers, at, (row, chosen.positions), edit)
    found = [
        _spoken(model, stream if tuned is None else tuned.translate(name, stream), top, followed)
        for name, stream in zip(names, streams, strict=True)
    ]
    tokens_named = token_labels(model, inputs, row)
    axes = {"layer": names, "token": [tokens_named[p] for p in chosen.positions.tolist()]}
    spelled = {**axes, "word": model.tokenizer.strings(followed.tolist())}
    probabilities, ids, entropy, tracked, ranks = (torch.stack([f[n] for f in found]) for n in range(5))
    return LogitLens(
        words=tuple(tuple(tuple(model.tokenizer.strings(at)) for at in layer.tolist()) for layer in ids),
        probabilities=Array.of(probabilities, "layer token rank", axes, "probability"),
        entropy=Array.of(entropy, "layer token", axes, "nats"),
        tracked=Array.of(tracked.permute(2, 0, 1), "word layer token", spelled, "probability") if words else None,
        ranks=Array.of(ranks.permute(2, 0, 1), "word layer token", spelled, "rank") if words else None,
        positions=tuple(chosen.positions.tolist()),
        media=media_tokens(inputs, row),
        kind="logit" if tuned is None else "tuned",
        at=at,
    )


@torch.no_grad()
def _spoken(model: Model, stream: Tensor, top: int, followed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of a stream [tokens hidden]: top probabilities and ids [tokens top], entropy [tokens], and for the `followed`
    ids their probabilities and ranks [tokens words].
    """
    parts = []
    for piece in stream.split(max(1, CHUNK // (4 * model.vocab_size))):
        logits = unembed(model, piece).float()
        log = logits.log_softmax(-1)
        best = log.topk(min(top, log.shape[-1]), -1)
        mine = log[:, followed.to(log.device)]
        ranks = torch.stack([(log > one[:, None]).sum(-1) for one in mine.unbind(1)], 1) if len(followed) else mine
        parts.append((best.values.exp(), best.indices, -(log.exp() * log).sum(-1), mine.exp(), ranks))
    joined = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2], joined[3], joined[4]


def _named(values: Array, layer: int | str) -> str:
    name = str(layer)
    if name not in values.names("layer"):
        raise InputError(f"The lens was read after layers {', '.join(values.names('layer'))}; not after {layer!r}.")
    return name


def _often(words: Sequence[str]) -> str:
    """The most frequent of some words, and how often it is there."""
    best = max(dict.fromkeys(words), key=words.count)
    return repr(best) if len(words) == 1 else f"{best!r} {words.count(best)}/{len(words)}"
