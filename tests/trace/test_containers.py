"""Arguments and outputs of every structure: returned, edited in place, assigned, and put back as they were."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cutaway.errors import EditError
from cutaway.named import Named
from cutaway.trace.run import Run, run_values


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Inner(Named):
    def forward(self, *, x: Tensor, parts: list[Tensor], named: dict[str, Tensor], pair: Pair) -> Pair:
        return Pair(x + sum(parts) + named["a"], pair.second)


class Silent(Named):
    def forward(self) -> int:
        return 3


class Outer(Named):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.silent = Inner(), Silent()

    def forward(self) -> Tensor:
        one = torch.ones(2)
        self.parts = [one * 1, one * 2]
        out = self.inner(x=one * 4, parts=self.parts, named={"a": one * 8}, pair=Pair(one, one * 16))
        return out.first + out.second * self.silent()


@pytest.fixture
def outer() -> Outer:
    return Outer()


def test_every_structure_is_wrapped_and_edited(outer):
    with Run(outer, outer) as run:
        assert outer.inner.input.tolist() == [4, 4]
        args, kwargs = outer.inner.inputs
        assert args == ()
        kwargs["parts"][0] = torch.zeros(2)
        kwargs["parts"][1:] = [kwargs["parts"][1] * 2]
        kwargs["named"].update(a=torch.zeros(2))
        kwargs["pair"].second[:] = 1
        saved = outer.inner.inputs.save()[1]
        first, second = outer.inner.output.save()
        assert type(outer.inner.output.save()) is Pair
        assert run.finish().tolist() == [11, 11]
    assert [type(v) for v in saved["parts"]] == [Tensor, Tensor]
    assert type(saved["parts"]) is list
    assert type(saved["named"]) is dict
    assert type(saved["pair"]) is Pair
    assert (first.tolist(), second.tolist()) == ([8, 8], [1, 1])


def test_the_forwards_own_list_is_changed(outer):
    with Run(outer, outer) as run:
        run.inner.inputs[1]["parts"][0] = torch.full((2,), 5.0)
        run.finish()
    assert outer.parts[0].tolist() == [5, 5]


def test_a_first_argument_by_name_is_assigned(outer):
    with Run(outer, outer) as run:
        run.inner.input = torch.zeros(2)
        assert run.inner.input.tolist() == [0, 0]
        assert run.inner.output.first.tolist() == [11, 11]
        run.inner.output = Pair(torch.zeros(2), torch.ones(2))
        assert run.finish().tolist() == [3, 3]
    got = run_values(outer, outer, edit={"inner.input": lambda v: v * 0, "inner.output": lambda p: (p[0], p[1] * 0)})
    assert got.result.tolist() == [11, 11]


def test_what_has_no_tensor_passes_through(outer):
    with Run(outer, outer) as run:
        with pytest.raises(EditError, match="without arguments"):
            run.silent.input  # noqa: B018
        assert run.silent.inputs.save() == ((), {})
        assert run.silent.output == 3
        run.silent.output = 5
        assert run.finish().tolist() == [15 + 80] * 2


def test_structures_keep_their_shape(outer):
    with Run(outer, outer) as run:
        kwargs = run.inner.inputs[1]
        for change in (
            lambda: kwargs["parts"].pop(),
            lambda: kwargs["parts"].__setitem__(slice(0, 2), [torch.zeros(2)]),
            lambda: kwargs["named"].pop("a"),
            lambda: kwargs["named"].__setitem__("b", torch.zeros(2)),
            lambda: kwargs["named"].__setitem__("a", torch.zeros(3)),
            lambda: setattr(run.inner, "inputs", ((), {**kwargs, "x": torch.zeros(3)})),
            lambda: setattr(run.inner, "inputs", 3),
        ):
            with pytest.raises(EditError):
                change()
        assert run.finish().tolist() == [15 + 48] * 2
