"""Torch's thread-wide state, swapped around every switch between a forward and the code that reads it.

Grad mode, inference mode, autocast, default dtype, default device, function and dispatch modes, device and stream
belong to the thread, not to the greenlet. Without the swap, a body's ``torch.no_grad()`` would reach into the forward,
and the forward's ``torch.autocast`` into the body. This module knows nothing of runs and values.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any, TypeVar

import torch
from torch import get_autocast_dtype, get_default_dtype, is_grad_enabled, overrides
from torch import is_autocast_cache_enabled as _autocast_caching
from torch import is_inference_mode_enabled as _in_inference_mode
from torch._C import _InferenceMode, _set_grad_enabled  # type: ignore[attr-defined]
from torch._C import _is_any_autocast_enabled as _any_autocast  # type: ignore[attr-defined]
from torch._C import _len_torch_dispatch_stack as _dispatch_modes  # type: ignore[attr-defined]
from torch._C import _len_torch_function_stack as _function_modes  # type: ignore[attr-defined]
from torch.utils import _device as device_contexts
from torch.utils import _python_dispatch as dispatch

T = TypeVar("T")


@cache
def _accelerator() -> str | None:
    """The type of this machine's accelerator, if there is one."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


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
    """What torch keeps for a thread, as of the construction or the last `capture`.

    - `simple`: what remains to compare two states when no mode, autocast or stream is set; None when one is set.
    - `caller_guard`: torch sets inference mode by scoped guards only. While a block has left a mode on that its caller
      is not to have, this guard keeps the caller's; ending it brings the block's back.
    """

    __slots__ = (
        "autocast",
        "cache",
        "caller_guard",
        "device",
        "device_types",
        "dispatching",
        "dtype",
        "functions",
        "grad",
        "inference",
        "simple",
        "stream",
    )

    def __init__(self) -> None:
        self.device_types = _autocast_devices()
        self.caller_guard: Any = None
        self.capture()

    def capture(self) -> None:
        """Take the state as it is now."""
        self.functions: list[Any] = overrides._get_current_function_mode_stack() if _function_modes() else []
        self.dispatching: list[Any] = dispatch._get_current_dispatch_mode_stack() if _dispatch_modes() else []
        self.inference = _in_inference_mode()
        self.grad = is_grad_enabled()
        self.dtype = get_default_dtype()
        self.device = (getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), device_contexts.CURRENT_DEVICE)
        self.cache = _autocast_caching()
        self.autocast = [(torch.is_autocast_enabled(d), get_autocast_dtype(d)) for d in self.device_types]
        self.stream = _stream()
        self.simple = _simple_state()

    def for_forward(self, *, grad: bool) -> TorchState:
        """Make this the state of a forward that is opened in it: one that records gradients, or none. Returns self."""
        self.grad = grad
        self.inference = self.inference and not grad
        self.simple = None if self.simple is None else (self.inference, *self.simple[1:])
        return self

    def pop_modes(self) -> None:
        """Take this state's modes off torch's stacks, so that they do not see what follows."""
        for _ in self.functions:
            overrides._pop_mode()
        for _ in self.dispatching:
            dispatch._pop_mode()

    def push_modes(self) -> None:
        """Put this state's modes back, outermost first."""
        for mode in self.dispatching:
            dispatch._push_mode(mode)
        for mode in self.functions:
            overrides._push_mode(mode)

    def apply(self, over: TorchState) -> None:
        """Make this the thread's state, which now is `over`; modes and inference mode excepted."""
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
            torch.clear_autocast_cache()  # a weight cast without gradients must not serve the side that records them
        if self.stream is not None and over.stream is not None and self.stream != over.stream:
            self.stream.wait_stream(over.stream)  # each side reads what the other has just queued
            torch.accelerator.set_stream(self.stream)

    def __copy__(self) -> TorchState:
        twin = object.__new__(TorchState)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.caller_guard = None
        return twin

    def run(self, block: Callable[[], T]) -> T:
        """Run `block` in this state and return its result. Afterwards this is the state that the block left.

        The caller's state is restored. Mostly the two differ in the grad mode only, and then nothing else is touched,
        since this happens at every read.
        """
        simple = _simple_state()
        if simple is None or simple != self.simple or self.caller_guard is not None:
            return self._run_swapped(block)
        grad = is_grad_enabled()
        _set_grad_enabled(self.grad)
        try:
            return block()
        finally:
            if _simple_state() == simple:
                self.grad = is_grad_enabled()
            else:  # the block left something set; the caller's state is the one before the block
                own = copy(self)
                own.grad = grad
                self.capture()
                self.pop_modes()
                self._restore_inference_mode(own)
                own.apply(over=self)
            _set_grad_enabled(grad)

    def _run_swapped(self, block: Callable[[], T]) -> T:
        """`run` where the two states differ in more than the grad mode."""
        own, guard = TorchState(), None
        own.pop_modes()
        if self.caller_guard is not None:
            self.caller_guard.__exit__(None, None, None)
            self.caller_guard = None
        elif self.inference != own.inference:
            guard = _InferenceMode(self.inference)  # its end restores the caller's mode
        self.apply(over=own)
        self.push_modes()
        try:
            return block()
        finally:
            self.capture()
            self.pop_modes()
            if guard is None:
                self._restore_inference_mode(own)
            else:
                guard.__exit__(None, None, None)
            own.apply(over=self)
            own.push_modes()

    def _restore_inference_mode(self, own: TorchState) -> None:
        """Restore the caller's inference mode where the block has left another one on, until the block goes on."""
        if self.inference != own.inference:
            self.caller_guard = _InferenceMode(own.inference)

    def __del__(self) -> None:
        if self.caller_guard is not None:  # the block ended with the mode on, and ending the guard would restore that
            _open_guards.append(self.caller_guard)


_open_guards: list[Any] = []


def _simple_state() -> tuple[Any, ...] | None:
    """What two states can differ in when no mode, autocast or stream is set; None when one is set."""
    if _function_modes() or _dispatch_modes() or _any_autocast() or (_accelerator() and _stream() is not None):
        return None
    kinds = _autocast_devices()
    dtype = get_autocast_dtype(kinds[0]) if len(kinds) == 1 else tuple(map(get_autocast_dtype, kinds))
    return _in_inference_mode(), get_default_dtype(), _autocast_caching(), dtype
