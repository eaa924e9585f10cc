"""Decoding steps recorded once as a CUDA graph and replayed without Python.

A step of a small batch spends its time in starting operations, not in them. A graph serves one generation, on tensors
that stay where they are, and attends to the whole capacity of the cache under a mask. Tokens are chosen by the plain
loop: only the forward is replaced. This module knows `Inputs`, the cache and the model's call; not sampling, not text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.model.cache import Cache, FixedCache

WARM_UP = 2
"""Steps that are run before the recording, so that every kernel is ready."""


class GraphSteps:
    """The forward of every step after the prompt's, for one generation::

        steps = GraphSteps(model, cache, first)      # after the prompt was read; `first` is the next step's inputs
        logits = steps(batch)                        # one token a sample, as `Generation.next_inputs` gives it

    `cache` must have room for every token to come. It is written in place and counts along, so that the plain loop can
    go on from it; after a plain step, `steps` must not be used any more. The next step overwrites the logits. A step
    that cannot be recorded runs plainly each time, and so does every step on a CPU, where tests use it.
    """

    def __init__(self, model: Any, cache: Cache, first: Inputs) -> None:
        self.model, self.source, self.cache = model, cache, FixedCache(cache)
        mask = first.attention_mask.new_zeros(first.input_ids.shape[0], self.cache.capacity)
        self.inputs = replace(
            first,
            input_ids=first.input_ids.clone(),
            attention_mask=mask,
            position_ids=first.position_ids.clone(),
            next_position=first.next_position.clone(),
        )
        self._replay: Callable[[], Tensor] | None = None
        self._count = 0

    def __call__(self, batch: Inputs) -> Tensor:
        """Logits [batch 1 vocab] of the step that reads `batch`."""
        read = batch.attention_mask.shape[1]
        self.inputs.input_ids.copy_(batch.input_ids)
        self.inputs.position_ids.copy_(batch.position_ids)
        self.inputs.attention_mask[:, :read].copy_(batch.attention_mask)
        self.cache.position.fill_(read - 1)
        if self._count == WARM_UP and batch.input_ids.is_cuda:
            self._replay = self._record()
        self._count += 1
        logits = self._forward() if self._replay is None else self._replay()
        self.source.advance(1)
        return logits

    def _forward(self) -> Tensor:
        return self.model(self.inputs, cache=self.cache, last_only=True)

    def _record(self) -> Callable[[], Tensor] | None:
        """Record the step as a CUDA graph; None for a step that cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                logits = self._forward()
        except RuntimeError:
            return None

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay
