"""Decoding steps recorded once and replayed without Python: a CUDA graph on a GPU, a TorchScript trace on the CPU.

A step of a small batch spends its time in starting operations, not in them. A graph serves one generation, on tensors
that stay where they are, and looks at places without a token under a mask. A trace does the very operations of the
plain step, on any number of tokens, and the next generation of the same rows takes it up again. Tokens are chosen by
the plain loop: only the forward is replaced. It knows `Inputs`, the cache and the model's call; not sampling, not text.
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
from cutaway.model.cache import Cache, FixedCache, GivenCache

ROOM = 128
"""Capacities are rounded up to a multiple of this, so that answers of about one length share a trace."""


def even(capacity: int) -> int:
    """`capacity`, rounded up to what a recorded step is given."""
    return -(-capacity // ROOM) * ROOM


def recording(model: Any, cache: Cache, first: Inputs) -> Callable[[Inputs], Tensor] | None:
    """The forward of every step after the prompt's, for one generation; None for a step that cannot be recorded::

        steps = recording(model, cache, first)       # after the prompt was read
        logits = steps(batch)                        # one token a row, as `Generation.next_inputs` gives it

    `cache` must have room for every token to come. It is written in place and counts along, so that the plain loop can
    go on from it; after a plain step, `steps` is over. The next step overwrites the logits.
    """
    if first.input_ids.is_cuda:
        return FixedSteps(model, cache, first)
    if model.config.text.experts is not None:  # which of them run depends on the tokens
        return None
    trace = _scripts.setdefault(model, _Scripts()).get(model, cache, first)
    return None if trace is None else TracedSteps(trace, cache)


class TracedSteps:
    """Steps on the CPU: `trace` takes ids, mask, positions and the buffers of the cache."""

    def __init__(self, trace: Callable[..., Tensor], cache: Cache) -> None:
        self.trace, self.cache = trace, cache

    def __call__(self, batch: Inputs) -> Tensor:
        """Logits [batch 1 vocab] of the step that reads `batch`."""
        logits = self.trace(batch.input_ids, batch.attention_mask, batch.position_ids, *self.cache.buffers)
        self.cache.advance(1)
        return logits


class FixedSteps:
    """Steps on tensors that stay in place; on a GPU the third and all after it are replays of one graph."""

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
        self.cache.place.fill_(read - 1)
        if self._count == 2 and batch.input_ids.is_cuda:  # the steps before have made every kernel ready
            self._replay = self._graph()
        self._count += 1
        logits = self._forward() if self._replay is None else self._replay()
        self.source.advance(1)
        return logits

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


class _Scripts:
    """The traces of one model by the shapes they are for, as long as nothing of the model is replaced."""

    MOST = 8

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._traces: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}

    def get(self, model: nn.Module, cache: Cache, first: Inputs) -> Callable[..., Tensor] | None:
        """The trace for a generation like this one, made now if it has to be; None for a step that cannot be traced."""
        now = _state(model)
        if now != self._of:  # replaced weights stay alive in a trace, so that no new one can lie at their address
            self._of, self._traces = now, {}
        padded = not bool(first.attention_mask.all())
        shapes = tuple((tuple(t.shape), t.dtype) for t in (first.input_ids, *cache.buffers))
        key = (torch.is_inference_mode_enabled(), padded, shapes)
        if key not in self._traces:
            while len(self._traces) >= self.MOST:
                self._traces.pop(next(iter(self._traces)))
            self._traces[key] = _traced(model, cache, first)
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


def _traced(model: Any, cache: Cache, first: Inputs) -> Callable[..., Tensor] | None:
    """The step that reads `first`, as a function of ids, mask, positions and the buffers of the cache.

    None where it cannot be traced, or where the trace of one token does not give another's logits, bit for bit: a part
    of the caller's own may decide by what it computes, which a trace would take for granted.
    """

    def step(ids: Tensor, mask: Tensor, positions: Tensor, *buffers: Tensor) -> Tensor:
        inputs = replace(first, input_ids=ids, attention_mask=mask, position_ids=positions)
        return model(inputs, cache=GivenCache(buffers, mask), last_only=True)

    given = first.input_ids, first.attention_mask, first.position_ids, *cache.buffers
    with warnings.catch_warnings(), _untrained(model):
        warnings.simplefilter("ignore")  # of what becomes a constant, as it may: rows, widths, whether there is padding
        try:
            trace = cast("Callable[..., Tensor]", torch.jit.trace(step, given, check_trace=False))
            other = (first.input_ids + 1) % model.config.text.vocab_size, *given[1:]
            return trace if torch.equal(trace(*other), step(*other)) else None
        except (RuntimeError, TypeError, ValueError):
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
