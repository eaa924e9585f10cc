"""Values of one run by address, in any order, with edits and reducers."""

from __future__ import annotations

import pytest
import torch

from cutaway.errors import EditError, InputError, NotReachedError, Unavailable, UnknownValue
from cutaway.trace.edits import Edit
from cutaway.trace.reads import RunValues
from cutaway.trace.run import run_values
from tests.trace.toy import IDS, ROWS, Toy, input_values, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


def values(toy: Toy, read=(), *, rows=ROWS, **options) -> RunValues:
    return run_values(toy, lambda: toy(IDS, rows), read=read, input_values=input_values(), **options)


def test_any_order_and_the_same_values_as_a_trace(toy):
    with opened(toy):
        stream, outputs = toy.stream.save(), [toy.layers[0].layer_output.save()]
        pattern = toy.layers[1].attn.probabilities.save()
        outputs += [block.layer_output.save() for block in toy.layers[1:]]
        logits = toy.logits.save()
    got = values(toy, ["logits", "layers.*.layer_output", "layers.1.self_attn.probabilities", "vision.stream", "ids"])
    assert list(got) == [
        "ids",
        "stream",
        "layers.0.layer_output",
        "layers.1.self_attn.probabilities",
        "layers.1.layer_output",
        "layers.2.layer_output",
        "logits",
    ]
    assert torch.equal(got["logits"], logits)
    assert torch.allclose(got["layers.1.self_attn.probabilities"], pattern)
    assert torch.equal(got["vision.stream"], stream)
    assert torch.equal(got["decoder.blocks.0.layer_output"], outputs[0])
    assert got["ids"] is IDS
    assert got.axes("tower.stream") == ("1", "rows", "width")
    assert type(got["logits"]) is torch.Tensor
    assert "logits: [2, 4, 11] torch.float32" in repr(got)
    assert len(got) == 7
    with pytest.raises(KeyError, match="was not read"):
        got["embeddings"]


def test_it_stops_after_the_last_value(toy):
    ran = []
    toy.layers[1].register_forward_pre_hook(lambda *a: ran.append(1))
    assert values(toy, "layers.0.layer_output").result is None
    assert values(toy, ["ids", "size"]).result is None
    assert not ran
    with torch.no_grad():
        want = toy(IDS, ROWS)
    assert torch.equal(values(toy, "layers.0.layer_output", to_end=True).result, want)
    assert torch.equal(values(toy).result, want)


def test_edits_before_reads_and_at_their_own_place(toy):
    got = values(
        toy,
        ["layers.0.layer_output", "layers.1.attn.input", "layers.1.attn.q.input", "layers.1.attn.k.input"],
        edit={"layers.0.layer_output": lambda v: v.zero_(), "layers.1.attn.q.input": lambda v: v.fill_(1.0)},
    )
    assert torch.equal(got["layers.0.layer_output"], torch.zeros(2, 4, 6))
    assert torch.equal(got["layers.1.attn.q.input"], torch.ones(2, 4, 6))
    assert torch.equal(got["layers.1.attn.k.input"], got["layers.1.attn.input"])
    assert not torch.equal(got["layers.1.attn.k.input"], torch.ones(2, 4, 6))


def test_edits_of_every_sort_of_value(toy):
    got = values(
        toy,
        ["tower.proj.input", "tower.output", "layers.*.attn.patterns", "layers.2.attn.inputs"],
        edit={
            "stream": torch.ones(1, 5, 6),
            "tower.output": lambda pair: (pair[0], pair[1] * 0),
            "layers.0:2.attn.patterns": lambda patterns: (patterns[0].zero_(), None)[1],
            "layers.2.attn.inputs": lambda inputs: (inputs[0], {"scale": 0.0}),
            "layers.1.attn.k.input": torch.ones(2, 4, 6),
        },
    )
    assert torch.equal(got["tower.proj.input"], torch.ones(5, 6))
    assert torch.equal(got["tower.output"][1], torch.zeros(5, 6))
    zero = [bool((got[f"layers.{i}.attn.patterns"][0] == 0).all()) for i in range(3)]
    assert zero == [True, True, False]
    assert got["layers.2.attn.inputs"][1] == {"scale": 0.0}


def test_reducers_keep_only_what_they_return(toy):
    got = values(toy, ["layers.*.layer_output", "size"], reduce=lambda v: float(v.sum()))
    assert all(isinstance(v, float) for v in got.values())
    got = values(toy, ["layers.*.layer_output"], reduce={"layers.-1.layer_output": torch.Size.numel and len})
    assert [type(v) for v in got.values()] == [torch.Tensor, torch.Tensor, int]


def test_gradients_when_asked(toy):
    got = values(toy, ["layers.0.layer_output", "logits"], grad=True)
    (gradient,) = torch.autograd.grad(got["logits"].sum(), got["layers.0.layer_output"])
    assert gradient.abs().sum() > 0
    assert not values(toy, "logits")["logits"].requires_grad


def test_what_cannot_be_had(toy):
    with pytest.raises(UnknownValue, match="Nearest: `layer_output`"):
        values(toy, "layers.*.layer_ouput")
    with pytest.raises(Unavailable, match="fuses them"):
        values(toy, "layers.*.attn.scores")
    with pytest.raises(NotReachedError, match=r"`layers.0.extra`. The input has no image"):
        values(toy, "layers.0.extra", rows=None)
    assert list(values(toy, ["layers.*.extra", "layers.0.*"])) == ["layers.0.layer_output", "layers.0.extra"]
    assert list(values(toy, "*.stream")) == ["stream"]
    with pytest.raises(EditError, match="read-only"):
        values(toy, "logits", edit={"ids": lambda v: v})
    with pytest.raises(EditError, match="shape"):
        values(toy, "logits", edit={"layers.0.layer_output": lambda v: v[0]})
    with pytest.raises(EditError, match="a function of the value, or a tensor"):
        values(toy, "logits", edit={"layers.0.layer_output": 3})
    with pytest.raises(EditError, match="`when`"):
        Edit(lambda v: v, when="later")
    with pytest.raises(InputError, match="`reduce`"):
        values(toy, "logits", reduce=3)


def test_an_error_in_the_forward_is_the_callers(toy):
    toy.layers[1].register_forward_pre_hook(lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        values(toy, "logits")
    assert values(toy, "layers.0.layer_output")
