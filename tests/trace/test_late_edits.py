"""An in-place edit acts wholly, or is an error that names the value and where the forward was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

from cutaway.errors import EditError, TraceError
from cutaway.trace.run import run_values
from cutaway.trace.steps import Steps
from tests.trace.test_steps import Greedy
from tests.trace.toy import IDS, ROWS, Toy, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


ALIASES: dict[str, Callable] = {
    "the handle": lambda v: v,
    "a view": lambda v: v[:, 1:],
    "a view of a view": lambda v: v[0][1],
    "an alias": lambda v: v.view(-1),
    "saved": lambda v: v.save(),
    "a view of what was saved": lambda v: v.save()[0],
    "detached": lambda v: v.detach(),
}


@contextmanager
def late(message: str) -> Iterator[None]:
    with pytest.raises(EditError, match=message):
        yield


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("alias", ALIASES)
def test_an_edit_after_the_forward_has_gone_on_is_an_error_at_the_next_read(toy, alias, grad):
    message = r"`layers.0.layer_output` was changed in place after .* stood at `layers.1.self_attn.attention_output`"
    with opened(toy, grad=grad) as run:
        tensor = ALIASES[alias](toy.layers[0].layer_output)
        _ = toy.layers[1].attn.attention_output
        with torch.no_grad():
            tensor.zero_()
        with pytest.raises(EditError, match=message):
            _ = toy.logits
        with pytest.raises(TraceError, match="failed"):
            run.finish()


@pytest.mark.parametrize("alias", ALIASES)
def test_or_when_the_run_is_left(toy, alias):
    with (
        late(r"`layers.0.layer_output` was changed.*stood at `layers.2.layer_output`"),
        opened(toy),
    ):
        tensor = ALIASES[alias](toy.layers[0].layer_output)
        _ = toy.layers[2].layer_output
        tensor += 1
    with opened(toy):  # nothing stays behind
        assert toy.logits.shape == (2, 4, 11)


def test_an_error_of_the_body_is_not_hidden_by_it(toy):
    with suppress(KeyError), opened(toy):
        tensor = toy.layers[0].layer_output
        _ = toy.logits
        tensor[:] = 0
        raise KeyError


def test_after_the_end_of_the_forward_it_is_an_error_too(toy):
    with late(r"The forward had ended"), opened(toy) as run:
        logits = toy.logits
        run.finish()
        logits /= 2


@pytest.mark.parametrize("name", ["ids", "size", "probs"])
def test_an_edit_of_what_is_read_only_is_an_error(toy, name):
    with late(rf"`{name}` was changed in place, and it is read-only"), opened(toy, ids=IDS.clone()) as run:
        getattr(toy, name)[..., 0] = 0
        run.finish()


def test_items_of_tuples_lists_and_dicts(toy):
    for read in (
        lambda: toy.tower.output[1],
        lambda: toy.layers[0].attn.patterns[0],
        lambda: toy.layers[0].attn.inputs[0][0],
    ):
        with late(r"was changed in place after"), opened(toy):
            tensor = read()
            _ = toy.logits
            tensor.zero_()


def test_what_was_collected(toy):
    with late(r"`layers.0.layer_output` was changed in place after"), opened(toy) as run:
        got = run.collect("layers.0:2.layer_output")
        got["layers.0.layer_output"][:] = 0
    with opened(toy) as run:
        got = run.collect("layers.0:2.layer_output")
        got["layers.1.layer_output"][:] = 0  # the forward stands here
        zeroed = toy.logits.save()
    want = run_values(toy, lambda: toy(IDS, ROWS), read="logits", edit={"layers.1.layer_output": torch.zeros_like})
    torch.testing.assert_close(zeroed, want["logits"])
    with late(r"`layers.0.layer_output` was changed"), opened(toy) as run:
        views = run.collect("layers.*.layer_output", reduce=lambda v: v[:, -1])
        views["layers.0.layer_output"][:] = 0
    with late(r"`ids` was changed in place, and it is read-only"), opened(toy, ids=IDS.clone()) as run:
        run.collect(["ids", "logits"])["ids"][:] = 0


def test_a_tensor_that_was_assigned_may_change_until_the_forward_goes_on(toy):
    with opened(toy):
        new = torch.ones(2, 4, 6)
        toy.layers[1].layer_output = new
        new.zero_()
        early = toy.logits.save()
    want = run_values(toy, lambda: toy(IDS, ROWS), read="logits", edit={"layers.1.layer_output": torch.zeros_like})
    torch.testing.assert_close(early, want["logits"])
    with late(r"`layers.1.layer_output` was changed"), opened(toy):
        toy.layers[1].layer_output = new
        _ = toy.layers[2].attn.queries
        new += 1


def test_a_value_that_was_replaced_can_not_be_edited_any_more(toy):
    with late(r"`layers.1.layer_output` was changed"), opened(toy):
        old = toy.layers[1].layer_output
        toy.layers[1].layer_output = torch.zeros_like(old)
        old[:] = 1
        _ = toy.logits


def test_edits_by_address_that_change_what_an_earlier_one_got(toy):
    kept = []
    edits = {"layers.0.layer_output": kept.append, "layers.2.layer_output": lambda v: [kept[0].zero_(), None][1]}
    with pytest.raises(
        EditError, match=r"`layer_output` of an earlier edit was changed.*`layers.2.layer_output` changed it"
    ):
        run_values(toy, lambda: toy(IDS, ROWS), read="logits", edit=edits)


def test_steps_of_a_generation(toy):
    with late(r"`layers.0.layer_output` was changed"), Steps(toy, Greedy(toy)) as run:
        for _ in run:
            tensor = toy.layers[0].layer_output
            _ = toy.logits
            tensor[:] = 0


@pytest.mark.parametrize("grad", [False, True])
def test_no_false_alarm(toy, grad):
    """Edits in time, of the same tensor under its later names, of copies, by the forward itself, and after the run."""
    toy.layers[1].register_forward_hook(lambda module, args, output: [output.data.mul_(1), None][1])
    toy.layers[1].register_forward_pre_hook(lambda module, args: [args[0].add_(0), None][1])
    with opened(toy, grad=grad) as run:
        first = toy.layers[0].layer_output
        first[:, 0] = 0
        first = toy.layers[0].layer_output
        first *= 2
        copy = first.clone()
        entered = toy.layers[1].input
        entered[:, 0] += 1  # the same tensor, which the forward passes here again
        copy.zero_()
        computed = first * 2
        computed[:] = 0
        later = toy.layers[2].layer_output.save()
        logits = toy.logits
        logits -= logits.max()  # the forward stands here
        run.collect("probs")
    with torch.no_grad():
        for tensor in (first, later, logits):
            tensor.zero_()


def test_noticing_keeps_no_numbers_alive(toy):
    with opened(toy) as run:
        for layer in toy.layers:
            _ = layer.layer_output
        assert run._late_edits._entries
        assert all(entry.counter.untyped_storage().nbytes() == 0 for entry in run._late_edits._entries)
