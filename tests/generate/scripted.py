"""A model that says what it is told to, and a tokenizer of single bytes: what the loop is tested with alone."""

from __future__ import annotations

import codecs
from types import SimpleNamespace

import torch
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.model.cache import Cache

END, PAD, VOCAB = 0, 1, 300
FIRST_BYTE = 10
"""Byte b is token b + FIRST_BYTE."""


def spelled(text: str | bytes) -> list[int]:
    """The tokens of a text, one per byte."""
    return [byte + FIRST_BYTE for byte in (text.encode() if isinstance(text, str) else text)]


class Bytes:
    """A tokenizer of which every token is a byte; ids below `FIRST_BYTE` are special, such as ``<2>``."""

    skip = True

    def stream(self, skip_special_tokens: bool = True) -> Bytes:
        made = Bytes()
        made.skip = skip_special_tokens
        made.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return made

    def push(self, token: int) -> str:
        special = b"" if self.skip else f"<{token}>".encode()
        return self.decoder.decode(bytes([token - FIRST_BYTE]) if token >= FIRST_BYTE else special)

    def finish(self) -> str:
        return self.decoder.decode(b"", final=True)


class Scripted:
    """Says `script[sample][step]`, then the last token again and again. Keeps the inputs of every step."""

    vocab = VOCAB

    def __init__(self, *script: list[int], max_positions: int = 1000) -> None:
        self.script = script
        self.seen: list[Inputs] = []
        self.chunks: list[int | None] = []
        self.config = SimpleNamespace(
            text=SimpleNamespace(max_positions=max_positions), vision=SimpleNamespace(spatial_merge_size=2)
        )

    def new_cache(self, capacity: int) -> Cache:
        return Cache(1, capacity)

    def __call__(self, inputs: Inputs, cache: Cache, last_only: bool = False, chunk: int | None = None) -> Tensor:
        assert not torch.is_grad_enabled()
        keys = inputs.input_ids[:, None, :, None].float()
        cache.update(0, keys, keys)
        cache.advance(inputs.input_ids.shape[1])
        logits = torch.zeros(inputs.input_ids.shape[0], 1, self.vocab)
        for row, tokens in enumerate(self.script):
            logits[row, 0, tokens[min(len(self.seen), len(tokens) - 1)]] = 9.0
        self.seen.append(inputs)
        self.chunks.append(chunk)
        return logits


def words(*rows: list[int], padding_side: str = "left") -> Inputs:
    """A batch of text rows, padded."""
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), PAD), torch.zeros(len(rows), longest, dtype=torch.int64)
    for row, tokens in enumerate(rows):
        columns = slice(longest - len(tokens), None) if padding_side == "left" else slice(0, len(tokens))
        ids[row, columns], mask[row, columns] = torch.tensor(tokens, dtype=torch.int64), 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return Inputs(
        input_ids=ids,
        attention_mask=mask,
        mm_token_type_ids=torch.zeros_like(ids),
        position_ids=positions.expand(3, -1, -1),
        next_position=mask.sum(1),
    )
