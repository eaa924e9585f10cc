"""The torch state of body and forward: neither sees the other's, at any switch, also when errors pass."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from cutaway.named import Named, Value
from cutaway.trace.run import Run
from cutaway.trace.torch_state import TorchState


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    before = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None if before is None else before.device)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "no_inference": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast_half_uncached": lambda: torch.autocast("cpu", torch.float16, cache_enabled=False),
    "autocast_off": lambda: torch.autocast("cpu", enabled=False),
    "dtype": lambda: default_dtype(torch.float64),
    "device": lambda: torch.device("meta"),
    "default_device": lambda: default_device("meta"),
    "function_mode": FunctionMode,
    "dispatch_mode": DispatchMode,
}


def seen() -> tuple[Any, ...]:
    """All of torch's state that is kept apart, as one comparable value."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.empty(0, dtype=torch.float32).device.type,
        [type(mode).__name__ for mode in _get_current_function_mode_stack()],
        [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
    )


class Chain(Named):
    """Names three values, the second one inside a context of its own, and notes the state between them."""

    first, second, third = Value("n", "one"), Value("n", "two"), Value("n", "three")

    def __init__(self, inner: Callable[[], Any]) -> None:
        super().__init__()
        self.inner, self.notes = inner, []

    def forward(self, x: Tensor) -> Tensor:
        self.notes = [seen()]
        x = self.value("first", x * 2)
        self.notes.append(seen())
        with self.inner():
            self.notes.append(seen())
            x = self.value("second", x * 2)
            self.notes.append(seen())
        self.notes.append(seen())
        x = self.value("third", x * 2)
        self.notes.append(seen())
        return x


def run_of(chain: Chain, **options: Any) -> Run:
    x = torch.ones(3, device="cpu", dtype=torch.float32)
    return Run(chain, lambda: chain(x), **options)


@pytest.mark.parametrize("outer", CONTEXTS)
@pytest.mark.parametrize("body", CONTEXTS)
@pytest.mark.parametrize("inner", CONTEXTS)
def test_neither_side_sees_the_others_state(outer, body, inner):
    chain = Chain(CONTEXTS[inner])
    outside = seen()
    with CONTEXTS[outer]():
        with torch.no_grad():
            chain(torch.ones(3, device="cpu", dtype=torch.float32))
        wanted = chain.notes
        with run_of(chain):
            opened = seen()
            _ = chain.first
            assert seen() == opened
            with CONTEXTS[body]():
                inside = seen()
                _ = chain.second
                assert seen() == inside
            assert seen() == opened
            with CONTEXTS[body]():
                inside = seen()
                _ = chain.third
                assert seen() == inside
            assert seen() == opened
        assert len(chain.notes) == 5
        assert chain.notes == wanted[:5]
        with run_of(chain) as run:
            with CONTEXTS[body]():
                _ = chain.second
            run.finish()
        assert chain.notes == wanted
    assert seen() == outside


@pytest.mark.parametrize("body", CONTEXTS)
@pytest.mark.parametrize("inner", CONTEXTS)
def test_state_is_right_when_errors_pass(body, inner):
    outside = seen()
    chain = Chain(CONTEXTS[inner])

    def leave() -> None:
        with run_of(chain), CONTEXTS[body]():
            _ = chain.second
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert seen() == outside

    def fail(module: Chain, args: tuple) -> None:
        raise ValueError

    def broken() -> None:
        with chain.inner():
            chain.value("second", torch.ones(1))
            raise ValueError

    with Run(chain, broken), CONTEXTS[body]():
        inside = seen()
        _ = chain.second
        with pytest.raises(ValueError):  # noqa: PT011
            _ = chain.third
        assert seen() == inside
    assert seen() == outside


@pytest.mark.parametrize("outer", ["none", "no_grad", "inference"])
def test_gradients_are_recorded_when_asked_wherever_the_run_is_opened(outer):
    chain = Chain(nullcontext)
    x = torch.ones(3, requires_grad=True)
    with CONTEXTS[outer](), Run(chain, lambda: chain(x), grad=True):
        value = chain.third
        assert value.requires_grad
        assert seen()[:2] == (outer == "none", outer == "inference")
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.tolist() == [8, 8, 8]
    with Run(chain, lambda: chain(x)):
        assert not chain.third.requires_grad


KEPT: list[torch.inference_mode] = []
"""Guards that a test never closes. They must outlive it: torch sets the thread's gradient mode when one is freed."""


def test_a_forward_that_leaves_inference_mode_on_keeps_it_to_itself():
    class Leaves(Named):
        first = Value("n", "a value")

        def forward(self) -> Tensor:
            KEPT.append(torch.inference_mode())
            KEPT[-1].__enter__()
            return self.value("first", torch.ones(3))

    leaves = Leaves()
    for read in (True, False):
        with Run(leaves, leaves) as run:
            if read:
                assert leaves.first.is_inference()
                assert not torch.is_inference_mode_enabled()
            run.finish()
            assert not torch.is_inference_mode_enabled()
        del run
        gc.collect()
        assert not torch.is_inference_mode_enabled()
        assert (torch.ones(1, requires_grad=True) * 2).requires_grad


def test_two_runs_keep_their_own_state():
    one, two = Chain(lambda: torch.autocast("cpu", torch.bfloat16)), Chain(nullcontext)
    with run_of(one) as a, default_dtype(torch.float64), run_of(two) as b:
        _ = a.second
        _ = b.second
        _ = a.third
        _ = b.third
        a.finish()
        b.finish()
    assert [n[5] for n in one.notes] == [torch.float32] * 6
    assert [n[5] for n in two.notes] == [torch.float64] * 6
    assert [n[2] for n in one.notes] == [False, False, True, True, False, False]
    assert not any(n[2] for n in two.notes)


def test_a_weight_cast_without_gradient_does_not_serve_the_side_that_records():
    weight = torch.nn.Parameter(torch.randn(4, 4))

    class Cast(Named):
        first = Value("n n", "a product")

        def forward(self) -> Tensor:
            return self.value("first", torch.ones(4, 4) @ weight)

    cast = Cast()
    with torch.autocast("cpu", torch.bfloat16), Run(cast, cast):
        _ = cast.first
        own = torch.ones(4, 4) @ weight
        own.float().sum().backward()
    assert weight.grad is not None


def test_streams_are_kept_apart(monkeypatch):
    """Without an accelerator: the calls that torch is given."""

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            calls.append((self.name, "waits for", other.name))

    calls: list[Any] = []
    current = [Stream("forward's")]
    monkeypatch.setattr("cutaway.trace.torch_state._accelerator", lambda: "some")
    monkeypatch.setattr("cutaway.trace.torch_state._stream", lambda: current[0])
    monkeypatch.setattr(torch.accelerator, "set_stream", lambda stream: current.__setitem__(0, stream))
    chain, others = Chain(nullcontext), []
    hook = chain.value

    def noting(name: str, tensor: Tensor) -> Tensor:
        others.append(current[0].name)
        return hook(name, tensor)

    chain.__dict__["value"] = noting
    with run_of(chain):
        _ = chain.first
        current[0] = Stream("body's")
        _ = chain.second
        assert current[0].name == "body's"
        _ = chain.third
    assert others == ["forward's"] * 3
    assert calls[:2] == [("forward's", "waits for", "body's"), ("body's", "waits for", "forward's")]


def test_the_snapshot_names_no_stream_without_an_accelerator():
    if not torch.accelerator.is_available():
        assert TorchState().stream is None
