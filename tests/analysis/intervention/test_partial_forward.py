"""Partial forwards equal whole edited runs: every component of every layer of every family, the two ends exactly."""

from __future__ import annotations

import random

import pytest
import torch

from cutaway.analysis.common.prompts import question
from cutaway.analysis.intervention import components
from cutaway.analysis.intervention.partial_forward import BaselineRun, PositionEdit, samples_at_once
from cutaway.errors import InputError
from tests.analysis.models import BUILT, noise_image, small


def ask(model, seed=0):
    images = [noise_image(seed), noise_image(seed + 1, (64, 64))]
    return question(model, "What color?", images=images, min_pixels=1024)


def random_edit(model, base, dice, noise, component, layer) -> PositionEdit:
    """Noise of the baseline's size, at some tokens, of a random part of a component."""
    old = components.read_component(model, base.inputs, component, [layer])
    part = dice.choice(components.parts_of(model, component, layer))
    first = dice.randrange(base.seq)
    positions = torch.tensor(sorted(dice.sample(range(first, base.seq), min(3, base.seq - first))))
    if component == "deepstack":
        positions = base.visual[0].nonzero()[:, 0][-dice.randrange(1, 4) :]
    there = old.of(layer, part)[0, positions]
    return components.edit_component(model, old, layer, part, positions, torch.randn(there.shape, generator=noise))


def every_cell(model) -> list[tuple[str, int]]:
    """Every component in every layer that has it."""
    return [(component, layer) for component in components.COMPONENTS for layer in layers(model, component)]


def cut_up(cells, dice) -> list[list]:
    """The cells in batches of one to seven."""
    batches = []
    while cells:
        count = dice.randrange(1, 8)
        batches.append(cells[:count])
        cells = cells[count:]
    return batches


def layers(model, component) -> list[int]:
    try:
        return components.layers_with(model, component)
    except InputError:
        return []


def whole(model, base, changes):
    """The last logits of a plain edited run, the edits written out by hand."""
    edit = {}
    for change in changes:

        def put(value, change=change):
            new = change.new
            if change.value == "deepstack_output":
                rows = base.visual[0].cumsum(0)[change.positions] - 1
                value[rows] = new
            elif change.part is not None:
                value[0, change.positions, change.part] = new
            elif change.add:
                value[0, change.positions] += new
            else:
                value[0, change.positions] = new

        edit[change.address] = put
    return model.run(base.inputs, edit=edit).result[:, -base.answer_length :]


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("mixed", [False, True])
def test_every_component_of_every_layer_equals_a_whole_edited_run(family, mixed) -> None:
    """At random parts and tokens, in batches of one layer (as sweeps make them) and of any layers."""
    model, dice, noise = small(family), random.Random(f"{family} {mixed}"), torch.Generator().manual_seed(5)
    base = BaselineRun(model, ask(model), answer_length=2)
    scale, worst, moved, cells = float(base.logits.abs().max()), 0.0, 0, every_cell(model)
    dice.shuffle(cells)
    by_layer = [[cell for cell in cells if cell[1] == layer] for layer in range(base.depth)]
    for batch in [batch for group in ([cells] if mixed else by_layer) for batch in cut_up(group, dice)]:
        sets = [[random_edit(model, base, dice, noise, *cell)] for cell in batch]
        for edits, logits in zip(sets, base.run(sets), strict=True):
            expected = whole(model, base, edits)
            worst = max(worst, float((logits - expected[0]).abs().max()) / scale)
            moved += not torch.equal(expected, base.logits)
    assert worst < 1e-5, f"largest difference {worst:.2e} of the logits' scale"
    assert moved > 0.9 * len(cells)


@pytest.mark.parametrize("family", BUILT)
def test_several_edits_of_one_run(family) -> None:
    model, dice, noise = small(family), random.Random(7), torch.Generator().manual_seed(6)
    base = BaselineRun(model, ask(model))
    cells, rows = every_cell(model), []
    for _ in range(5):
        edits = [random_edit(model, base, dice, noise, *dice.choice(cells)) for _ in range(3)]
        rows.append(list({edit.address: edit for edit in edits}.values()))
    for row, logits in zip(rows, base.run(rows), strict=True):
        expected = whole(model, base, row)
        assert float((logits - expected[0]).abs().max() / expected.abs().max()) < 1e-5
        assert torch.allclose(base.run_whole(row), expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("family", BUILT)
def test_nothing_gives_the_base_run_and_everything_the_other_one_exactly(family) -> None:
    model = small(family)
    corrupt, clean = BaselineRun(model, ask(model, 0)), BaselineRun(model, ask(model, 5))
    assert not torch.equal(corrupt.logits, clean.logits)
    nowhere = torch.zeros(0, dtype=torch.int64)
    nothing = PositionEdit(0, "layer_output", nowhere, torch.zeros(0, model.hidden_size))
    assert torch.equal(corrupt.run([[], [nothing]]), corrupt.logits.expand(2, -1, -1))
    everywhere = torch.arange(corrupt.seq)
    everything = [PositionEdit(0, "input", everywhere, clean.residual[0][0])]
    for k, term in enumerate(clean.deepstack):
        seen = everywhere[clean.visual[0]]
        everything.append(PositionEdit(k, "deepstack_output", seen, term[0, seen]))
    assert torch.equal(corrupt.run([everything]), clean.logits)
    for layer in range(len(clean.deepstack), corrupt.depth):
        assert torch.equal(
            corrupt.run([[PositionEdit(layer, "layer_output", everywhere, clean.outputs[layer][0])]]), clean.logits
        )


def test_an_edit_of_the_first_places_changes_those_alone() -> None:
    model = small("qwen3_vl")
    base = BaselineRun(model, ask(model), answer_length=3)
    last = torch.tensor([base.seq - 1])
    result = base.run([[PositionEdit(0, "layer_output", last, torch.zeros(1, model.hidden_size))]])
    assert torch.allclose(result[:, :2], base.logits[:, :2], atol=1e-4)
    assert not torch.allclose(result[:, 2], base.logits[:, 2], atol=1e-2)


def test_batches_fit_into_memory() -> None:
    base = BaselineRun(small("qwen3_vl"), ask(small("qwen3_vl")))
    assert samples_at_once(base, base.seq - 1, 2**34) > samples_at_once(base, 0, 2**34) >= 1
    assert samples_at_once(base, base.seq - 1, 2**20) < samples_at_once(base, base.seq - 1, 2**34)
    assert samples_at_once(base, 0, 1) == 1


def test_a_base_run_is_one_row() -> None:
    model = small("qwen3_vl")
    with pytest.raises(InputError, match="batch of one"):
        BaselineRun(model, model.prepare([model.prompt("a"), model.prompt("b")]))
