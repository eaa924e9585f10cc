"""The point at which a forward is paused: what the body gets there, what it may replace, and the errors about order.

It does not know how a forward is brought to a point or taken on from it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from cutaway.errors import NoRunError, NotReachedError, OutOfOrderError, TraceError
from cutaway.named import Value
from cutaway.trace.address_index import address_of
from cutaway.trace.addresses import expression
from cutaway.trace.edits import first_argument, put_back, served_value
from cutaway.trace.handles import resolve, tensors_in, unwrap_for_forward, wrap

Key = tuple[nn.Module, str]
"""A module and the name under which its forward passes a value."""


class PausePoint:
    """A paused forward's position: the value that it has just computed, and what the body holds of it.

    - `module`, `name`: the name is the one under which the forward passes the value.
    - `raw`: the forward's own object, with which it goes on unless the body replaces it.
    - `handle`: what the body holds; None once the value was assigned, until it is read again.
    - `editable`: tensors beside the handle whose in-place edits act here: collected and assigned ones.
    """

    __slots__ = ("editable", "handle", "module", "name", "raw", "served", "value")

    def __init__(self, module: nn.Module, name: str, value: Value, raw: Any) -> None:
        self.module, self.name, self.value, self.raw = module, name, value, raw
        self.editable: list[Tensor] = []
        self.make_handle()

    @property
    def key(self) -> Key:
        """Module and name."""
        return self.module, self.name

    def make_handle(self) -> None:
        """Make what the body holds; to be called in the forward's torch state."""
        is_call = self.name == "inputs"  # `input` and `inputs` share one handle
        served = self.served = self.raw if is_call else served_value(self.value, self.raw)
        self.handle: Any = wrap(served, recording=is_grad_enabled())

    def read(self, value: Value) -> Any:
        """What the body holds of `value`, which is computed here."""
        return first_argument(self.handle) if value.name == "input" else self.handle

    def assign(self, value: Value, new: Any) -> None:
        """Replace `value`, which is computed here; to be called in the forward's torch state."""
        self.raw = put_back(value, self.resolve(), unwrap_for_forward(new))
        self.served = self.handle = None
        self.editable = list(tensors_in(new))

    def editable_tensors(self) -> list[Tensor]:
        """The tensors whose in-place edits act here."""
        return [*self.editable, *tensors_in(self.handle)] if self.value.writable else []

    def resolve(self) -> Any:
        """What the forward goes on with; to be called in its torch state."""
        if self.handle is None:
            return self.raw
        new = resolve(self.handle, self.served)
        if new is self.served:
            return self.raw
        if self.name == "inputs":
            return new
        return put_back(self.value, self.raw, new)


class LazyAddress:
    """The address of a value as text, looked up only when a message needs it."""

    def __init__(self, root: nn.Module, module: nn.Module, name: str) -> None:
        self.parts = root, module, name

    def __str__(self) -> str:
        return f"`{address_of(*self.parts)}`"


def out_of_order(
    root: nn.Module, requested: tuple[nn.Module, Value], pause: PausePoint | None, computed: Container[Key]
) -> OutOfOrderError:
    """The error for a value that the forward has gone past."""
    module, value = requested
    address = address_of(root, module, value.name)
    current = None if pause is None else address_of(root, *pause.key)
    why = "has passed"
    if value.computed and (module, value.key) not in computed:
        why = "was not computed: it is computed only if it is read before its module has run"
    where = "has ended" if current is None else f"stands at `{current}`, which comes later"
    order = "\n".join(f"    {expression(a)}" for a in (address, current) if a is not None)
    return OutOfOrderError(
        f"`{address}` {why}. The forward {where}. Read in the forward's order:\n{order}\n"
        f'or in any order by address: `model.run(..., read=["{address}", …])`. See docs/errors/out-of-order.md.'
    )


def not_reached(root: nn.Module, module: nn.Module, value: Value) -> NotReachedError:
    """The error for a value that the forward ended without."""
    why = value.why_absent or "Nothing in this run's inputs made the model compute it."
    if any(hasattr(part, "_orig_mod") for part in root.modules()):
        why += " A part of the model is wrapped by `torch.compile`, inside which no value has a name."
    return NotReachedError(
        f"The forward ended without `{address_of(root, module, value.name)}`. {why} What was read before stays valid. "
        f"See docs/errors/not-reached.md."
    )


def not_in_this_run(module: nn.Module, value: Value) -> NoRunError:
    """The error for a value of a module outside the tree that runs."""
    return NoRunError(
        f"`{value.name}` was read from a {type(module).__name__} that is no part of the model that runs here. Open a "
        f"run of the model that it belongs to."
    )


def run_failed(status: str) -> TraceError:
    """The error for a run whose forward an error has ended; `status` says which."""
    return TraceError(f"The forward of this run {status}. Open a new run.")
