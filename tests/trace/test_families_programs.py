"""Random programs on every family's own modules against plain hooks: equal values, equal logits, errors in order."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cutaway.api import Model, load
from cutaway.batch import Inputs
from cutaway.checkpoint.families import FAMILIES
from cutaway.named import Named
from cutaway.observe import Observer, observer
from tests.trace.test_programs import ACTIONS, act, followed

RETURNED = ("output", "layer_output", "attention_output", "mlp_output")
"""Names under which a module passes what it returns."""


class Point(NamedTuple):
    """A place of the forward that a plain hook sees too: a module's first argument, or what it returns."""

    module: Named
    name: str


class Noted(Observer):
    """Notes the places of a forward, in its order, at which a hook would see the same tensor."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def on_value(self, module: Named, name: str, value: Any) -> Any:
        if name in RETURNED:
            self.points.append(Point(module, name))
        return value

    def on_call(self, module: Named, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            self.points.append(Point(module, "input"))
        return args, kwargs

    def on_return(self, module: Named, output: Any) -> Any:
        if isinstance(output, Tensor) and output.is_floating_point():
            self.points.append(Point(module, "output"))
        return output


class Case(NamedTuple):
    model: Model
    inputs: Inputs
    points: list[Point]


@cache
def case(folder: str) -> Case:
    """The reference checkpoint of a family over one image, and its places in order."""
    model = load(folder, dtype="float32", device="cpu")
    pixels = torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(0)).mul(255).byte().permute(1, 2, 0).numpy()
    inputs = model.prepare(model.prompt("What?", images=1), images=[pixels])
    noted = Noted()
    token = observer.set(noted)
    with torch.no_grad():
        model.root(inputs)
    observer.reset(token)
    return Case(model, inputs, noted.points)


def by_hooks(case: Case, program: list[tuple[int, str, float]]) -> tuple[Tensor, list[Tensor]]:
    """Logits, and what the reads kept, by plain hooks."""
    kept: dict[int, Tensor] = {}
    steps = sorted(enumerate(program), key=lambda item: item[1][0])

    def run(tensor: Tensor, module: nn.Module, before: bool) -> Tensor:
        for number, (index, action, amount) in steps:
            point = case.points[index]
            if point.module is module and (point.name == "input") == before:
                if action == "read":
                    kept[number] = tensor
                else:
                    tensor = act(tensor, action, amount)
        return tensor

    handles = []
    for module in {case.points[index].module for index, _, _ in program}:
        handles += [
            module.register_forward_pre_hook(lambda m, a: (run(a[0], m, True), *a[1:])),
            module.register_forward_hook(lambda m, a, out: run(out, m, False) if isinstance(out, Tensor) else out),
        ]
    with torch.no_grad():
        logits = case.model.root(case.inputs)
    for handle in handles:
        handle.remove()
    return logits, [kept[number] for number in sorted(kept)]


def by_trace(case: Case, program: list[tuple[int, str, float]]) -> tuple[Tensor, list[Tensor], list[int]]:
    """The same by a trace, and the steps that came too late."""
    with case.model.trace(case.inputs) as run:
        kept, late = followed((*case.points[index], *step) for index, *step in program)
        return run.finish(), kept, late


steps = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(ACTIONS), st.sampled_from((-1.0, 0.0, 0.5, 2.0)))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=35, deadline=None)
@given(drawn=st.lists(steps, max_size=8), ordered=st.booleans())
def test_programs_on_real_modules_do_what_hooks_do(oracle, family, drawn, ordered):
    tried = case(str(oracle / "ckpt" / family))
    program = [(int(part * len(tried.points)), action, amount) for part, action, amount in drawn]
    if ordered:
        program = sorted(program, key=lambda step: step[0])
    logits, kept, late = by_trace(tried, program)
    reach, wanted_late = -1, []
    for number, (index, _, _) in enumerate(program):
        if index < reach:
            wanted_late.append(number)
        reach = max(reach, index)
    assert late == wanted_late
    wanted_logits, wanted = by_hooks(tried, [step for number, step in enumerate(program) if number not in late])
    assert torch.equal(logits.nan_to_num(), wanted_logits.nan_to_num())
    assert len(kept) == len(wanted)
    for one, other in zip(kept, wanted, strict=True):
        assert torch.equal(one.view_as(other).nan_to_num(), other.nan_to_num())
