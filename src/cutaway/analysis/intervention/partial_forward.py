"""Edited runs that compute only what an edit can change.

A `BaselineRun` remembers one run: the residual stream that enters each layer, keys, values and states of every token,
the logits. An edit in layer b at token t leaves all layers before b and all tokens before t as they were, since
attention is causal; so an edited run goes on from layer b and token t, many edited runs side by side as the samples of
one batch::

    whole:    vision encoder ─► layer 0 ─► … ─► layer b ─► … ─► logits        every token
    partial:                                    layer b ─► … ─► logits        tokens t … end, the rest from the baseline

Use it for sweeps of hundreds of edits of one prompt, as patching and ablation do; `BaselineRun.run_whole` gives what it
must equal. Which edits are made, and why, is the analyses' business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.metrics import Metric, answer_logits
from cutaway.analysis.common.prompts import check_prompt
from cutaway.analysis.common.sweep import Cell, Sweep
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.trace.run import run_values

INTO_RESIDUAL = ("layer_output", "deepstack_output")
"""Values that only the next layer reads: an edit of them goes on from there, the layer itself is not run again."""

STATE_STEP = 16
"""Recurrent states are kept at multiples of this many tokens; an edit goes on from the last one before it."""


@dataclass(frozen=True, eq=False)
class PositionEdit:
    """One edit of a value of one layer at some positions.

    - `layer`, `value`: such as ``3, "mlp.mlp_output"``; a value with axes [batch seq …], or `deepstack_output`.
    - `positions`: [n] positions in the sequence; `new`: [n …], what is put there, or with `add` added to what is there.
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


EditSet = Sequence[PositionEdit]
"""All edits of one run."""


class BaselineRun:
    """The run that is edited, remembered.

    - `inputs`: a batch of one, any answer appended; `answer_length`: at how many last positions logits are kept.
    - `residual[b]`: [1 seq hidden], what enters layer b; the last entry is what leaves the last layer.
    - `outputs[b]`: [1 seq hidden], `layer_output` of layer b; `deepstack[k]`: what is added to it, zeros at text.
    - `visual`: [1 seq], true at image and video tokens. `logits`: [1 answer_length vocab].
    """

    def __init__(self, model: Model, inputs: Inputs, answer_length: int = 1) -> None:
        check_prompt(inputs, "inputs")
        model.require_weights("A baseline run")
        self.model, self.root, self.inputs, self.answer_length = model, model.root, inputs, answer_length
        self.seq, self.depth = inputs.input_ids.shape[1], model.root.num_layers
        self.visual = inputs.mm_token_type_ids > 0
        self._cache = self.root.new_cache(self.seq)
        self._prefixes: dict[int, Any] = {}
        self._growing = self.root.new_cache(self.seq)
        terms = len(self.root.config.vision.deepstack_indexes) if bool(self.visual.any()) else 0
        read = ["layers.*.input", "layers.*.layer_output", *(f"layers.{k}.deepstack_output" for k in range(terms))]
        values = run_values(self.root, self._forward, read=read, to_end=True)
        self.logits: Tensor = values.result
        self.outputs: list[Tensor] = [values[f"layers.{b}.layer_output"] for b in range(self.depth)]
        self.residual = [*(values[f"layers.{b}.input"] for b in range(self.depth)), self.outputs[-1]]
        self.deepstack = [
            scatter_to_sequence(values[f"layers.{k}.deepstack_output"], self.visual) for k in range(terms)
        ]

    def _forward(self) -> Tensor:
        return self.root.lm_head(self.root.model(self.inputs, self._cache)[:, -self.answer_length :])

    def start(self, positions: Tensor) -> int:
        """Return the first token that an edit at these positions (at least one) makes necessary to compute."""
        first = min(int(positions.min()), self.seq - self.answer_length)
        return first - first % STATE_STEP if self._cache.recurrent else first

    def run(self, sets: Sequence[EditSet]) -> Tensor:
        """Return logits [sets answer_length vocab]: for each set the baseline run with its edits.

        A set without an edited position gives the baseline's own logits.
        """
        logits = self.logits.expand(len(sets), -1, -1).clone()
        edited = [n for n, edits in enumerate(sets) if any(len(edit.positions) for edit in edits)]
        if edited:
            with torch.no_grad():
                logits[edited] = self._run_edited([sets[n] for n in edited])
        return logits

    def run_whole(self, edits: EditSet) -> Tensor:
        """Return logits [1 answer_length vocab] of the same edits in a whole forward, which `run` must equal."""
        edit = edits_by_address([edits], 0, self.visual)
        return answer_logits(self.model, self.inputs, self.answer_length, edit=edit)

    def _run_edited(self, sets: Sequence[EditSet]) -> Tensor:
        every = [edit for edits in sets for edit in edits]
        layer = min(edit.layer for edit in every)
        start = self.start(torch.cat([edit.positions for edit in every]))
        if all(edit.layer == layer and edit.value in INTO_RESIDUAL for edit in every):
            return self._run_from(layer + 1, start, self._edited_residual(sets, layer, start), None)
        entering = self.residual[layer][:, start:].expand(len(sets), -1, -1)  # [sets seq-start hidden]
        return self._run_from(layer, start, entering, edits_by_address(sets, start, self.visual))

    def _run_from(self, layer: int, start: int, entering: Tensor, edit: dict[str, Any] | None) -> Tensor:
        """Run the layers from `layer` on, tokens from `start` on; `entering` is [sets seq-start hidden]."""
        count = entering.shape[0]
        visual = self.visual[:, start:].expand(count, -1)
        adds = bool(visual.any()) and layer < len(self.deepstack)
        deepstack = [term[:, start:].expand(count, -1, -1)[visual] for term in self.deepstack] if adds else []

        def forward() -> Tensor:
            hidden = self.root.model.language_model(
                entering,
                first=layer,
                position_ids=self.inputs.position_ids[..., start:].expand(3, count, -1),
                attention_mask=self.inputs.attention_mask.expand(count, -1),
                visual_mask=visual if adds else None,
                deepstack=tuple(deepstack),
                cache=self._prefix(count, start) if start else None,
            )
            return self.root.lm_head(hidden[:, -self.answer_length :])

        return run_values(self.root, forward, edit=edit).result

    def _edited_residual(self, sets: Sequence[EditSet], layer: int, start: int) -> Tensor:
        """Return [sets seq-start hidden]: the edited residual stream after a layer, DeepStack terms included."""
        output = self.outputs[layer][:, start:].repeat(len(sets), 1, 1)
        _write(output, sets, start, lambda edit: edit.value == "layer_output")
        if layer >= len(self.deepstack):
            return output
        term = self.deepstack[layer][:, start:].repeat(len(sets), 1, 1)
        _write(term, sets, start, lambda edit: edit.value == "deepstack_output")
        return torch.where(self.visual[:, start:, None], output + term, output)

    def _prefix(self, count: int, start: int) -> Any:
        """Return a cache of the first `start` tokens, shared by `count` samples."""
        if not self._cache.recurrent:
            return self._cache.shared(count, start)
        if start not in self._prefixes:
            self._prefixes[start] = self._read_up_to(start).shared(1)
        return self._prefixes[start].shared(count)

    def _read_up_to(self, stop: int) -> Any:
        """Return a cache that has read the first `stop` tokens; it grows with `stop` from call to call."""
        if self._growing.length > stop:
            self._growing = self.root.new_cache(self.seq)
        cache, begin = self._growing, self._growing.length
        span = slice(begin, stop)
        visual = self.visual[:, span]
        adds = bool(visual.any()) and bool(self.deepstack)

        def forward() -> Tensor:
            return self.root.model.language_model(
                self.residual[0][:, span],
                position_ids=self.inputs.position_ids[..., span],
                attention_mask=self.inputs.attention_mask[:, :stop],
                visual_mask=visual if adds else None,
                deepstack=tuple(term[:, span][visual] for term in self.deepstack) if adds else (),
                cache=cache,
            )

        run_values(self.root, forward)
        return cache


def scatter_to_sequence(packed: Tensor, visual: Tensor) -> Tensor:
    """Return vectors of image tokens [tokens hidden] at their positions, [samples seq hidden], zeros elsewhere.

    `visual` [samples seq] is true at image tokens.
    """
    return packed.new_zeros(*visual.shape, packed.shape[-1]).masked_scatter(visual[..., None], packed)


@dataclass(frozen=True)
class PlannedRun:
    """One edited run of a sweep: its edits' first layer and positions, and the function that makes the edits."""

    layer: int
    positions: Tensor
    edits: Callable[[], EditSet]


def run_planned(
    sweep: Sweep,
    baseline: BaselineRun,
    planned: Mapping[Cell, PlannedRun],
    metric: Metric,
    reference: Tensor | None,
    memory: int,
) -> None:
    """Measure the planned runs of some cells of a sweep, in batches of about `memory` bytes."""

    def compute(batch: Sequence[Cell]) -> list[float]:
        logits = baseline.run([planned[cell].edits() for cell in batch])
        return metric(logits, reference).tolist()

    sweep.run(batches(baseline, planned, memory), compute)


def batches(baseline: BaselineRun, planned: Mapping[Cell, PlannedRun], memory: int) -> list[list[Cell]]:
    """Group the cells that run side by side: those of one layer, with neighbouring first tokens."""
    starts = {
        cell: baseline.start(run.positions) if len(run.positions) else baseline.seq - 1 for cell, run in planned.items()
    }
    groups = []
    for layer in sorted({run.layer for run in planned.values()}):
        left = sorted((cell for cell, run in planned.items() if run.layer == layer), key=starts.__getitem__)
        while left:
            count = samples_at_once(baseline, starts[left[0]], memory)
            groups.append(left[:count])
            left = left[count:]
    return groups


def edits_by_address(sets: Sequence[EditSet], start: int, visual: Tensor) -> dict[str, Callable[[Tensor], None]]:
    """Return the edits of a batch, sample n with the edits of set n, by address; its first token is `start`.

    `visual` [1 seq] is true at image tokens: `deepstack_output` has vectors for those only.
    """
    addresses = dict.fromkeys(edit.address for edits in sets for edit in edits)
    return {address: _edit_in_place(address, sets, start, visual) for address in addresses}


def _edit_in_place(address: str, sets: Sequence[EditSet], start: int, visual: Tensor) -> Callable[[Tensor], None]:
    def write(value: Tensor) -> None:
        if not address.endswith(".deepstack_output"):
            _write(value, sets, start, lambda edit: edit.address == address)
            return
        mask = visual[:, start:].expand(len(sets), -1)
        dense = scatter_to_sequence(value, mask)  # [sets·tokens hidden] → [sets seq-start hidden]
        _write(dense, sets, start, lambda edit: edit.address == address)
        value.copy_(dense[mask])

    return write


def _write(value: Tensor, sets: Sequence[EditSet], start: int, applies: Callable[[PositionEdit], bool]) -> None:
    """Write the edits that apply into `value` [sets seq-start …], whose first token is `start`."""
    for sample, edits in enumerate(sets):
        for edit in edits:
            if not applies(edit) or not len(edit.positions):
                continue
            at = (sample, edit.positions.to(value.device) - start)
            index = at if edit.part is None else (*at, edit.part)
            new = edit.new.to(value.device, value.dtype)
            value[index] = value[index] + new if edit.add else new


def samples_at_once(baseline: BaselineRun, start: int, memory: int) -> int:
    """Return how many edited runs from token `start` on a batch may have.

    As many as fit into `memory` bytes, and no more than keep the processor busy: larger batches would only join edits
    that begin at different tokens, and all of them are computed from the first.
    """
    config, length = baseline.root.config.text, baseline.seq - start
    size = baseline.residual[0].element_size()
    heads = config.num_heads * config.head_dim
    per_token = 8 * config.hidden_size + 3 * config.intermediate_size + 4 * heads
    prefix = baseline.seq * (2 * config.num_kv_heads * config.head_dim + 2 * heads)
    logits = 12 * config.vocab_size * baseline.answer_length
    per_sample = size * (length * per_token + prefix) + length * baseline.seq + logits
    busy_tokens = 384 if baseline.logits.device.type == "cpu" else 16384
    return max(1, min(memory // per_sample, -(-busy_tokens // length)))
