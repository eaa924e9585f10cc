"""Edited runs that compute only what an edit can change.

A base run is remembered: the stream that enters each layer, the keys, values and states of every token, the logits. An
edit in layer b at token t leaves all layers before b and all tokens before t as they were, since attention is causal;
so an edited run goes on from layer b and token t, many edits side by side as the rows of one batch::

    whole:      vision encoder ─► layer 0 ─► … ─► layer b ─► … ─► logits        every token
    shortened:                                    layer b ─► … ─► logits        tokens t … end, the rest from the base

It knows where an edit lies and what it puts there; what it means is the techniques' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.metrics import answer_logits
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.values import run_values

STREAM = ("layer_output", "deepstack_output")
"""Values that go straight into the next layer's stream, so that the layer itself need not run again."""

STEP = 16
"""Recurrent states are kept at multiples of so many tokens; an edit goes on from the last one before it."""


@dataclass(frozen=True, eq=False)
class Change:
    """One edit of a base run.

    - `layer`, `value`: where, such as ``3, "mlp.mlp_output"``; a value with axes [batch seq …], or `deepstack_output`.
    - `positions`: [n] positions in the sequence; `new`: [n …] what is put there, or with `add` added to what is there.
    - `part`: one entry of the axis after the sequence, such as a head.
    """

    layer: int
    value: str
    positions: Tensor
    new: Tensor
    part: int | None = None
    add: bool = False

    @property
    def address(self) -> str:
        """The value's standard address."""
        return f"layers.{self.layer}.{self.value}"


Row = Sequence[Change]
"""The edits of one run."""


class Base:
    """The run that is edited, remembered. `inputs` is a batch of one, any answer appended.

    - `streams[b]`: [1 seq hidden], what enters layer b, and last what leaves the last layer.
    - `logits`: [1 places vocab] at the last `places` positions.
    """

    def __init__(self, model: Model, inputs: Inputs, places: int = 1) -> None:
        if inputs.input_ids.shape[0] != 1:
            raise InputError(f"A base run is a batch of one; got {inputs.input_ids.shape[0]} rows.")
        model.require_weights("A run")
        self.model, self.root, self.inputs, self.places = model, model.root, inputs, places
        self.seq, self.depth = inputs.input_ids.shape[1], model.root.num_layers
        self.visual = inputs.mm_token_type_ids > 0
        self._cache = self.root.new_cache(self.seq)
        self._past: dict[int, Any] = {}
        self._growing = self.root.new_cache(self.seq)
        taps = len(self.root.config.vision.deepstack_indexes) if bool(self.visual.any()) else 0
        read = ["layers.*.input", "layers.*.layer_output", *(f"layers.{k}.deepstack_output" for k in range(taps))]
        found = run_values(self.root, self._whole, read=read, to_end=True)
        self.logits: Tensor = found.result
        self.outputs: list[Tensor] = [found[f"layers.{b}.layer_output"] for b in range(self.depth)]
        self.streams = [*(found[f"layers.{b}.input"] for b in range(self.depth)), self.outputs[-1]]
        self.terms = [self.spread(found[f"layers.{k}.deepstack_output"]) for k in range(taps)]

    def _whole(self) -> Tensor:
        return self.root.lm_head(self.root.model(self.inputs, self._cache)[:, -self.places :])

    def spread(self, packed: Tensor) -> Tensor:
        """Rows of visual tokens [tokens hidden] at their places in the sequence, [1 seq hidden], zeros elsewhere."""
        dense = packed.new_zeros(1, self.seq, packed.shape[-1])
        return dense.masked_scatter(self.visual[..., None], packed)

    def start(self, positions: Tensor) -> int:
        """The token from which an edit at these positions has to be computed."""
        first = min(int(positions.min()), self.seq - self.places)
        return first - first % STEP if self._cache.recurrent else first

    def run(self, rows: Sequence[Row]) -> Tensor:
        """Logits [rows places vocab], each row the base run with its own edits. A row without edits is the base run."""
        out = self.logits.expand(len(rows), -1, -1).clone()
        edited = [n for n, row in enumerate(rows) if any(len(change.positions) for change in row)]
        if edited:
            with torch.no_grad():
                out[edited] = self._resumed([rows[n] for n in edited])
        return out

    def whole(self, row: Row) -> Tensor:
        """Logits [1 places vocab] of the same edits made in a whole run: what `run` must equal."""
        return answer_logits(self.model, self.inputs, self.places, edit=edits([row], 0, self.visual))

    def _resumed(self, rows: Sequence[Row]) -> Tensor:
        changes = [change for row in rows for change in row]
        layer = min(change.layer for change in changes)
        start = self.start(torch.cat([change.positions for change in changes]))
        if all(change.layer == layer and change.value in STREAM for change in changes):
            return self._from(layer + 1, start, self._entering(rows, layer, start), None)
        x = self.streams[layer][:, start:].expand(len(rows), -1, -1)
        return self._from(layer, start, x, edits(rows, start, self.visual))

    def _from(self, layer: int, start: int, x: Tensor, edit: dict[str, Any] | None) -> Tensor:
        count = x.shape[0]
        visual = self.visual[:, start:].expand(count, -1)
        left = bool(visual.any()) and layer < len(self.terms)
        terms = [term[:, start:].expand(count, -1, -1)[visual] for term in self.terms] if left else []

        def forward() -> Tensor:
            hidden = self.root.model.language_model(
                x,
                first=layer,
                position_ids=self.inputs.position_ids[..., start:].expand(3, count, -1),
                attention_mask=self.inputs.attention_mask.expand(count, -1),
                visual_mask=visual if left else None,
                deepstack=tuple(terms),
                cache=self._shared(count, start) if start else None,
            )
            return self.root.lm_head(hidden[:, -self.places :])

        return run_values(self.root, forward, edit=edit).result

    def _entering(self, rows: Sequence[Row], layer: int, start: int) -> Tensor:
        """[rows seq hidden]: the edited stream after a layer, DeepStack added as the model adds it."""
        output = self.outputs[layer][:, start:].repeat(len(rows), 1, 1)
        _write(output, rows, start, lambda change: change.value == "layer_output")
        if layer >= len(self.terms):
            return output
        term = self.terms[layer][:, start:].repeat(len(rows), 1, 1)
        _write(term, rows, start, lambda change: change.value == "deepstack_output")
        return torch.where(self.visual[:, start:, None], output + term, output)

    def _shared(self, rows: int, start: int) -> Any:
        if not self._cache.recurrent:
            return self._cache.shared(rows, start)
        if start not in self._past:
            self._past[start] = self._read_up_to(start).shared(1)
        return self._past[start].shared(rows)

    def _read_up_to(self, stop: int) -> Any:
        """A cache that has read the first `stop` tokens; it grows from one call to the next while `stop` does."""
        if self._growing.length > stop:
            self._growing = self.root.new_cache(self.seq)
        cache, begin = self._growing, self._growing.length
        span = slice(begin, stop)
        visual = self.visual[:, span]
        left = bool(visual.any()) and bool(self.terms)

        def forward() -> Tensor:
            return self.root.model.language_model(
                self.streams[0][:, span],
                position_ids=self.inputs.position_ids[..., span],
                attention_mask=self.inputs.attention_mask[:, :stop],
                visual_mask=visual if left else None,
                deepstack=tuple(term[:, span][visual] for term in self.terms) if left else (),
                cache=cache,
            )

        run_values(self.root, forward)
        return cache


def edits(rows: Sequence[Row], start: int, visual: Tensor) -> dict[str, Callable[[Tensor], None]]:
    """The rows' edits by address, for a batch of these rows that begins at token `start`.

    `visual` [1 seq] is true at images and videos: `deepstack_output` has rows for those alone.
    """
    addresses = dict.fromkeys(change.address for row in rows for change in row)
    return {address: _edit(address, rows, start, visual) for address in addresses}


def _edit(address: str, rows: Sequence[Row], start: int, visual: Tensor) -> Callable[[Tensor], None]:
    def write(value: Tensor) -> None:
        if not address.endswith(".deepstack_output"):
            _write(value, rows, start, lambda change: change.address == address)
            return
        mask = visual[:, start:].expand(len(rows), -1)
        dense = value.new_zeros(*mask.shape, value.shape[-1]).masked_scatter(mask[..., None], value)
        _write(dense, rows, start, lambda change: change.address == address)
        value.copy_(dense[mask])

    return write


def _write(value: Tensor, rows: Sequence[Row], start: int, mine: Callable[[Change], bool]) -> None:
    """Puts the rows' edits into `value` [rows seq …], whose first token is `start`."""
    for number, row in enumerate(rows):
        for change in row:
            if not mine(change) or not len(change.positions):
                continue
            at = (number, change.positions.to(value.device) - start)
            index = at if change.part is None else (*at, change.part)
            new = change.new.to(value.device, value.dtype)
            value[index] = value[index] + new if change.add else new


def rows_at_once(base: Base, start: int, memory: int) -> int:
    """How many rows, from token `start` on, a batch may have.

    As many as fit into `memory` bytes, and no more than keep the processor busy: longer batches would only bring edits
    together that begin at different tokens, and all of them are computed from the first.
    """
    config, length = base.root.config.text, base.seq - start
    size = base.streams[0].element_size()
    heads = config.num_heads * config.head_dim
    a_token = 8 * config.hidden_size + 3 * config.intermediate_size + 4 * heads
    past = base.seq * (2 * config.num_kv_heads * config.head_dim + 2 * heads)
    a_row = size * (length * a_token + past) + length * base.seq + 12 * config.vocab_size * base.places
    busy = 384 if base.logits.device.type == "cpu" else 16384
    return max(1, min(memory // a_row, -(-busy // length)))
