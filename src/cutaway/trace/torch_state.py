"""Torch's own state around a switch between a forward and the code that reads it.

Grad mode, inference mode, autocast, default dtype, default device, function and dispatch modes, device and stream
belong to the thread, not to the greenlet: without a swap, a body's ``torch.no_grad()`` would reach into the forward,
and the forward's ``torch.autocast`` out into the body. This module knows nothing of runs and values.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any, TypeVar

import torch
from torch import get_autocast_dtype, get_default_dtype, is_grad_enabled, overrides
from torch import is_autocast_cache_enabled as _caching
from torch import is_inference_mode_enabled as _inferring
from torch._C import _InferenceMode, _set_grad_enabled  # type: ignore[attr-defined]
from torch._C import _is_any_autocast_enabled as _casting  # type: ignore[attr-defined]
from torch._C import _len_torch_dispatch_stack as _dispatchers  # type: ignore[attr-defined]
from torch._C import _len_torch_function_stack as _functions  # type: ignore[attr-defined]
from torch.utils import _device as device_contexts
from torch.utils import _python_dispatch as dispatch

T = TypeVar("T")


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
    """What torch keeps for a thread, as it was when this was made or last taken.

    `bridge` stands while a block has an inference mode on that its caller is not to be in: torch sets that mode by
    guards alone, and the end of this one brings the block's back.
    """

    __slots__ = (
        "autocast",
        "bridge",
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
        self.bridge: Any = None
        self.take()

    def take(self) -> None:
        """Takes the state as it is now."""
        self.functions: list[Any] = overrides._get_current_function_mode_stack() if _functions() else []
        self.dispatching: list[Any] = dispatch._get_current_dispatch_mode_stack() if _dispatchers() else []
        self.inference = _inferring()
        self.grad = is_grad_enabled()
        self.dtype = get_default_dtype()
        self.device = (getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), device_contexts.CURRENT_DEVICE)
        self.cache = _caching()
        self.autocast = [(torch.is_autocast_enabled(d), get_autocast_dtype(d)) for d in self.device_types]
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
        _set_grad_enabled(self.grad)
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

    def __copy__(self) -> TorchState:
        made = object.__new__(TorchState)
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        made.bridge = None
        return made

    def run(self, block: Callable[[], T]) -> T:
        """What `block` returns, run in this state; which is then what the block left, and the caller's own is back.

        Mostly both are alike but for the grad mode, and then nothing else is touched: this stands around every read.
        """
        quiet = _quiet()
        if quiet is None or quiet != self.quiet or self.bridge is not None:
            return self._run_apart(block)
        grad = is_grad_enabled()
        _set_grad_enabled(self.grad)
        try:
            return block()
        finally:
            if _quiet() == quiet:
                self.grad = is_grad_enabled()
            else:  # the block left something set: the caller's state is what was there when it began
                own = copy(self)
                own.grad = grad
                self.take()
                self.unstack()
                self._part(own)
                own.set(self)
            _set_grad_enabled(grad)

    def _run_apart(self, block: Callable[[], T]) -> T:
        """`run` where the two states differ in more than the grad mode."""
        own, guard = TorchState(), None
        own.unstack()
        if self.bridge is not None:
            self.bridge.__exit__(None, None, None)
            self.bridge = None
        elif self.inference != own.inference:
            guard = _InferenceMode(self.inference)  # from here on; its end brings the caller's back
        self.set(own)
        self.restack()
        try:
            return block()
        finally:
            self.take()
            self.unstack()
            if guard is None:
                self._part(own)
            else:
                guard.__exit__(None, None, None)
            own.set(self)
            own.restack()

    def _part(self, own: TorchState) -> None:
        """Gives the caller its inference mode back where the block has left another one on, until the block goes on."""
        if self.inference != own.inference:
            self.bridge = _InferenceMode(own.inference)

    def __del__(self) -> None:
        if self.bridge is not None:  # the block has ended with the mode on: the bridge's own end would bring that back
            _BRIDGES.append(self.bridge)


_BRIDGES: list[Any] = []


def _quiet() -> tuple[Any, ...] | None:
    """What is left to tell two states apart when no mode, autocast or stream is set; None when one is."""
    if _functions() or _dispatchers() or _casting() or (_accelerator() and _stream() is not None):
        return None
    kinds = _autocast_devices()
    dtype = get_autocast_dtype(kinds[0]) if len(kinds) == 1 else tuple(map(get_autocast_dtype, kinds))
    return _inferring(), get_default_dtype(), _caching(), dtype
