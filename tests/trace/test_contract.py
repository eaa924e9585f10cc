"""The contract of values holds on the toy; and the check itself can fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.named import Named, Value
from tests.trace.contract import check
from tests.trace.toy import IDS, ROWS, Linear, Toy, input_values


def test_every_value_of_the_toy():
    toy = Toy()
    findings = check(toy, lambda: toy(IDS, ROWS), input_values=input_values())
    assert not findings.unreached
    assert len(findings.served) == 24
    assert {axis: findings.sizes[axis] for axis in ("batch", "seq", "width", "vocab")} == {
        "batch": 2,
        "seq": 4,
        "width": 6,
        "vocab": 11,
    }
    assert findings.sizes["Attention query"] == 4


def test_what_an_input_does_not_reach():
    toy = Toy()
    findings = check(toy, lambda: toy(IDS), input_values=input_values())
    assert findings.unreached == ["stream", "vision.pair", "layers.0.extra"]


class Loose(Named):
    idle = Value("batch width", "computed and not used")
    flat = Value("batch seq width", "one axis too many")
    logits = Value("batch width", "the end")

    def __init__(self, sort: str) -> None:
        super().__init__()
        self.sort, self.linear = sort, Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.sort in ("idle", "flat"):
            self.value(self.sort, self.linear(x))
        return self.value("logits", self.linear(x))


@pytest.mark.parametrize(
    ("sort", "message"), [("idle", "zeroing idle does not move"), ("flat", "is declared batch seq width")]
)
def test_the_check_fails_where_the_contract_is_broken(sort, message):
    loose = Loose(sort)
    with pytest.raises(AssertionError, match=message):
        check(loose, lambda: loose(torch.ones(2, 3)))
