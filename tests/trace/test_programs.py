"""Random programs of reads and edits against plain hooks: equal values, logits and gradients, and errors in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cutaway.errors import OutOfOrderError
from cutaway.trace.run import run_values
from tests.trace.toy import IDS, ROWS, Toy, opened

DEPTH = 2


@dataclass(frozen=True)
class Point:
    """A place of the toy's forward, and the hook of plain torch that sees the same tensor."""

    address: str
    module: str
    before: bool
    add_batch_axis: bool = False


def points() -> Iterator[Point]:
    """In the forward's order."""
    yield Point("tower.input", "tower", True)
    yield Point("stream", "tower.proj", True, add_batch_axis=True)
    yield Point("tower.proj.input", "tower.proj", True)
    yield Point("tower.proj.output", "tower.proj", False)
    yield Point("embeddings", "decoder", True)
    yield Point("decoder.input", "decoder", True)
    for i in range(DEPTH):
        block = f"decoder.blocks.{i}"
        yield Point(f"layers.{i}.input", block, True)
        yield Point(f"layers.{i}.attn.input", f"{block}.attn", True)
        yield Point(f"layers.{i}.attn.q.input", f"{block}.attn.q", True)
        yield Point(f"layers.{i}.attn.q.output", f"{block}.attn.q", False)
        yield Point(f"layers.{i}.self_attn.queries", f"{block}.attn.q", False)
        yield Point(f"layers.{i}.attn.v.output", f"{block}.attn.v", False)
        yield Point(f"layers.{i}.attn.attention_output", f"{block}.attn", False)
        yield Point(f"layers.{i}.attn.output", f"{block}.attn", False)
        yield Point(f"layers.{i}.mlp.input", f"{block}.mlp", True)
        yield Point(f"layers.{i}.mlp.output", f"{block}.mlp", False)
        yield Point(f"layers.{i}.layer_output", block, False)
        yield Point(f"layers.{i}.output", block, False)
    yield Point("decoder.output", "decoder", False)
    yield Point("head.input", "head", True)
    yield Point("head.output", "head", False)
    yield Point("logits", "head", False)


POINTS = list(points())
ACTIONS = ("read", "scale", "fill", "iadd", "first", "shift", "constant")
Step = tuple[int, str, float]


def act(value: Tensor, action: str, number: float) -> Tensor:
    """The value after an action: the same tensor if it was changed in place, another if it is to be replaced."""
    if action == "scale":
        value.mul_(number)
    elif action == "fill":
        value[:] = number
    elif action == "iadd":
        value += number
    elif action == "first":
        value[..., 0] = number
    elif action == "shift":
        return value * 0.5 + number
    elif action == "constant":
        return torch.full_like(value, number)
    return value


def by_hooks(toy: Toy, program: list[Step], grad: bool) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the tensors that the reads kept, by plain hooks."""
    kept: dict[int, Tensor] = {}
    steps = sorted(enumerate(program), key=lambda item: item[1][0])  # stable: the program's order within a place

    def run(tensor: Tensor, module: str, before: bool) -> Tensor:
        for number, (index, action, amount) in steps:
            point = POINTS[index]
            if (point.module, point.before) != (module, before):
                continue
            served = tensor[None] if point.add_batch_axis else tensor
            new = act(served, action, amount)
            if action == "read":
                kept[number] = served
            elif new is not served:
                tensor = new[0] if point.add_batch_axis else new
        return tensor

    handles = []
    for name, module in toy.named_modules():
        if any(point.module == name for point in POINTS):
            handles += [
                module.register_forward_pre_hook(lambda m, a, name=name: (run(a[0], name, True), *a[1:])),
                module.register_forward_hook(
                    lambda m, a, out, name=name: run(out, name, False) if isinstance(out, Tensor) else out
                ),
            ]
    with torch.set_grad_enabled(grad):
        logits = toy(IDS, ROWS.clone())
    for handle in handles:
        handle.remove()
    return logits, [kept[number] for number in sorted(kept)]


def host(run: Any, address: str) -> tuple[Any, str]:
    *way, name = address.split(".")
    for part in way:
        run = run[int(part)] if part.isdigit() else getattr(run, part)
    return run, name


def followed(steps: Iterable[tuple[Any, str, str, float]]) -> tuple[list[Tensor], list[int]]:
    """Does steps (part, name, action, number) in an open trace: what was read, and the steps that came too late."""
    kept, late = [], []
    for number, (part, name, action, amount) in enumerate(steps):
        try:
            value = getattr(part, name)
            new = act(value, action, amount)
            if action == "read":
                kept.append(value.save())
            elif new is not value:
                setattr(part, name, new)
        except OutOfOrderError:
            late.append(number)
    return kept, late


def by_trace(toy: Toy, program: list[Step], grad: bool, own: bool) -> tuple[Tensor, list[Tensor], list[int]]:
    """The same by a trace, read on the model or on the run; and the steps that came too late."""
    with opened(toy, rows=ROWS.clone(), grad=grad) as run:
        kept, late = followed((*host(run if own else toy, POINTS[i].address), *step) for i, *step in program)
        return run.finish(), kept, late


programs = st.lists(
    st.tuples(st.integers(0, len(POINTS) - 1), st.sampled_from(ACTIONS), st.sampled_from((-1.0, 0.0, 0.5, 2.0))),
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(programs, st.booleans(), st.booleans(), st.booleans())
def test_programs_do_what_hooks_do(program, ordered, grad, own):
    if ordered:
        program = sorted(program, key=lambda step: step[0])
    toy = Toy(depth=DEPTH)
    logits, kept, late = by_trace(toy, program, grad, own)
    reach, wanted_late = -1, []
    for number, (index, _, _) in enumerate(program):
        if index < reach:
            wanted_late.append(number)
        reach = max(reach, index)
    assert late == wanted_late
    in_time = [step for number, step in enumerate(program) if number not in late]
    wanted_logits, wanted = by_hooks(toy, in_time, grad)
    assert torch.equal(logits, wanted_logits)
    assert len(kept) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(kept, wanted, strict=True))
    if not grad or not logits.requires_grad:
        return
    got = gradients(toy, logits)
    try:
        want = gradients(toy, wanted_logits)
    except RuntimeError:  # plain hooks may not change the result of a fused attention in place; a trace may
        return
    scale = max(float(b.abs().max()) for b in want)  # the keys' bias has none but rounding's
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4 + 1e-6 * scale) for a, b in zip(got, want, strict=True))


def gradients(toy: nn.Module, logits: Tensor) -> tuple[Tensor, ...]:
    """Of the weights."""
    weights = list(toy.parameters())
    return torch.autograd.grad(logits.square().sum(), weights, allow_unused=True, materialize_grads=True)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, len(POINTS) - 1), unique=True, max_size=6),
    st.lists(st.integers(0, len(POINTS) - 1), unique=True, min_size=1, max_size=6),
    st.sampled_from((-1.0, 0.5, 2.0)),
)
def test_edits_by_address_do_what_hooks_do(edited, read, number):
    toy = Toy(depth=DEPTH)
    program = [(index, "shift", number) for index in sorted(edited)] + [(index, "read", 0.0) for index in read]
    logits, kept = by_hooks(toy, program, grad=False)
    got = run_values(
        toy,
        lambda: toy(IDS, ROWS.clone()),
        read=[POINTS[index].address for index in read],
        edit={POINTS[index].address: lambda v: v * 0.5 + number for index in edited},
        to_end=True,
    )
    assert torch.equal(got.result, logits)
    assert all(torch.equal(got[POINTS[i].address], k) for i, k in zip(read, kept, strict=True))
