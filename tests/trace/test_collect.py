"""`run.collect`: many values of an open run in one go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import (
    InputError,
    NoRunError,
    NotReachedError,
    OutOfOrderError,
    TraceError,
    Unavailable,
    UnknownValue,
)
from cutaway.trace.run import run_values
from cutaway.trace.steps import Steps
from tests.trace.test_programs import DEPTH, POINTS, by_hooks, followed, host, programs
from tests.trace.test_steps import Greedy
from tests.trace.toy import IDS, ROWS, Toy, input_values, opened

EVERY = ["logits", "layers.*.layer_output", "layers.1.attn.probabilities", "vision.stream", "vision.inputs", "ids"]


@pytest.fixture
def toy() -> Toy:
    return Toy()


def test_what_comes_is_what_a_run_by_address_gives(toy):
    with opened(toy) as run:
        got = run.collect(EVERY)
    want = run_values(toy, lambda: toy(IDS, ROWS), read=EVERY, input_values=input_values())
    assert list(got) == list(want)
    assert all(torch.equal(got[a], want[a]) for a in got if a != "vision.inputs")
    assert got["vision.inputs"][0][0].data_ptr() == ROWS.data_ptr()
    assert got.axes("layers.2.layer_output") == ("batch", "seq", "width")
    assert type(got["logits"]) is torch.Tensor


def test_the_forward_stands_at_the_last_which_can_be_edited(toy):
    with opened(toy) as run:
        plain = run.collect(["layers.0:2.layer_output", "embeddings"])
        assert "stands at `layers.1.layer_output`" in repr(run)
        assert torch.equal(toy.layers[1].layer_output, plain["layers.1.layer_output"])
        toy.layers[1].layer_output[:] = 0
        edited = run.collect("logits")["logits"]
    want = run_values(toy, lambda: toy(IDS, ROWS), read="logits", edit={"layers.1.layer_output": torch.zeros_like})
    assert torch.equal(edited, want["logits"])


def test_the_place_stood_at_comes_as_the_body_left_it(toy):
    with opened(toy) as run:
        toy.layers[0].layer_output[:] = 1
        assert (run.collect("layers.*.layer_output")["layers.0.layer_output"] == 1).all()
    with opened(toy) as run:
        toy.layers[0].layer_output = torch.full_like(toy.layers[0].layer_output, 2)
        got = run.collect("layers.0.layer_output")  # nothing is left to run
        assert "stands at `layers.0.layer_output`" in repr(run)
    assert (got["layers.0.layer_output"] == 2).all()
    with opened(toy) as run:
        inputs = toy.layers[0].attn.inputs
        got = run.collect(["layers.0.attn.input", "layers.0.attn.inputs"])
    assert torch.equal(got["layers.0.self_attn.input"], inputs[0][0])


@pytest.mark.parametrize(
    ("read", "error", "says"),
    [
        (["logits", "layers.0.layer_output"], OutOfOrderError, "`layers.0.layer_output` has passed"),
        (["logits", "layers.0.attn.probabilities"], OutOfOrderError, "was not computed"),
        (["logits", "layers.0.layer_outputs"], UnknownValue, "Nearest: `layer_output`"),
        (["logits", "layers.1.attn.scores"], Unavailable, "the toy fuses them"),
        ([], InputError, "takes an address or pattern"),
        (None, InputError, "got None"),
        ([["logits"]], InputError, "is an address or pattern"),
    ],
)
def test_what_cannot_come_is_refused_before_the_forward_moves(toy, read, error, says):
    with opened(toy) as run:
        toy.layers[1].attn.queries.save()
        with pytest.raises(error, match=says):
            run.collect(read)
        assert "stands at `layers.1.self_attn.queries`" in repr(run)
        toy.logits.save()


def test_a_computed_value_whose_module_is_under_way(toy):
    with opened(toy) as run:
        toy.layers[1].attn.queries.save()
        late = run.collect(["layers.1.attn.probabilities", "logits"])  # asked for just in time
        assert late["layers.1.attn.probabilities"].shape == (2, 4, 4)
    with opened(toy) as run:
        toy.layers[1].attn.attention_output.save()
        with pytest.raises(OutOfOrderError, match=r"was not computed.*\n?.*stands at `layers.1.self_attn.output`"):
            run.collect(["logits", "layers.1.attn.probabilities"])
        toy.logits.save()


def test_values_that_never_come(toy):
    with opened(toy, rows=None) as run:
        with pytest.raises(NotReachedError, match=r"without `layers.0.extra`. The input has no image"):
            run.collect(["layers.0.extra", "logits"])
        with pytest.raises(NotReachedError):
            run.collect("vision.stream")
        assert run.result is not None
    with opened(toy, rows=None) as run:
        assert list(run.collect("layers.0.*")) == ["layers.0.layer_output"]  # of a pattern, what there is


def test_only_what_is_reduced_is_kept(toy):
    with opened(toy) as run:
        norms = run.collect("layers.*.layer_output", reduce=lambda v: v.norm(dim=-1))
        last = run.collect(["logits", "head.input"], reduce={"logits": lambda v: v[:, -1]})
    assert [tuple(v.shape) for v in norms.values()] == [(2, 4)] * 3
    assert last["logits"].shape == (2, 11)
    assert last["head.input"].shape == (2, 4, 6)


def test_edits_given_before_the_run_are_made_first(toy):
    with opened(
        toy, edits={"layers.1.layer_output": torch.zeros(2, 4, 6), "layers.0.attn.output": lambda v: v * 0}
    ) as run:
        got = run.collect(["layers.*.layer_output", "layers.0.attn.output"])
    assert not got["layers.1.layer_output"].any()
    assert not got["layers.0.attn.output"].any()
    assert got["layers.2.layer_output"].any()


def test_gradients_reach_what_was_collected(toy):
    with opened(toy, grad=True) as run:
        got = run.collect(["layers.*.layer_output", "embeddings"])
        loss = toy.logits.square().sum()
        gradients = torch.autograd.grad(loss, list(got.values()))
    assert all(g.any() for g in gradients)


def test_each_step_collects_its_own(toy):
    greedy, widths = Greedy(toy, 3), []
    with Steps(toy, greedy, input_values=lambda: input_values(greedy.ids)) as run:
        for step in run:
            got = step.collect(["layers.*.layer_output", "ids"])
            widths.append([v.shape[1] for v in got.values()])
            with pytest.raises(OutOfOrderError):
                step.collect("embeddings")
            assert list(run.collect("logits")) == ["logits"]  # the current step's
        with pytest.raises(NoRunError, match="belongs to a step, and no step is open"):
            run.collect("logits")
    assert widths == [[4] * 4, [5] * 4, [6] * 4]


def test_two_runs_in_turn(toy):
    with opened(toy) as one, opened(toy, ids=IDS + 1) as two:
        first = one.collect("layers.0:2.layer_output")
        second = two.collect("layers.*.layer_output")
        assert not torch.equal(first["layers.0.layer_output"], second["layers.0.layer_output"])
        two_logits, one_logits = two.collect("logits")["logits"], one.collect("logits")["logits"]
    with torch.no_grad():
        assert torch.equal(one_logits, toy(IDS, ROWS))
        assert torch.equal(two_logits, toy(IDS + 1, ROWS))


def test_a_run_that_is_over(toy):
    run = opened(toy)
    with pytest.raises(NoRunError, match="not open yet"):
        run.collect("logits")
    with run:
        run.finish()
        with pytest.raises(OutOfOrderError, match="has ended"):
            run.collect("logits")
    with pytest.raises(NoRunError, match="closed"):
        run.collect("logits")


def test_an_error_in_the_forward_says_where_it_was_going(toy):
    def fail(*_):
        raise ZeroDivisionError("in the middle")

    toy.decoder.blocks[1].register_forward_pre_hook(fail)
    with opened(toy) as run:
        toy.layers[0].attn.queries.save()
        with pytest.raises(ZeroDivisionError) as caught:
            run.collect("layers.*.layer_output")
        assert "from `layers.0.self_attn.queries` to `layers.1.layer_output`" in caught.value.__notes__[0]
        with pytest.raises(TraceError, match="failed"):
            run.collect("logits")


@settings(max_examples=150, deadline=None)
@given(
    programs,
    st.integers(0, len(POINTS) - 1),
    st.lists(st.integers(0, len(POINTS) - 1), unique=True, min_size=1, max_size=6),
    st.booleans(),
)
def test_programs_that_collect_do_what_hooks_do(program, start, collected, grad):
    """Steps up to a place, everything asked from there on in one go, then the steps behind that."""
    collected = [index for index in collected if index >= start] or [start]
    before = sorted((step for step in program if step[0] <= start), key=lambda step: step[0])
    after = sorted((step for step in program if step[0] > max(collected)), key=lambda step: step[0])
    toy = Toy(depth=DEPTH)
    with opened(toy, rows=ROWS.clone(), grad=grad) as run:
        _, late = followed((*host(run, POINTS[i].address), *step) for i, *step in before)
        got = run.collect([POINTS[i].address for i in collected])
        result = [got[POINTS[i].address].clone() for i in collected]
        _, later = followed((*host(run, POINTS[i].address), *step) for i, *step in after)
        logits = run.finish()
    assert late == later == []
    assert torch.equal(logits, by_hooks(toy, [*before, *after], grad)[0])
    edits = [step for step in before if step[1] != "read"]
    _, want = by_hooks(toy, [*edits, *((index, "read", 0.0) for index in collected)], grad)
    assert all(torch.equal(one, other) for one, other in zip(result, want, strict=True))
