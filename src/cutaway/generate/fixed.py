"""Decoding steps on tensors that stay where they are, recorded once and replayed without Python.

A step of a small batch spends its time in starting operations, not in them. On a GPU a step is recorded as a CUDA
graph, for one generation; on the CPU as a TorchScript trace, which the next generation of the same shapes takes up
again. The operations are the model's own, so the tokens are those of the plain loop, which also chooses them: only the
forward is replaced. It knows `Inputs`, the cache and the model's call; not sampling, not text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cutaway.batch import Inputs
from cutaway.model.cache import Cache, FixedCache

ROOM = 128
"""Capacities are rounded up to a multiple of this, so that answers of about one length share a recording."""


def even(capacity: int) -> int:
    """`capacity`, rounded up to what a recorded step is given."""
    return -(-capacity // ROOM) * ROOM


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
        self._replay: Callable[[], Tensor] | None = None
        self._count = 0

    def __call__(self, batch: Inputs) -> Tensor:
        """Logits [batch 1 vocab] of the step that reads `batch`."""
        read = batch.attention_mask.shape[1]
        self.inputs.input_ids.copy_(batch.input_ids)
        self.inputs.position_ids.copy_(batch.position_ids)
        self.inputs.attention_mask[:, :read].copy_(batch.attention_mask)
        self.cache.place.fill_(read - 1)
        on_gpu = batch.input_ids.is_cuda
        if self._replay is None and self._count == (2 if on_gpu else 0):  # a graph wants every kernel ready
            self._replay = self._graph() if on_gpu else self._script()
        self._count += 1
        return self._forward() if self._replay is None else self._replay()

    def _forward(self) -> Tensor:
        return self.model(self.inputs, cache=self.cache, last_only=True)

    def _graph(self) -> Callable[[], Tensor] | None:
        """Records the step as a CUDA graph; None for a step that cannot be recorded."""
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

    def _script(self) -> Callable[[], Tensor] | None:
        """The step as a TorchScript trace; None for a step that cannot be traced."""
        given = (self.inputs.input_ids, self.inputs.attention_mask, self.inputs.position_ids, self.cache.place)
        held = *given, *self.cache.tensors
        if not isinstance(self.model, nn.Module):
            return None
        script = _scripts.setdefault(self.model, _Scripts()).get(self.model, self._on, held)
        return None if script is None else lambda: script(*held)

    def _on(self, ids: Tensor, mask: Tensor, positions: Tensor, place: Tensor, *held: Tensor) -> Tensor:
        """The step on other tensors of the same shapes."""
        inputs = replace(self.inputs, input_ids=ids, attention_mask=mask, position_ids=positions)
        return self.model(inputs, cache=self.cache.over(place, held), last_only=True)


class _Scripts:
    """The traces of one model by the shapes they are for, as long as nothing of the model is replaced."""

    MOST = 8

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._traces: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}

    def get(
        self, model: nn.Module, step: Callable[..., Tensor], given: tuple[Tensor, ...]
    ) -> Callable[..., Tensor] | None:
        """The trace for these tensors, made now if it has to be; None for a step that cannot be traced."""
        now = _state(model)
        if now != self._of:  # replaced weights stay alive in a trace, so that no new one can lie at their address
            self._of, self._traces = now, {}
        key = (torch.is_inference_mode_enabled(), *((tuple(t.shape), t.dtype) for t in given))
        if key not in self._traces:
            while len(self._traces) >= self.MOST:
                self._traces.pop(next(iter(self._traces)))
            self._traces[key] = _traced(model, step, given)
        return self._traces[key]


_scripts: WeakKeyDictionary[nn.Module, _Scripts] = WeakKeyDictionary()


def _state(model: nn.Module) -> tuple[Any, ...]:
    """What a trace of the model has taken for granted: its modules, what they run and are set to, its weights."""
    found: list[Any] = []
    for module in model.modules():
        plain = {n: v for n, v in vars(module).items() if isinstance(v, bool | int | float | str) and n != "training"}
        found += [id(module), type(module).forward, module.__dict__.get("forward"), tuple(plain.items())]
        found += [
            (id(p), p.data_ptr(), p.dtype)
            for p in (*module._parameters.values(), *module._buffers.values())
            if p is not None
        ]
    return tuple(found)


def _traced(model: nn.Module, step: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Callable[..., Tensor] | None:
    with warnings.catch_warnings(), _untrained(model):
        warnings.simplefilter("ignore")  # of shapes that become constants, as they may: a trace serves one set of them
        try:
            return cast("Callable[..., Tensor]", torch.jit.trace(step, given, check_trace=False))
        except RuntimeError:
            return None


@contextmanager
def _untrained(model: nn.Module) -> Any:
    """No weight asks for a gradient: a trace cannot hold one that does."""
    with ExitStack() as stack:
        for weight in model.parameters():
            if weight.requires_grad:
                weight.requires_grad_(False)
                stack.callback(weight.requires_grad_, True)
        yield
