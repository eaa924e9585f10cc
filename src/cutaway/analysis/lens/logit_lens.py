"""The logit lens: which words the model would say if it stopped after a layer, at any token, image tokens included.

The residual stream after every layer goes through the model's own final norm and head. After the last layer that is
the model's output itself. Early layers may write in directions that only later layers turn towards the head, so a word
that the lens does not show may be there all the same; the tuned lens (`tuned_lens`) learns a map for each layer.

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

from cutaway.analysis.common.arguments import check_choice, check_count, check_model, describe, sample_index
from cutaway.analysis.common.caption import caption
from cutaway.analysis.common.metrics import one_id
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import (
    TokenSelection,
    media_tokens,
    one_medium,
    select_tokens,
    token_labels,
)
from cutaway.analysis.lens.residual_stream import READ_AT, accumulated_residual, unembed
from cutaway.analysis.lens.tuned_lens import TunedLens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

CHUNK = 1 << 26
"""Bytes of logits that exist at one time."""


@dataclass(frozen=True, eq=False)
class LogitLens(Result, technique="logit_lens"):
    """The likeliest words at selected tokens after each layer.

    - `words`: [layer][token][rank]; `probabilities`: theirs, "layer token rank". Layers are named by their number, what
      enters layer 0 ``"embeddings"``.
    - `entropy`: "layer token", in nats.
    - `tracked`: "word layer token", probabilities of the words that were asked for, or None; `ranks`: their ranks, 0
      for the likeliest.
    - `positions` of the tokens; `media`: grid and positions of each image and video.
    - `kind`: ``"logit"`` or ``"tuned"``; `at`: what was read after a layer. `about`: the model and the prompt.
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
    about: str

    def on_image(self, values: np.ndarray, item: str | None = None, frame: int = 0) -> np.ndarray:
        """Return values per token [tokens] as [rows columns] of an image or frame; NaN where a token was not read."""
        name = one_medium(self.media, item)
        grid = self.media[name]["grid"]
        if not 0 <= frame < grid[0]:
            raise InputError(f"`frame` of {name} must be from 0 to {grid[0] - 1}; got {frame}.")
        index = {position: n for n, position in enumerate(self.positions)}
        cells = [values[index[p]] if p in index else np.nan for p in self.media[name]["tokens"]]
        return np.array(cells).reshape(grid)[frame]

    def summary(self) -> str:
        """Return a table: after each layer the likeliest word of the last token read and of most tokens of an image."""
        groups = {"last read": [len(self.positions) - 1]}
        for item, known in self.media.items():
            groups[item] = [n for n, p in enumerate(self.positions) if p in known["tokens"]]
        rows = []
        for n, layer in enumerate(self.probabilities.names("layer")):
            likely = [_most_frequent([self.words[n][t][0] for t in tokens]) for tokens in groups.values()]
            rows.append((layer, float(self.entropy.values[n].mean()), *likely))
        heads = ("layer", "mean entropy", *groups)
        read = "the residual stream" if self.at == "residual" else "layer outputs"
        return f"{self.kind.capitalize()} lens on {read}: likeliest words\n{table(heads, rows)}"

    def layer_index(self, layer: int | str) -> int:
        """The index of a layer that was read. Raises `InputError` for another."""
        names = self.probabilities.names("layer")
        if str(layer) not in names:
            raise InputError(f"`layer` must be one that the lens read, {', '.join(names)}; got {describe(layer)}.")
        return names.index(str(layer))

    def check_rank(self, rank: int) -> None:
        """Raises `InputError` for a rank beyond the `top` words that were kept."""
        kept = self.probabilities.shape[2]
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < kept:
            raise InputError(f"`rank` must be from 0 to {kept - 1}, since `top` was {kept}; got {describe(rank)}.")

    def figure(
        self,
        background: Any = None,
        *,
        layer: int | str | None = None,
        item: str | None = None,
        frame: int = 0,
        rank: int = 0,
    ) -> Any:
        """Draw a table of layers and the last 24 tokens; with `layer` the words on an image's cells beside the image.

        `background` is the image that was prepared, or that frame of a video. `rank` 1 draws the second likeliest word.
        """
        return self._draw("draw_logit_lens", background, layer, item, frame, rank)


def logit_lens(
    model: Model,
    inputs: Inputs,
    *,
    tokens: TokenSelection = "all",
    layers: int | Sequence[int] | None = None,
    at: str = "residual",
    top: int = 5,
    words: Sequence[str | int] = (),
    tuned: TunedLens | str | Path | None = None,
    sample: int | None = None,
    edit: Mapping[str, Any] | None = None,
) -> LogitLens:
    """Return the likeliest words at selected tokens after each layer.

    - `tokens`: a token selection, by default every token. - `sample`: which sample of a batch.
    - `layers`: after which layers, by number; default what enters layer 0 and after every layer.
    - `at`: ``"residual"``, what the next layer reads, or ``"layer_output"``, without DeepStack's additions.
    - `top`: words kept for each token. - `words`: words of one token each whose probability and rank are followed.
    - `tuned`: a tuned lens, or its file, whose maps are applied before the head.
    - `edit`: changes by address that are made in the run.

    Memory: the residual stream at the selected tokens, [layers tokens hidden]. Raises `InputError` for wrong arguments.
    """
    check_model(model, "The logit lens")
    sample = sample_index(inputs, sample)
    check_choice("at", at, READ_AT)
    check_count("top", top)
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise InputError(f"`words` must be a list of words or token ids; got {describe(words)}.")
    selected = select_tokens(model, inputs, tokens, sample)
    followed = torch.tensor([one_id(model.tokenizer, word) for word in words], dtype=torch.int64)
    tuned = TunedLens.load(tuned) if isinstance(tuned, str | Path) else tuned
    if tuned is not None:
        _check_tuned(tuned, model)
    names, residuals = accumulated_residual(
        model, inputs, layers, at=at, positions=selected.positions, sample=sample, edit=edit
    )
    if tuned is not None:
        residuals = [tuned.translate(name, residual) for name, residual in zip(names, residuals, strict=True)]
    read = [_likeliest(model, residual, top, followed) for residual in residuals]
    token_names = token_labels(model, inputs, sample)
    axes = {"layer": names, "token": [token_names[p] for p in selected.positions.tolist()]}
    with_words = {**axes, "word": model.tokenizer.strings(followed.tolist())}
    probabilities, ids, entropy, tracked, ranks = (torch.stack([parts[n] for parts in read]) for n in range(5))
    return LogitLens(
        words=tuple(tuple(tuple(model.tokenizer.strings(best)) for best in layer) for layer in ids.tolist()),
        probabilities=Array.of(probabilities, "layer token rank", axes, "probability"),
        entropy=Array.of(entropy, "layer token", axes, "nats"),
        tracked=Array.of(tracked.permute(2, 0, 1), "word layer token", with_words, "probability") if words else None,
        ranks=Array.of(ranks.permute(2, 0, 1), "word layer token", with_words, "rank") if words else None,
        positions=tuple(selected.positions.tolist()),
        media=media_tokens(inputs, sample),
        kind="logit" if tuned is None else "tuned",
        at=at,
        about=caption(model, inputs, sample),
    )


def _check_tuned(tuned: Any, model: Model) -> None:
    if not isinstance(tuned, TunedLens):
        raise InputError(f"`tuned` must be a `TunedLens` or the file of one; got {describe(tuned)}.")
    tuned.check(model)


@torch.no_grad()
def _likeliest(
    model: Model, residual: Tensor, top: int, followed: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of a residual stream [tokens hidden]: probabilities and ids of the likeliest words [tokens top], the entropy
    [tokens], and for the `followed` ids their probabilities and ranks [tokens words].
    """
    pieces = []
    for piece in residual.split(max(1, CHUNK // (4 * model.vocab_size))):
        log = unembed(model, piece).float().log_softmax(-1)  # [tokens vocab]
        best = log.topk(min(top, log.shape[-1]), -1)
        wanted = log[:, followed.to(log.device)]
        ranks = torch.stack([(log > one[:, None]).sum(-1) for one in wanted.unbind(1)], 1) if len(followed) else wanted
        pieces.append((best.values.exp(), best.indices, -(log.exp() * log).sum(-1), wanted.exp(), ranks))
    columns = [torch.cat(column).cpu() for column in zip(*pieces, strict=True)]
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def _most_frequent(words: Sequence[str]) -> str:
    """The most frequent of some words with its count, as ``'red' 3/16``; empty for no words."""
    if not words:
        return ""
    best = max(dict.fromkeys(words), key=words.count)
    return repr(best) if len(words) == 1 else f"{best!r} {words.count(best)}/{len(words)}"
