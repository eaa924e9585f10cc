"""The place where a forward stands: what the body is given there, and the errors that say what it may ask next.

It does not know how a forward is brought to a place or taken on from it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import is_grad_enabled, nn

from cutaway.errors import NoRunError, NotReachedError, OutOfOrderError, TraceError
from cutaway.named import Value
from cutaway.trace.address_index import address_of
from cutaway.trace.addresses import expression
from cutaway.trace.edits import first_argument, put, serve
from cutaway.trace.handles import hand, onward, settle

Key = tuple[nn.Module, str]
"""A module and the name under which the forward passes a value of it."""


class Stand:
    """The place where a forward stands, and what the body was given of it.

    - `module`, `name`: the name is that under which the place was passed.
    - `raw`: the forward's own object; what it goes on with unless the body replaces it.
    """

    __slots__ = ("handed", "module", "name", "raw", "served", "value")

    def __init__(self, module: nn.Module, name: str, value: Value, raw: Any) -> None:
        self.module, self.name, self.value, self.raw = module, name, value, raw
        self.hand()

    @property
    def key(self) -> Key:
        """The place."""
        return self.module, self.name

    def hand(self) -> None:
        """Makes what the body holds; to be called in the forward's torch state."""
        whole = self.name == "inputs"  # `input` and `inputs` are handed out together
        served = self.served = self.raw if whole else serve(self.value, self.raw)
        self.handed: Any = hand(served, recording=is_grad_enabled())

    def read(self, value: Value) -> Any:
        """What the body holds of the value that is read here."""
        return first_argument(self.handed) if value.name == "input" else self.handed

    def assign(self, value: Value, new: Any) -> None:
        """Replaces the value that is passed here; to be called in the forward's torch state."""
        self.raw = put(value, self.settle(), onward(new))
        self.served = self.handed = None

    def settle(self) -> Any:
        """What the forward goes on with; to be called in its torch state."""
        if self.handed is None:
            return self.raw
        new = settle(self.handed, self.served)
        if new is self.served:
            return self.raw
        if self.name == "inputs":
            return new
        return put(self.value, self.raw, new)


class Name:
    """The address of a value as text, looked up only when an error needs it."""

    def __init__(self, root: nn.Module, module: nn.Module, name: str) -> None:
        self.parts = root, module, name

    def __str__(self) -> str:
        return f"`{address_of(*self.parts)}`"


def out_of_order(
    root: nn.Module, asked: tuple[nn.Module, Value], stand: Stand | None, passed: Container[Key]
) -> OutOfOrderError:
    """The error for a value whose place is behind the forward."""
    module, value = asked
    address = address_of(root, module, value.name)
    there = None if stand is None else address_of(root, *stand.key)
    why = "has passed"
    if value.computed and (module, value.key) not in passed:
        why = "was not computed: it is worked out only when it is asked for before its module has run"
    where = "has ended" if there is None else f"stands at `{there}`, which comes after it"
    order = "\n".join(f"    {expression(a)}" for a in (address, there) if a is not None)
    return OutOfOrderError(
        f"`{address}` {why}. The forward {where}. Read in the forward's order:\n{order}\n"
        f'or in any order by address: `model.run(..., read=["{address}", …])`. See docs/errors/out-of-order.md.'
    )


def not_reached(root: nn.Module, module: nn.Module, value: Value) -> NotReachedError:
    """The error for a value that the forward ended without."""
    why = value.why_absent or "Nothing in this run's inputs made it compute that."
    if any(hasattr(part, "_orig_mod") for part in root.modules()):
        why += " A part of the tree is wrapped by `torch.compile`, inside which no value has a name."
    return NotReachedError(
        f"The forward ended without `{address_of(root, module, value.name)}`. {why} What was read before stays valid. "
        f"See docs/errors/not-reached.md."
    )


def foreign(module: nn.Module, value: Value) -> NoRunError:
    """The error for a value of a module outside the tree that runs."""
    return NoRunError(
        f"`{value.name}` was asked of a {type(module).__name__} that is no part of the model that runs here. Open a "
        f"run of the model that it belongs to."
    )


def failed(status: str) -> TraceError:
    """The error for a forward that an error has ended; `status` says which."""
    return TraceError(f"The forward of this run {status}. Open a new run.")
