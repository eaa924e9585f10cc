"""Torch's own state around a switch between a forward and the code that reads it.

Grad mode, inference mode, autocast, default dtype, default device, function and dispatch modes, device and stream
belong to the thread, not to the greenlet: without a swap, a body's ``torch.no_grad()`` would reach into the forward,
and the forward's ``torch.autocast`` out into the body. This module knows nothing of runs and values.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any

import torch
from torch import overrides
from torch._C import _len_torch_dispatch_stack as _dispatchers  # type: ignore[attr-defined]
from torch._C import _len_torch_function_stack as _functions  # type: ignore[attr-defined]
from torch.utils import _device as device_contexts
from torch.utils import _python_dispatch as dispatch


@cache
def _accelerator() -> str | None:
    """The type of this machine's accelerator, if there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


@cache
def _autocast_devices() -> tuple[str, ...]:
    """The device types whose autocast state is swapped: the CPU, and this machine's accelerator."""
    return ("cpu", *filter(None, [_accelerator()]))


def _stream() -> Any:
    """The current device's stream; None without an accelerator, or before CUDA was first used."""
    kind = _accelerator()
    if kind is None or (kind == "cuda" and not torch.cuda.is_initialized()):
        return None
    return torch.accelerator.current_stream()


class TorchState:
    """What torch keeps for a thread, as it was when this was made or last taken."""

    __slots__ = (
        "autocast",
        "cache",
        "device",
        "device_types",
        "dispatching",
        "dtype",
        "functions",
        "grad",
        "inference",
        "quiet",
        "stream",
    )

    def __init__(self) -> None:
        self.device_types = _autocast_devices()
        self.take()

    def take(self) -> None:
        """Takes the state as it is now."""
        self.functions: list[Any] = overrides._get_current_function_mode_stack() if _functions() else []
        self.dispatching: list[Any] = dispatch._get_current_dispatch_mode_stack() if _dispatchers() else []
        self.inference = torch.is_inference_mode_enabled()
        self.grad = torch.is_grad_enabled()
        self.dtype = torch.get_default_dtype()
        self.device = (getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), device_contexts.CURRENT_DEVICE)
        self.cache = torch.is_autocast_cache_enabled()
        self.autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in self.device_types]
        self.stream = _stream()
        self.quiet = _quiet()

    def forward(self, *, grad: bool) -> TorchState:
        """This state as a forward opened in it is to have: recording gradients, or not."""
        self.grad = grad
        self.inference = self.inference and not grad
        self.quiet = None if self.quiet is None else (self.inference, *self.quiet[1:])
        return self

    def unstack(self) -> None:
        """Takes this state's modes off torch's stacks, so that what follows is not seen by them."""
        for _ in self.functions:
            overrides._pop_mode()
        for _ in self.dispatching:
            dispatch._pop_mode()

    def restack(self) -> None:
        """Puts this state's modes back, outermost first."""
        for mode in self.dispatching:
            dispatch._push_mode(mode)
        for mode in self.functions:
            overrides._push_mode(mode)

    def set(self, over: TorchState) -> None:
        """Makes this the thread's state, where `over` is what it is now; modes and inference mode apart."""
        torch._C._set_grad_enabled(self.grad)
        if self.dtype != over.dtype:
            torch.set_default_dtype(self.dtype)
        if self.device != over.device:
            torch._GLOBAL_DEVICE_CONTEXT.device_context, device_contexts.CURRENT_DEVICE = self.device
        if self.cache != over.cache:
            torch.set_autocast_cache_enabled(self.cache)
        if self.autocast != over.autocast:
            for device, (enabled, dtype) in zip(self.device_types, self.autocast, strict=True):
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
        if (self.grad, self.autocast) != (over.grad, over.autocast):
            torch.clear_autocast_cache()  # a weight cast without gradient must not serve a side that records
        if self.stream is not None and over.stream is not None and self.stream != over.stream:
            self.stream.wait_stream(over.stream)  # either side reads what the other has just queued
            torch.accelerator.set_stream(self.stream)


class swapped:  # noqa: N801 - used as a function, like torch's own context managers
    """Runs a block in `state`. Afterwards `state` is what the block left, and the caller's own state is back.

    Mostly both are alike but for the grad mode, and then nothing else is touched: this stands around every read.
    """

    __slots__ = ("grad", "guard", "own", "quiet", "state")

    def __init__(self, state: TorchState) -> None:
        self.state = state

    def __enter__(self) -> None:
        state = self.state
        quiet = _quiet()
        self.quiet = quiet if quiet == state.quiet else None
        self.grad = torch.is_grad_enabled()
        self.own = None
        if self.quiet is None:
            self.own = TorchState()
            self.own.unstack()
        self.guard = torch._C._InferenceMode(state.inference)  # remembers the whole state, and puts it back on exit
        self.guard.__enter__()
        if self.own is None:
            torch._C._set_grad_enabled(state.grad)
        else:
            state.set(self.own)
            state.restack()

    def __exit__(self, *error: object) -> None:
        state, own = self.state, self.own
        if self.quiet is not None and _quiet() == self.quiet:
            state.grad = torch.is_grad_enabled()
        else:
            if own is None:  # the block began quiet and left something set: the caller's state is what was there then
                own = copy(state)
                own.grad = self.grad
            state.take()
            state.unstack()
            own.set(state)
        self.guard.__exit__(None, None, None)
        torch._C._set_grad_enabled(self.grad)
        if own is not None:
            own.restack()


def _quiet() -> tuple[Any, ...] | None:
    """What is left to tell two states apart when no mode, autocast or stream is set; None when one is."""
    if _functions() or _dispatchers() or torch._C._is_any_autocast_enabled() or _stream() is not None:
        return None
    kept = (torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.is_autocast_cache_enabled())
    return (*kept, *map(torch.get_autocast_dtype, _autocast_devices()))
