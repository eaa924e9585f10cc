"""Several forwards, one after another: each step is a run of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.errors import NoRunError, OutOfOrderError, UnknownValue
from cutaway.trace.edits import Edit
from cutaway.trace.steps import Steps
from tests.trace.toy import IDS, ROWS, Toy, input_values


class Greedy:
    """Appends the likeliest id, `steps` times."""

    def __init__(self, toy: Toy, steps: int = 4) -> None:
        self.toy, self.left, self.ids = toy, steps, IDS

    def next_forward(self):
        if not self.left:
            return None
        self.left -= 1
        ids = self.ids
        return lambda: self.toy(ids, ROWS)

    def accept(self, result: Tensor) -> Tensor:
        new = result[:, -1].argmax(-1)
        self.ids = torch.cat([self.ids, new[:, None]], 1)
        return new

    @property
    def text(self) -> str:
        return " ".join(str(int(i)) for i in self.ids[0])


@pytest.fixture
def toy() -> Toy:
    return Toy()


def plain(toy: Toy, steps: int = 4) -> Tensor:
    greedy = Greedy(toy, steps)
    with torch.no_grad():
        while (forward := greedy.next_forward()) is not None:
            greedy.accept(forward())
    return greedy.ids


def test_a_traced_generation_is_the_plain_one(toy):
    greedy, seen, steps = Greedy(toy), [], []
    with Steps(toy, greedy, input_values=lambda: input_values(greedy.ids)) as run:
        for step in run:
            assert toy.ids.shape[1] == 4 + step.index
            seen.append(toy.layers[1].layer_output.save())
            steps.append(step)
    assert torch.equal(greedy.ids, plain(toy))
    assert [s.shape[1] for s in seen] == [4, 5, 6, 7]
    assert [s.phase for s in steps] == ["prompt", "decode", "decode", "decode"]
    assert torch.equal(torch.stack([s.accepted for s in steps], 1), greedy.ids[:, 4:])
    assert run.text == greedy.text
    assert run.count == 4


def test_edits_in_the_body_change_what_follows(toy):
    greedy = Greedy(toy)
    with Steps(toy, greedy) as run:
        for step in run:
            run.layers[2].layer_output[:] = 0
            step.logits[..., 7] += 100
            run.logits = run.logits * 1
    assert (greedy.ids[:, 4:] == 7).all()


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        ("all", [0, 1, 2, 3]),
        ("prompt", [0]),
        ("decode", [1, 2, 3]),
        (range(1, 3), [1, 2]),
        (lambda step: step % 2 == 1, [1, 3]),
    ],
)
@pytest.mark.parametrize("traced", [True, False])
def test_edits_by_address_at_the_steps_they_are_for(toy, when, steps, traced):
    greedy, made = Greedy(toy), []

    def push(v: Tensor) -> None:
        made.append(greedy.ids.shape[1] - 4)
        v[..., 7] = 100

    with Steps(toy, greedy, edits={"logits": push}, when=when) as run:
        for _ in run:
            if not traced:
                break
    assert made == steps
    assert [bool((greedy.ids[:, 4 + s] == 7).all()) for s in steps] == [True] * len(steps)


def test_an_edit_with_its_own_steps(toy):
    greedy = Greedy(toy)
    edits = {"logits": Edit(lambda v: v.index_fill(-1, torch.tensor([7]), 100.0), when="prompt")}
    with Steps(toy, greedy, edits=edits, when="decode"):
        pass
    assert (greedy.ids[:, 4] == 7).all()
    assert greedy.ids.shape == (2, 8)


def test_a_misplaced_read_never_slips_to_the_next_step(toy):
    greedy, late = Greedy(toy), 0
    with Steps(toy, greedy) as run:
        for step in run:
            last = toy.layers[2].layer_output.save()
            with pytest.raises(OutOfOrderError):
                toy.layers[0].layer_output.save()
            late += 1
            assert last.shape[1] == 4 + step.index
    assert late == 4
    assert torch.equal(greedy.ids, plain(toy))


def test_break_lets_the_rest_run_and_a_second_loop_goes_on(toy):
    greedy = Greedy(toy)
    with Steps(toy, greedy) as run:
        for _ in run:
            break
        assert toy.layers[0].layer_output.shape[1] == 4  # the step is still open
        for _ in run:
            assert toy.layers[0].layer_output.shape[1] == 5
            break
    assert torch.equal(greedy.ids, plain(toy))
    with pytest.raises(NoRunError):
        toy.logits.save()


def test_an_error_in_the_body_ends_it(toy):
    greedy = Greedy(toy)

    def body() -> None:
        with Steps(toy, greedy) as run:
            for _ in run:
                raise KeyError

    with pytest.raises(KeyError):
        body()
    assert torch.equal(greedy.ids, IDS)


def test_outside_of_the_steps(toy):
    run = Steps(toy, Greedy(toy))
    with pytest.raises(NoRunError, match="open it first"):
        next(iter(run))
    with run:
        with pytest.raises(NoRunError, match="no step is open"):
            run.layers  # noqa: B018
        with pytest.raises(NoRunError, match="no step is open"):
            run.logits = torch.zeros(1)
        with pytest.raises(AttributeError):
            run.nothing  # noqa: B018
    with pytest.raises(NoRunError, match="once"), run:
        pass
    with pytest.raises(UnknownValue):
        Steps(toy, Greedy(toy), edits={"logit": lambda v: v})


def test_the_forwards_have_the_torch_state_of_the_opening(toy):
    modes = []
    toy.embed.register_forward_hook(lambda *a: modes.append((torch.is_grad_enabled(), torch.get_default_dtype())))
    greedy = Greedy(toy, 3)
    with Steps(toy, greedy, grad=True) as run, torch.no_grad():
        for step in run:
            torch.set_default_dtype(torch.float64)
            assert toy.layers[0].layer_output.requires_grad
            torch.set_default_dtype(torch.float32)
            if step.index:
                break
    assert modes == [(True, torch.float32)] * 3
