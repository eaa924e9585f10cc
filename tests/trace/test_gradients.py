"""Gradients through what was returned: on the handle, on what it saves, after edits of either."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from cutaway.trace.handles import TracedTensor
from cutaway.trace.run import Run
from tests.trace.toy import IDS, ROWS, Toy, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


def reference(toy: Toy, block: int, change=lambda v: v) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, and the gradient of their sum with respect to a block's output before and after a change."""
    kept = []

    def hook(module, args, output):
        output.retain_grad()
        new = change(output)
        kept.extend([output, new])
        if new is not output:
            new.retain_grad()
        return new

    handle = toy.decoder.blocks[block].register_forward_hook(hook)
    logits = toy(IDS, ROWS)
    logits.square().sum().backward()
    handle.remove()
    return logits, kept[0].grad, kept[1].grad


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("handle", ["handle", "saved", "both"])
@pytest.mark.parametrize("how", ["autograd.grad", "retain_grad"])
def test_gradient_of_a_value(toy, frozen, handle, how):
    _, want, _ = reference(toy, 1)
    if frozen:
        toy.requires_grad_(False)
    with opened(toy, grad=True):
        value = toy.layers[1].layer_output
        if frozen:
            (value if handle != "saved" else value.save()).requires_grad_()
        plain = value.save()
        if frozen and handle == "saved":
            assert not value.requires_grad
        targets = {"handle": [value], "saved": [plain], "both": [value, plain]}[handle]
        if how == "retain_grad":
            for target in targets:
                target.retain_grad()
        loss = toy.logits.square().sum()
    if how == "retain_grad":
        loss.backward()
        gradients = [target.grad for target in targets]
    else:
        gradients = torch.autograd.grad(loss, targets)
    for gradient in gradients:
        torch.testing.assert_close(gradient, want)


@pytest.mark.parametrize("inside", [True, False])
def test_backward_inside_and_after_the_body(toy, inside):
    reference(toy, 0)
    want = toy.embed.weight.grad.clone()
    toy.zero_grad()
    with opened(toy, grad=True):
        logits = toy.logits
        if inside:
            logits.square().sum().backward()
    if not inside:
        logits.save().square().sum().backward()
    torch.testing.assert_close(toy.embed.weight.grad, want)


@pytest.mark.parametrize("target", ["handle", "saved"])
@pytest.mark.parametrize("read", ["handle", "saved"])
@pytest.mark.parametrize("grad", [True, False])
def test_in_place_edits_land_and_gradients_follow(toy, target, read, grad):
    direction = torch.linspace(-1, 1, 6)
    logits, _, after = reference(toy, 1, lambda v: v * 2 + direction)
    with opened(toy, grad=grad):
        value = toy.layers[1].layer_output
        plain = value.save()
        edited = value if target == "handle" else plain
        edited.mul_(2)
        edited[:] += direction
        watched = value if read == "handle" else plain
        if grad:
            watched.retain_grad()
        got = toy.logits.save()
    torch.testing.assert_close(got, logits.detach() if not grad else logits)
    assert torch.equal(value.save(), value)
    if grad:
        got.square().sum().backward()
        torch.testing.assert_close(watched.grad, after)


def test_gradient_of_an_assigned_value(toy):
    new = torch.zeros(2, 4, 6, requires_grad=True)
    with opened(toy, grad=True):
        toy.layers[1].layer_output = new
        again = toy.layers[1].layer_output
        again.retain_grad()
        toy.logits.square().sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(again.grad, new.grad)


def test_a_computed_assignment_keeps_its_path(toy):
    _, before, after = reference(toy, 1, lambda v: v * 3)
    with opened(toy, grad=True):
        value = toy.layers[1].layer_output
        tripled = value * 3
        toy.layers[1].layer_output = tripled
        with torch.no_grad():
            loss = toy.logits
        gradients = torch.autograd.grad(loss.square().sum(), [value, tripled])
    torch.testing.assert_close(gradients[0], before)
    torch.testing.assert_close(gradients[1], after)


def test_a_value_moved_to_another_place(toy):
    with opened(toy, grad=True):
        early = toy.layers[0].layer_output
        toy.layers[2].layer_output = early
        loss = toy.logits.sum()
    assert torch.autograd.grad(loss, [early, early.save()])[0].abs().sum() > 0


def test_gradient_through_views_lists_and_tuples(toy):
    with opened(toy, grad=True):
        stream = toy.vision.stream
        first, second = toy.tower.output
        patterns = toy.layers[0].attn.patterns
        scale = toy.layers[1].attn.inputs[0][0]
        loss = toy.logits.square().sum()
    assert not stream.requires_grad  # nothing before it has weights
    leaves = [first, second, *patterns, *patterns.save(), scale]
    for gradient in torch.autograd.grad(loss, leaves):
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("grad", [True, False])
def test_in_place_where_autograd_refuses_the_very_tensor(toy, grad):
    """A softmax's result is needed by its backward, a piece of a split may not be changed: a copy goes on instead."""
    with opened(toy, grad=grad):
        toy.vision.pair[:] = 0
        toy.layers[0].attn.probabilities[..., 0] = 0
        for pattern in toy.layers[1].attn.patterns:
            pattern[:, 1] = 0
        got = toy.logits.save()
    with opened(toy):
        toy.vision.pair = torch.zeros(5, 6)
        value = toy.layers[0].attn.probabilities
        toy.layers[0].attn.probabilities = torch.cat([value[..., :1] * 0, value[..., 1:]], -1)
        toy.layers[1].attn.patterns = [p.index_fill(1, torch.tensor(1), 0.0) for p in toy.layers[1].attn.patterns]
        want = toy.logits.save()
    torch.testing.assert_close(got.detach(), want)
    if grad:
        got.sum().backward()
        assert toy.embed.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("grad", [True, False])
def test_the_bodys_grad_mode_does_not_reach_the_forward(toy, mode, grad):
    with opened(toy, grad=grad), mode():
        value = toy.layers[0].layer_output
        assert value.requires_grad == grad
        assert not value.is_inference()
        logits = toy.logits.save()
    assert logits.requires_grad == grad
    if grad:
        assert torch.autograd.grad(logits.sum(), value)[0].shape == value.shape


def test_edit_with_a_source_that_records_in_a_run_that_does_not(toy):
    direction = torch.ones(6, requires_grad=True)
    with opened(toy):
        toy.layers[0].layer_output[:] += direction
        assert not toy.logits.requires_grad


def test_a_run_opened_in_inference_mode(toy):
    with torch.inference_mode():
        with opened(toy):
            value = toy.layers[0].layer_output
            value[:] = 0
            logits = toy.logits.save()
        assert value.is_inference()
        assert logits.is_inference()


@pytest.mark.parametrize("grad", [True, False])
def test_handles_are_copied_and_pickled_as_plain_tensors(toy, grad):
    with opened(toy, grad=grad):
        value = toy.layers[0].layer_output
    assert type(value) is TracedTensor
    assert type(pickle.loads(pickle.dumps(value.detach()))) is Tensor
    assert type(copy.deepcopy(value.detach())) is Tensor
    assert torch.equal(pickle.loads(pickle.dumps(value.save().detach())), value)
    assert type(value.detach().save()) is Tensor
    assert value.numpy(force=True).shape == (2, 4, 6)
    assert value.save().data_ptr() == value.data_ptr()


def test_tensors_of_a_foreign_class_are_returned_as_they_are(toy):
    class Marked(Tensor):
        pass

    def forward() -> Tensor:
        return toy.head(torch.ones(2, 6).as_subclass(Marked))

    with Run(toy, forward):
        value = toy.head.input
        assert type(value) is Marked
        assert value.save() is value
