"""Edits by address, set before a run and made as the forward computes the value.

An edit changes the value where it is named: a function gets a copy, so that a tensor which the forward also uses
elsewhere stays as it is. This module does not know how a forward is stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn

from cutaway.errors import EditError
from cutaway.trace.addresses import ValueRef, find
from cutaway.trace.handles import rebuild_tuple, tensors_in, unwrap_for_forward, validate_replacement
from cutaway.trace.late_edits import LateEdits, late_edit

When = str | range | Callable[[int], bool]
"""``"all"``, ``"prompt"`` (step 0), ``"decode"`` (the steps after it), a range of steps, or a function of the step."""


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of a value, and the steps of a generation at which it is made.

    `change` is a function of the value, which returns the replacement or None if it changed its argument in place; or a
    tensor that replaces the value.
    """

    change: Callable[[Any], Any] | Tensor
    when: When = "all"

    def __post_init__(self) -> None:
        if not callable(self.change) and not isinstance(self.change, Tensor):
            raise EditError(f"An edit is a function of the value, or a tensor; got a {type(self.change).__name__}.")
        if (
            not callable(self.when)
            and not isinstance(self.when, range)
            and self.when not in ("all", "prompt", "decode")
        ):
            raise EditError(
                f'`when` is "all", "prompt", "decode", a range of steps or a function of the step; got {self.when!r}.'
            )

    def applies_at(self, step: int) -> bool:
        """Whether the edit is made at this step; the prompt is step 0."""
        if isinstance(self.when, str):
            return self.when == "all" or (step == 0) == (self.when == "prompt")
        return step in self.when if isinstance(self.when, range) else bool(self.when(step))


EditSpec = Mapping[str, "Edit | Callable[[Any], Any] | Tensor"]
"""Edits as a caller writes them: by address or pattern."""


class Edits:
    """Edits resolved to the values of one tree."""

    def __init__(
        self, edits: list[tuple[ValueRef, Edit]], unapplied: dict[Edit, ValueRef | None] | None = None
    ) -> None:
        self._edits = edits
        self._unapplied = {} if unapplied is None else unapplied  # a value of every edit; None once it was made
        self._unapplied_in_steps: dict[Edit, ValueRef | None] | None = None
        self._by_key: dict[tuple[nn.Module, str], list[tuple[ValueRef, Edit]]] = {}
        self._names: dict[nn.Module, set[str]] = {}
        for ref, edit in edits:
            self._unapplied.setdefault(edit, ref)
            self._by_key.setdefault(ref.key, []).append((ref, edit))
            self._names.setdefault(ref.module, set()).add(ref.value.name)

    @classmethod
    def of(cls, root: nn.Module, spec: EditSpec | None, when: When = "all") -> Edits:
        """Resolve patterns; `when` is for the edits without one. Raises for unknown and read-only values."""
        if spec is not None and not isinstance(spec, Mapping):
            raise EditError(f"Edits are a dict from address to function or tensor; got a {type(spec).__name__}.")
        if not spec and when != "all":
            raise EditError("`when` says at which steps the edits of `edit` are made; got no `edit`.")
        edits = []
        for pattern, change in (spec or {}).items():
            edit = replace(change) if isinstance(change, Edit) else Edit(change, when)
            for ref in find(root, pattern):
                ref.value.check_writable()
                edits.append((ref, edit))
        return cls(edits)

    def for_step(self, step: int) -> Edits:
        """The edits that are made at one step."""
        if self._unapplied_in_steps is None:
            self._unapplied_in_steps = {}
        return Edits([(ref, edit) for ref, edit in self._edits if edit.applies_at(step)], self._unapplied_in_steps)

    @property
    def modules(self) -> frozenset[nn.Module]:
        """The modules with an edited value."""
        return frozenset(self._names)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: tuple[nn.Module, str]) -> bool:
        return key in self._by_key

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values of `module` is edited."""
        return module in self._names and not self._names[module].isdisjoint(names)

    def first_unapplied(self) -> ValueRef | None:
        """A value of an edit that was not made, at any step that it was for; None when every edit was made."""
        unapplied = self._unapplied if self._unapplied_in_steps is None else self._unapplied_in_steps
        return next((ref for ref in unapplied.values() if ref is not None), None)

    def apply(self, key: tuple[nn.Module, str], raw: Any, late_edits: LateEdits) -> Any:
        """Make the edits of one value; return what the forward goes on with instead of `raw`.

        What an edit was called with or returned must not change afterwards: `late_edits` gets it. Raises `EditError`
        when an edit has changed what an earlier one got.
        """
        for ref, edit in self._by_key.get(key, ()):
            self._unapplied[edit] = None
            served = served_value(ref.value, raw)
            new = _replacement(ref, edit.change, served)
            if (entry := late_edits.first()) is not None:
                raise late_edit(
                    entry, f"The `{entry.name}` of an earlier edit", f"The edit of `{ref.address}` changed it."
                )
            late_edits.add(ref.module, ref.value, tensors_in(new), recording=is_grad_enabled())
            raw = put_back(ref.value, raw, unwrap_for_forward(new))
        return raw


def _replacement(ref: ValueRef, change: Callable[[Any], Any] | Tensor, served: Any) -> Any:
    if isinstance(change, Tensor):
        new = change
    else:
        argument = _copy(served)
        new = change(argument)
        new = argument if new is None else new
    return validate_replacement(f"`{ref.address}`", served, new, ref.value.axes)


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, tuple):
        return rebuild_tuple(value, [_copy(item) for item in value])
    return {key: _copy(item) for key, item in value.items()} if type(value) is dict else value


def served_value(value: Any, raw: Any) -> Any:
    """The forward's `raw` as a reader gets it: the first argument for `input`, a batch axis if declared."""
    if value.name == "input":
        return first_argument(raw)
    return raw[None] if value.add_batch_axis and isinstance(raw, torch.Tensor) else raw


def put_back(value: Any, raw: Any, new: Any) -> Any:
    """The forward's `raw` with `new` instead of what `served_value` gives."""
    if value.name == "input":
        args, kwargs = raw
        if args:
            return (new, *args[1:]), kwargs
        return args, {**kwargs, next(iter(kwargs)): new}
    return new[0] if value.add_batch_axis and isinstance(raw, torch.Tensor) else new


def first_argument(inputs: tuple[tuple, dict]) -> Any:
    """The first argument of a call, positional or not."""
    args, kwargs = inputs
    if args:
        return args[0]
    if kwargs:
        return next(iter(kwargs.values()))
    raise EditError("This module is called without arguments, so it has no `input`.")
