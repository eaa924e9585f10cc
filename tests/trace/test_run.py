"""Reads, edits and the order of a run, on a toy."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import pytest
import torch
from greenlet import GreenletExit

from cutaway.errors import (
    EditError,
    NoRunError,
    NotReachedError,
    OutOfOrderError,
    TraceError,
    Unavailable,
    UnknownValue,
)
from cutaway.trace.handles import TracedTensor
from cutaway.trace.run import Run, run_values
from tests.trace.toy import IDS, ROWS, Toy, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


def bare(toy: Toy) -> torch.Tensor:
    with torch.no_grad():
        return toy(IDS, ROWS)


def test_reads_are_the_forwards_own_values(toy):
    want = bare(toy)
    with opened(toy):
        entering = toy.layers[1].input
        out = toy.layers[1].layer_output.save()
        last = toy.layers[-1].layer_output
        logits = toy.logits.save()
    assert type(entering) is TracedTensor
    assert type(logits) is torch.Tensor
    assert torch.equal(logits, want)
    with torch.no_grad():
        assert torch.equal(toy.layers[1](entering.save()), out)
        assert torch.equal(toy.head(toy.decoder.norm(last)), want)


def test_names_survive_without_save(toy):
    with opened(toy):
        value = toy.layers[0].layer_output
        doubled = value * 2
    assert torch.equal(doubled.save(), value.save() * 2)
    assert type(doubled.save()) is torch.Tensor


def test_second_read_gives_the_same_tensor(toy):
    with opened(toy):
        first = toy.layers[0].layer_output
        assert toy.layers[0].layer_output is first
        assert toy.layers[0].layer_output.save().data_ptr() == first.data_ptr()


@pytest.mark.parametrize("how", ["slice", "iadd", "assign", "saved", "method", "nested"])
def test_an_edit_lands(toy, how):
    def double(module, args, output):
        return output * 2

    handle = toy.decoder.blocks[1].register_forward_hook(double)
    want = bare(toy)
    handle.remove()
    with opened(toy):
        if how == "slice":
            toy.layers[1].layer_output[:] *= 2
        elif how == "iadd":
            toy.layers[1].layer_output += toy.layers[1].layer_output.save().clone()
        elif how == "assign":
            toy.layers[1].layer_output = toy.layers[1].layer_output * 2
        elif how == "saved":
            toy.layers[1].layer_output.save().mul_(2)
        elif how == "method":
            toy.layers[1].layer_output.mul_(2)
        else:
            for row in toy.layers[1].layer_output:
                for token in row:
                    token *= 2
        got = toy.logits.save()
    assert torch.equal(got, want)
    assert torch.equal(bare(toy), toy(IDS, ROWS))


def test_assignment_without_a_read_and_reading_it_back(toy):
    new = torch.full((2, 4, 6), 0.25)
    with opened(toy):
        toy.layers[0].layer_output = new
        assert torch.equal(toy.layers[0].layer_output, new)
        toy.layers[0].layer_output[:, 0] = 1.0
        toy.layers[0].layer_output += 1
        entering = toy.layers[1].input.save()
    want = torch.full((2, 4, 6), 1.25)
    want[:, 0] = 2.0
    extra = toy.tower(ROWS)[1].mean(0)
    assert torch.allclose(entering, want + extra)


def test_a_value_that_has_passed(toy):
    with opened(toy):
        toy.layers[2].layer_output.save()
        with pytest.raises(OutOfOrderError) as error:
            toy.layers[0].layer_output.save()
        text = str(error.value)
        assert "`layers.0.layer_output` has passed" in text
        assert "stands at `layers.2.layer_output`" in text
        assert "model.layers[0].layer_output\n    model.layers[2].layer_output" in text
        with pytest.raises(OutOfOrderError):
            toy.layers[1].layer_output = torch.zeros(2, 4, 6)
        with pytest.raises(OutOfOrderError):
            toy.layers[2].input  # noqa: B018
        assert torch.equal(toy.logits, bare(toy))  # the run stays usable


def test_computed_values_take_the_step_by_step_path_of_their_block_alone(toy):
    calls = []
    original = torch.nn.functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torch.nn.functional.scaled_dot_product_attention", lambda *a, **k: calls.append(1) or original(*a, **k)
        )
        with opened(toy):
            pattern = toy.layers[1].attn.probabilities.save()
            assert len(calls) == 1
            toy.logits.save()
            assert len(calls) == 2
    assert torch.allclose(pattern.sum(-1), torch.ones(2, 4))


def test_a_computed_value_asked_too_late(toy):
    with opened(toy):
        toy.layers[1].attn.attention_output.save()
        with pytest.raises(OutOfOrderError, match="computed only if it is read before"):
            toy.layers[1].attn.probabilities.save()
        with pytest.raises(OutOfOrderError, match="computed only if"):
            toy.layers[0].attn.probabilities.save()
        assert torch.equal(toy.layers[1].attn.output, toy.layers[1].attn.output)
        assert toy.layers[2].attn.probabilities.shape == (2, 4, 4)


def test_a_value_that_comes_after_the_logits(toy):
    with opened(toy):
        logits = toy.logits.save()
        probs = toy.probs.save()
        with pytest.raises(OutOfOrderError):
            toy.logits  # noqa: B018
    assert torch.allclose(probs, logits[:, -1].softmax(-1))


def test_a_list_value(toy):
    with opened(toy):
        patterns = toy.layers[0].attn.patterns
        assert isinstance(patterns, list)
        assert [type(p) for p in patterns] == [TracedTensor, TracedTensor]
        kept = [p.clone() for p in patterns.save()]
        patterns[0] = torch.eye(4)
        patterns[1][:] = 0
        with pytest.raises(EditError, match="keeps its length"):
            patterns.append(torch.eye(4))
        with pytest.raises(EditError, match="shape"):
            patterns[0] = torch.eye(3)
        out = toy.layers[0].attn.attention_output.save()
        entering = toy.layers[0].mlp.input.save()
    assert len(kept) == 2
    assert torch.allclose(kept[0].sum(-1), torch.ones(4))
    assert torch.equal(out[1], torch.zeros(4, 6))
    assert not torch.equal(entering, out)


def test_a_list_value_assigned_whole(toy):
    with opened(toy):
        toy.layers[0].attn.patterns = [torch.eye(4), torch.eye(4)]
        with pytest.raises(EditError, match="2 items"):
            toy.layers[0].attn.patterns = [torch.eye(4)]
        out = toy.layers[0].attn.attention_output.save()
        v = toy.layers[0].attn.v
    with opened(toy):
        values = v.output.save()
    assert torch.allclose(out, values)


def test_a_leading_axis_is_a_view(toy):
    with opened(toy):
        stream = toy.vision.stream
        assert stream.shape == (1, 5, 6)
        stream[:] = 0.5
        fed = toy.vision.proj.input.save()
    assert torch.equal(fed, torch.full((5, 6), 0.5))
    with opened(toy):
        toy.vision.stream = torch.ones(1, 5, 6)
        with pytest.raises(EditError, match=r"\[1 rows width\] has the shape \[1, 5, 6\]"):
            toy.vision.stream = torch.ones(5, 6)
        assert torch.equal(toy.vision.proj.input, torch.ones(5, 6))


def test_an_alias_of_a_value_is_read_and_assigned(toy):
    with opened(toy) as run:
        toy.stream = torch.ones(1, 5, 6)
        assert torch.equal(run.stream, torch.ones(1, 5, 6))
        run.stream = torch.zeros(1, 5, 6)
        assert torch.equal(toy.vision.proj.input, torch.zeros(5, 6))


def test_inputs_input_and_output_of_any_type(toy):
    with opened(toy):
        args, kwargs = toy.tower.inputs.save()
        assert torch.equal(args[0], ROWS)
        assert kwargs == {}
        second = toy.tower.output[1]
        second[:] = 0
        got = toy.layers[0].extra.save()
        inputs = toy.layers[1].attn.inputs
        assert inputs[1]["scale"] == 6**-0.5
        assert inputs[0][0] is toy.layers[1].attn.input
        inputs[1]["scale"] = 0.0
        pattern = toy.layers[1].attn.probabilities.save()
    assert torch.equal(got, torch.zeros(5, 6))
    assert torch.allclose(pattern, torch.full((2, 4, 4), 0.25))


def test_assigning_input_inputs_and_a_tuple_output(toy):
    zeros = torch.zeros(2, 4, 6)
    with opened(toy):
        toy.tower.input = torch.ones(5, 6)
        assert torch.equal(toy.vision.stream[0], torch.ones(5, 6))
        first, second = toy.tower.output.save()
        toy.tower.output = (first * 0, second)
        with pytest.raises(EditError, match="2 items; got a Tensor"):
            toy.tower.output = first
        embeddings = toy.embeddings.save()
        toy.layers[1].attn.inputs = ((zeros,), {"scale": 1.0})
        with pytest.raises(EditError, match="same keys"):
            toy.layers[1].attn.inputs = ((zeros,), {"skale": 1.0})
        assert torch.equal(toy.layers[1].attn.q.input, zeros)
    assert torch.equal(embeddings, toy.embed(IDS))


def test_anytime_values(toy):
    with opened(toy) as run:
        toy.logits.save()
        assert torch.equal(toy.ids, IDS)
        assert toy.size.tolist() == [2, 4]
        assert run.vision.rows_mask.save().dtype == torch.bool
        with pytest.raises(EditError, match="read-only"):
            toy.ids = IDS
        with pytest.raises(EditError, match="read-only"):
            run.ids = IDS


def test_bad_assignments_name_the_place_and_the_way_out(toy):
    with opened(toy):
        with pytest.raises(EditError, match=r"`layers.0.layer_output` \[batch seq width\].*\[2, 4, 6\].*\[6\].*expand"):
            toy.layers[0].layer_output = torch.zeros(6)
        with pytest.raises(EditError, match=r"float64.*\.to\(torch.float32\)"):
            toy.layers[0].layer_output = torch.zeros(2, 4, 6, dtype=torch.float64)
        with pytest.raises(EditError, match="on cpu; got a tensor on meta"):
            toy.layers[0].layer_output = torch.zeros(2, 4, 6, device="meta")
        with pytest.raises(EditError, match=r"takes a tensor; got a float.*\[:\]"):
            toy.layers[0].layer_output = 0.0
        toy.layers[0].layer_output[:] = 0.0
        assert torch.equal(toy.layers[0].layer_output, torch.zeros(2, 4, 6))


def test_not_reached_says_why(toy):
    with opened(toy, rows=None):
        kept = toy.embeddings
        with pytest.raises(NotReachedError, match=r"`layers.0.extra`. The input has no image"):
            toy.layers[0].extra.save()
        with pytest.raises(NotReachedError, match=r"`stream`. Nothing in this run's inputs"):
            toy.vision.stream.save()
        with pytest.raises(OutOfOrderError, match="has ended"):
            toy.logits.save()
    assert torch.equal(kept.save(), toy.embed(IDS))


def test_errors_before_compute(toy):
    ran = []
    toy.embed.register_forward_hook(lambda *a: ran.append(1))
    with opened(toy) as run:
        with pytest.raises(Unavailable, match="after block 0 only"):
            toy.layers[1].extra.save()
        with pytest.raises(Unavailable, match="after block 0 only"):
            run.layers[1].extra.save()
        with pytest.raises(UnknownValue, match="Nearest: `layer_output`"):
            toy.layers[1].layer_ouput.save()
        with pytest.raises(UnknownValue, match="Nearest: `layer_output`"):
            toy.layers[1].layer_ouput = torch.zeros(2, 4, 6)
        with pytest.raises(UnknownValue, match="Nearest: `layer_output`"):
            run.layers[1].layer_ouput = torch.zeros(2, 4, 6)
        with pytest.raises(IndexError):
            toy.layers[9].layer_output.save()
        with pytest.raises(NoRunError, match="no part of the model"):
            Toy().layers[0].layer_output.save()
    assert not ran
    with pytest.raises(NoRunError, match="no run is open"):
        toy.layers[0].layer_output.save()
    with pytest.raises(NoRunError, match="no run is open"):
        toy.layers[0].layer_output = torch.zeros(2, 4, 6)
    with pytest.raises(NoRunError, match="closed"):
        run.layers[0].layer_output.save()


def test_leaving_drops_the_rest_and_finish_runs_it(toy):
    ran = []
    toy.head.register_forward_hook(lambda *a: ran.append(1))
    with opened(toy) as run:
        toy.layers[0].layer_output.save()
    assert not ran
    assert run.result is None
    with opened(toy) as run:
        toy.layers[0].layer_output.save()
        assert torch.equal(run.finish(), bare(toy))
        assert run.finish() is run.result
    assert torch.equal(run.result, bare(toy))
    with opened(toy) as run:
        pass
    assert len(ran) == 3  # the hook's own: two bare calls and one finished run


def test_an_error_in_the_forward_surfaces_at_the_read(toy):
    def broken(module, args):
        raise ValueError("wrong width")

    handle = toy.layers[1].register_forward_pre_hook(broken)
    with opened(toy):
        toy.layers[0].layer_output.save()
        with pytest.raises(ValueError, match="wrong width") as error:
            toy.layers[1].layer_output.save()
        frames = [entry.name for entry in error.traceback]
        assert frames[0] == "test_an_error_in_the_forward_surfaces_at_the_read"
        assert frames[-1] == "broken"
        assert "from `layers.0.layer_output` to `layers.1.layer_output`" in error.value.__notes__[0]
        with pytest.raises(TraceError, match="wrong width"):
            toy.logits.save()
    handle.remove()
    toy.layers[1].register_forward_pre_hook(lambda *a: [].missing)
    with opened(toy), pytest.raises(TraceError, match="missing"):
        toy.logits.save()


def test_a_forward_that_catches_its_end_does_not_stand_again(toy):
    """Its second pass reaches the place that was asked for last; nobody is there any more to take it on from it."""
    done = []

    def forward():
        try:
            return toy(IDS, ROWS)
        except GreenletExit:
            done.append(toy(IDS, ROWS))
            raise

    with Run(toy, forward):
        toy.layers[1].layer_output.save()
    assert torch.equal(done[0], bare(toy))


def test_a_body_that_raises_ends_the_forward(toy):
    ended = []

    def forward():
        try:
            return toy(IDS, ROWS)
        except BaseException as error:
            ended.append(type(error))
            raise

    def body():
        with Run(toy, forward):
            toy.layers[1].layer_output.save()
            raise KeyError("body")

    with pytest.raises(KeyError):
        body()
    assert len(ended) == 1
    assert issubclass(ended[0], GreenletExit)
    with pytest.raises(NoRunError):
        toy.logits.save()
    assert torch.equal(toy(IDS, ROWS), toy(IDS, ROWS))


def test_a_forward_that_will_not_end_is_ended(toy):
    def forward():
        try:
            toy.decoder.blocks[0](torch.zeros(2, 4, 6))
        except BaseException:
            toy.decoder.blocks[1](torch.zeros(2, 4, 6))

    with Run(toy, forward) as run:
        toy.layers[0].layer_output.save()
    assert not run.is_open


def test_two_runs_stepped_in_turn(toy):
    other = IDS.flip(0)
    with opened(toy) as a, opened(toy, ids=other) as b:
        one = a.layers[0].layer_output.save()
        two = b.layers[0].layer_output.save()
        assert torch.equal(toy.layers[0].layer_output, two)  # the innermost
        b.layers[1].layer_output = a.layers[1].layer_output.save().flip(0)
        logits = [run.logits.save() for run in (a, b)]
    assert torch.equal(one.flip(0), two)
    assert torch.allclose(logits[0], logits[1].flip(0), atol=1e-6)


def test_runs_closed_in_any_order(toy):
    a, b, c = opened(toy), opened(toy), opened(toy)
    for run in (a, b, c):
        run.open()
    toy.layers[0].layer_output.save()
    a.close()
    c.close()
    assert torch.equal(toy.logits.save(), bare(toy))  # from b
    assert b.layers  # a part, not a value
    b.close()
    with pytest.raises(NoRunError):
        toy.logits.save()
    with pytest.raises(NoRunError, match="opened once"):
        a.open()


def test_runs_of_two_models(toy):
    other = Toy(seed=1)
    with opened(toy), opened(other):
        mine, theirs = toy.logits.save(), other.logits.save()
    assert torch.equal(mine, bare(toy))
    assert torch.equal(theirs, bare(other))


def test_the_tree_of_a_run(toy):
    with opened(toy) as run:
        assert len(run.layers) == 3
        assert run.num_layers == 3
        outputs = [block.layer_output.save() for block in run.layers]
        assert len(outputs) == 3
        assert "decoder" in dir(run.vision) or "proj" in dir(run.vision)
        assert "stands at `layers.2.layer_output`" in repr(run)
        assert [p.mlp for p in run.layers[1:]]
        with pytest.raises(TypeError):
            run.layers[0] = None
        with pytest.raises(UnknownValue):
            run.nothing = 1
        assert torch.equal(run.decoder.blocks[2].output, outputs[2])


def test_edits_by_address_before_the_body_sees_them(toy):
    with opened(toy, edits={"layers.*.layer_output": lambda v: v * 0, "vision.stream": torch.ones(1, 5, 6)}):
        assert torch.equal(toy.vision.stream, torch.ones(1, 5, 6))
        assert torch.equal(toy.layers[0].layer_output, torch.zeros(2, 4, 6))
        assert torch.equal(toy.layers[2].output, torch.zeros(2, 4, 6))


def test_a_tensor_that_is_not_dense_is_refused(toy):
    new = torch.zeros(2, 4, 6).to_sparse()
    with opened(toy), pytest.raises(EditError, match="is a dense tensor; got"):
        toy.layers[0].layer_output = new
    with pytest.raises(EditError, match="is a dense tensor; got"):
        run_values(toy, lambda: toy(IDS, ROWS), read="logits", edit={"layers.0.layer_output": lambda v: new})


def test_a_broadcast_giant_is_refused_by_its_shape(toy):
    with opened(toy), pytest.raises(EditError, match="shape"):
        toy.layers[0].layer_output = torch.zeros(()).expand(100_000, 100_000)
    with opened(toy), pytest.raises(EditError, match="got a ndarray"):
        toy.layers[0].layer_output = np.broadcast_to(np.float32(0), (100_000, 100_000))


def test_the_protocol_of_missing_attributes(toy):
    """`hasattr`, `getattr` with a default and `inspect.getmembers` meet values and absent parts without a crash."""
    layer = toy.layers[1]
    assert not hasattr(layer, "extra")
    assert not hasattr(layer.attn, "scores")
    assert not hasattr(toy, "logits")
    assert getattr(layer, "layer_output", None) is None
    assert "embeddings" not in dict(inspect.getmembers(toy))
    for read, error, message in (
        (lambda: layer.extra, Unavailable, "after block 0 only"),
        (lambda: toy.logits, NoRunError, "no run is open"),
        (lambda: toy.stream, NoRunError, "no run is open"),
        (lambda: layer.nothing, UnknownValue, "nothing"),
    ):
        with pytest.raises(error, match=message) as caught:
            read()
        assert isinstance(caught.value, AttributeError)
    with opened(toy) as run:
        assert not hasattr(run.layers[1], "extra")
        assert hasattr(run, "logits")
    assert not hasattr(run, "logits")


def test_a_run_that_another_thread_has_left_answers_no_read(toy):
    def body():
        with opened(toy):
            _ = toy.layers[0].layer_output
            yield

    generator, errors = body(), []
    next(generator)

    def leave():
        try:
            generator.close()
        except TraceError as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])
    for read in (lambda: toy.layers[0].layer_output, lambda: toy.logits):
        with pytest.raises(NoRunError):
            read()
    with opened(toy):
        assert toy.logits.shape == (2, 4, 11)
