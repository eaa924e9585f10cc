"""Choose the next token of every sample from its logits, with one random generator per sample.

The steps and their order are those of transformers 5.24, with vLLM's presence penalty behind the repetition penalty:
repetition, presence, temperature, top-k, top-p, min-p. This module knows logits and ids; not models, caches or text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.generate.settings import Settings

TIES = 256
"""How many tokens beyond `top_k` are searched for ties with the last of the k; ties are kept, as in transformers."""


def penalize(logits: Tensor, settings: Settings, seen: Tensor | None = None, answered: Tensor | None = None) -> Tensor:
    """Return the logits [batch vocab] in float32 after both penalties.

    `seen` and `answered` [batch vocab] bool mark the tokens that are in prompt or answer, and in the answer alone;
    each is needed only where its penalty is not neutral.
    """
    logits = logits.float()
    if seen is not None and settings.repetition_penalty != 1:
        rate = settings.repetition_penalty
        logits = torch.where(seen, torch.where(logits < 0, logits * rate, logits / rate), logits)
    if answered is not None and settings.presence_penalty != 0:
        logits = logits - settings.presence_penalty * answered
    return logits


def candidates(logits: Tensor, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """Return what a token is drawn from: scores [batch candidates], -inf where filtered out, and the columns' ids.

    `logits` [batch vocab] are those after the penalties. The ids are None when the columns are the vocabulary, which
    they are without `top_k`; with it only the likeliest tokens are kept, so that a large vocabulary is not sorted.
    """
    if settings.temperature != 1:
        logits = logits / settings.temperature
    ids = None
    if 0 < settings.top_k < logits.shape[-1]:
        logits, ids = logits.topk(min(settings.top_k + TIES, logits.shape[-1]))
        logits = logits.masked_fill(logits < logits[:, settings.top_k - 1, None], -torch.inf)
    if settings.top_p < 1:
        logits = top_p(logits, settings.top_p)
    if settings.min_p > 0:
        logits = min_p(logits, settings.min_p)
    return logits, ids


def top_p(logits: Tensor, share: float) -> Tensor:
    """Keep the fewest most likely columns of each sample that hold `share` of its probability."""
    ordered, columns = logits.sort(descending=False)
    tail = ordered.softmax(-1).cumsum(-1) <= 1 - share
    tail[:, -1] = False  # the most likely token stays, however small the share
    return logits.masked_fill(torch.zeros_like(tail).scatter(1, columns, tail), -torch.inf)


def min_p(logits: Tensor, share: float) -> Tensor:
    """Keep the columns of each sample that are at least `share` times as likely as its most likely one."""
    chances = logits.softmax(-1)
    return logits.masked_fill(chances < share * chances.amax(-1, keepdim=True), -torch.inf)


def draw(scores: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw one column per sample [batch] from the softmax of `scores` [batch columns].

    Each sample takes one number from its own generator, on the CPU, and inverts the distribution in float64: its draw
    depends neither on the rest of the batch nor on the device.
    """
    uniform = torch.stack([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
    reached = scores.double().softmax(-1).cumsum(-1)
    total = reached[:, -1:]
    column = torch.searchsorted(reached, uniform.to(reached.device) * total, right=True)
    last = torch.searchsorted(reached, total.contiguous())  # the last token that has a chance, against rounding
    return torch.minimum(column, last)[:, 0].clamp(max=scores.shape[1] - 1)  # NaN finds no column


class Sampler:
    """Choose one token per sample, step after step, and remember which tokens the penalties count.

    `prompt` and `mask` [batch seq]: the prompt's ids, and which of them are not padding.
    """

    def __init__(self, settings: Settings, prompt: Tensor, mask: Tensor) -> None:
        self.settings = settings
        seeds = settings.seeds(prompt.shape[0])
        self.generators = [_generator(seed) for seed in seeds] if settings.do_sample else []
        self._prompt, self._mask = prompt, mask
        self._seen: Tensor | None = None
        self._answered: Tensor | None = None

    def pick(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen ids [batch], and their log-probabilities [batch] under the model's own distribution.

        `logits` [batch vocab] of any float dtype. The log-probabilities are those before penalties, temperature and
        filters, in float32.
        """
        self._remember_prompt(logits)
        logits = logits.float()
        scores = penalize(logits, self.settings, self._seen, self._answered)
        ids = self._draw(scores) if self.settings.do_sample else scores.argmax(-1)
        for marks in (self._seen, self._answered):
            if marks is not None:
                marks.scatter_(1, ids[:, None], True)
        return ids, logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]

    def _draw(self, scores: Tensor) -> Tensor:
        """Draw one id per sample [batch] from what the filters leave of the logits after penalties [batch vocab]."""
        kept, ids = candidates(scores, self.settings)
        column = draw(kept, self.generators)
        return column if ids is None else ids.gather(1, column[:, None])[:, 0]

    def _remember_prompt(self, logits: Tensor) -> None:
        """Mark, at the first step, the tokens that the penalties count; the vocabulary's size comes with the logits."""
        if self._seen is None and self.settings.repetition_penalty != 1:
            counts = torch.zeros(logits.shape, dtype=torch.int64, device=logits.device)
            inside = self._mask.bool() & (self._prompt < logits.shape[1])
            self._seen = counts.scatter_add_(1, self._prompt * inside, inside.long()) > 0
        if self._answered is None and self.settings.presence_penalty != 0:
            self._answered = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)


def _generator(seed: int | None) -> torch.Generator:
    """A random generator for one sample."""
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    return generator
