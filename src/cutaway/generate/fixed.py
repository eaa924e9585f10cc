"""Decoding steps on tensors that stay where they are, recorded once as a CUDA graph and replayed.

A step of a small batch spends its time in starting operations, not in them; a replayed one starts a single thing. The
tokens are those of the plain loop, which also chooses them: only the forward is replaced. On other devices the same
steps run unrecorded. It knows `Inputs`, the cache and the model's call; not sampling, not text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.model.cache import Cache, FixedCache


class FixedSteps:
    """The forward of every step after the prompt's, for one generation::

        steps = FixedSteps(model, cache, first)      # after the prompt was read
        logits = steps(batch)                        # one token a row, as `Generation.next_inputs` gives it

    `cache` is used up. Its capacity must hold every token to come. Logits are overwritten by the next step.
    """

    def __init__(self, model: Any, cache: Cache, first: Inputs) -> None:
        self.model, self.cache = model, FixedCache(cache)
        mask = first.attention_mask.new_zeros(first.input_ids.shape[0], self.cache.capacity)
        self.inputs = replace(
            first,
            input_ids=first.input_ids.clone(),
            attention_mask=mask,
            position_ids=first.position_ids.clone(),
            next_position=first.next_position.clone(),
        )
        self._graph: Any = None
        self._logits: Tensor | None = None
        self._count = 0

    def __call__(self, batch: Inputs) -> Tensor:
        """Logits [batch 1 vocab] of the step that reads `batch`."""
        read = batch.attention_mask.shape[1]
        self.inputs.input_ids.copy_(batch.input_ids)
        self.inputs.position_ids.copy_(batch.position_ids)
        self.inputs.attention_mask[:, :read].copy_(batch.attention_mask)
        self.cache.place.fill_(read - 1)
        if self._graph is not None:
            self._graph.replay()
        elif self._count == 2 and batch.input_ids.is_cuda:  # the steps before have made every kernel ready
            self._record()
        else:
            self._logits = self._forward()
        self._count += 1
        assert self._logits is not None
        return self._logits

    def _forward(self) -> Tensor:
        return self.model(self.inputs, cache=self.cache, last_only=True)

    def _record(self) -> None:
        """Records the step and replays it; a step that cannot be recorded goes on unrecorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._logits = self._forward()
        except RuntimeError:
            self._logits = self._forward()
            return
        self._graph = graph
        graph.replay()
