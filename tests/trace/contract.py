"""The contract of a named value, checked for every value of a tree: it is there, its axes are as declared, it matters.

`check` works on any tree and any forward, on the toy here and on the real families elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cutaway.errors import EditError, NotReachedError
from cutaway.named import ValueAt
from cutaway.trace.addresses import ValueRef, all_values
from cutaway.trace.run import Run, run_values

SHARED = {"batch", "seq", "hidden", "vocab", "patches", "vision_hidden", "width"}
"""Axes that mean the same in every module; others mean the same in every module of a class."""


@dataclass
class Findings:
    """Addresses that were served and that were not, and the size of every axis, by name and class of module."""

    served: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


def check(
    root: nn.Module,
    forward: Callable[[], Any],
    *,
    input_values: Mapping[str, Any] | None = None,
    target: str = "logits",
    free: Iterable[str] = (),
    inert: Iterable[str] = (),
    later: Iterable[str] = (),
) -> Findings:
    """Checks every available value of `root` over one forward.

    `free` are axes whose size differs from value to value (segments of a packed row); `inert` are values, by name, that
    are zero on this input, so that zeroing them moves nothing; `later` are those that only a later step reads.
    """
    context: dict[str, Any] = {"input_values": input_values}
    before = run_values(root, forward, read=target, **context)[target]
    findings = Findings()
    for ref in map(at_a_token, all_values(root)):
        if ref.why_unavailable is not None:
            continue
        try:
            value = run_values(root, forward, read=ref.address, **context)[ref.address]
        except NotReachedError:
            findings.unreached.append(ref.address)
            continue
        findings.served.append(ref.address)
        check_axes(ref, value, findings.sizes, set(free))
        check_trace(root, forward, ref, value, context)
        check_assignment(root, forward, ref, before, target, context)
        if not ref.value.writable or ref.address == target or any(not is_real(t) for t in tensors(value)):
            continue
        if ref.value.name in later:
            continue
        if ref.value.name not in inert:
            check_zeroing(root, forward, ref, before, target, context)
        check_gradient(root, forward, ref, target, context)
    return findings


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a value: itself, or the items of a list."""
    return [value] if isinstance(value, Tensor) else [t for t in value if isinstance(t, Tensor)]


def at_a_token(ref: ValueRef) -> ValueRef:
    """A place that stands for a value of each token: that of the third one."""
    if not isinstance(ref.value, ValueAt):
        return ref
    return ValueRef(ref.module, ref.value.at(2), ref.address.replace("(t)", "(2)"))


def is_real(tensor: Tensor) -> bool:
    """Whether the tensor can have a gradient."""
    return tensor.is_floating_point()


def check_axes(ref: ValueRef, value: Any, sizes: dict[str, int], free: set[str]) -> None:
    """Every axis that is declared is there, and the same name means the same size."""
    if not isinstance(value, list | Tensor):
        return
    assert isinstance(value, list) == ref.value.is_list, ref.address
    for tensor in tensors(value):
        axes = ref.value.axes
        assert tensor.dim() == len(axes), f"{ref.address} {list(tensor.shape)} is declared {' '.join(axes)}"
        for axis, size in zip(axes, tensor.shape, strict=True):
            kind = axis if axis in SHARED else f"{type(ref.module).__name__} {axis}"
            wanted = int(axis) if axis.isdigit() else sizes.setdefault(kind, size)
            assert size == wanted or axis in free, f"{ref.address}: axis {axis} is {size}, elsewhere {wanted}"


def check_trace(root: nn.Module, forward: Callable[[], Any], ref: ValueRef, value: Any, context: Any) -> None:
    """A trace reads what a run by address reads, and its handle is the forward's own storage."""
    with Run(root, forward, **context) as run:
        handle = run.read(ref.module, ref.value)
        saved = handle.save() if hasattr(handle, "save") else handle
    for got, want in zip(tensors(saved), tensors(value), strict=True):
        assert type(got) is Tensor, ref.address
        torch.testing.assert_close(got, want, msg=lambda text: f"{ref.address}: {text}")


def check_assignment(
    root: nn.Module, forward: Callable[[], Any], ref: ValueRef, before: Tensor, target: str, context: Any
) -> None:
    """Assigning what was read, or a copy of it, changes nothing bit for bit; what does not fit is refused at once."""
    if ref.value.computed:  # reading it takes another path through the kernel
        before = run_values(root, forward, read=[ref.address, target], **context)[target]
    with Run(root, forward, **context) as run:
        value = run.read(ref.module, ref.value)
        if not ref.value.writable:
            with pytest.raises(EditError, match="read-only"):
                run.write(ref.module, ref.value, value)
            return
        run.write(ref.module, ref.value, value)
        for wrong in (lambda t: t[..., None], lambda t: t.to(torch.complex64), lambda t: 0):
            bad = [wrong(t) for t in tensors(value)] if ref.value.is_list else wrong(value)
            with pytest.raises(EditError, match=re.escape(ref.address)):
                run.write(ref.module, ref.value, bad)
        copies = [t.clone() for t in tensors(value)]
        run.write(ref.module, ref.value, copies if ref.value.is_list else copies[0])
        if ref.address != target:
            assert torch.equal(getattr(run, target), before), f"{ref.address} assigned as it was moves {target}"


def check_zeroing(
    root: nn.Module, forward: Callable[[], Any], ref: ValueRef, before: Tensor, target: str, context: Any
) -> None:
    """Zeroed in place, assigned zeros, and edited by address: the target moves, by the same in all three ways."""

    def zeros(value: Any) -> Any:
        return [t * 0 for t in value] if isinstance(value, list) else value * 0

    by_address = run_values(root, forward, read=target, edit={ref.address: zeros}, **context)[target]
    with Run(root, forward, **context) as run:
        run.write(ref.module, ref.value, zeros(run.read(ref.module, ref.value)))
        assigned = getattr(run, target).save()
    with Run(root, forward, **context) as run:
        for tensor in tensors(run.read(ref.module, ref.value)):
            tensor[:] = 0
        in_place = getattr(run, target).save()
    assert not torch.equal(by_address, before), f"zeroing {ref.address} does not move {target}"
    torch.testing.assert_close(assigned, by_address, msg=lambda text: f"{ref.address}: {text}")
    torch.testing.assert_close(in_place, by_address, msg=lambda text: f"{ref.address}: {text}")


def check_gradient(root: nn.Module, forward: Callable[[], Any], ref: ValueRef, target: str, context: Any) -> None:
    """The target's gradient reaches the value through its handle and through what it saves, and is not zero."""
    with Run(root, forward, grad=True, **context) as run:
        handle = run.read(ref.module, ref.value)
        leaves = tensors(handle)
        if not leaves[0].requires_grad:
            leaves = [leaf.requires_grad_() for leaf in leaves]
            saved = leaves
        else:
            saved = tensors(handle.save())
        loss = getattr(run, target).float().square().sum()
    gradients = torch.autograd.grad(loss, [*leaves, *saved])
    for gradient in gradients:
        assert gradient.abs().sum() > 0, f"{target} has no gradient in {ref.address}"
    for one, other in zip(gradients[: len(leaves)], gradients[len(leaves) :], strict=True):
        torch.testing.assert_close(one, other, msg=lambda text: f"{ref.address}: {text}")
