"""Edits given by address before a run, and their application where the forward passes the value.

An edit changes the value at its own place: the function gets a copy, so that a tensor which the forward holds elsewhere
too stays as it is. This module does not know how a forward is stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cutaway.errors import EditError
from cutaway.trace.addresses import ValueRef, find
from cutaway.trace.handles import checked, onward, rebuilt

When = str | range | Callable[[int], bool]
"""``"all"``, ``"prompt"`` (step 0), ``"decode"`` (the steps after it), a range of steps, or a function of the step."""


@dataclass(frozen=True, eq=False)
class Edit:
    """What is done to a value, and at which steps of a generation.

    `change` is a function of the value that returns its replacement, or None if it changed it in place; or a tensor
    that takes its place.
    """

    change: Callable[[Any], Any] | Tensor
    when: When = "all"

    def __post_init__(self) -> None:
        if not callable(self.change) and not isinstance(self.change, Tensor):
            raise EditError(f"An edit is a function of the value, or a tensor; a {type(self.change).__name__} came.")
        if (
            not callable(self.when)
            and not isinstance(self.when, range)
            and self.when not in ("all", "prompt", "decode")
        ):
            raise EditError(
                f'`when` is "all", "prompt", "decode", a range of steps or a function of the step; {self.when!r} came.'
            )

    def at(self, step: int) -> bool:
        """Whether the edit is made at this step; the prompt is step 0."""
        if isinstance(self.when, str):
            return self.when == "all" or (step == 0) == (self.when == "prompt")
        return step in self.when if isinstance(self.when, range) else bool(self.when(step))


EditSpec = Mapping[str, "Edit | Callable[[Any], Any] | Tensor"]
"""Edits as a caller gives them: by address or pattern."""


class Edits:
    """Edits resolved to the places of one tree."""

    def __init__(self, places: list[tuple[ValueRef, Edit]], notes: dict[Edit, ValueRef | None] | None = None) -> None:
        self._places = places
        self._notes = {} if notes is None else notes  # a place of every edit, None once it was made
        self._stepped: dict[Edit, ValueRef | None] | None = None
        self._by_key: dict[tuple[nn.Module, str], list[tuple[ValueRef, Edit]]] = {}
        self._names: dict[nn.Module, set[str]] = {}
        for place, edit in places:
            self._notes.setdefault(edit, place)
            self._by_key.setdefault(place.key, []).append((place, edit))
            self._names.setdefault(place.module, set()).add(place.value.name)

    @classmethod
    def of(cls, root: nn.Module, given: EditSpec | None, when: When = "all") -> Edits:
        """Resolves patterns; `when` is that of the edits that name none. Raises for unknown and read-only values."""
        if given is not None and not isinstance(given, Mapping):
            raise EditError(f"Edits are a dict from address to function or tensor; a {type(given).__name__} came.")
        if not given and when != "all":
            raise EditError("`when` says at which steps the edits of `edit` are made, and `edit` has none.")
        places = []
        for pattern, change in (given or {}).items():
            edit = replace(change) if isinstance(change, Edit) else Edit(change, when)
            for place in find(root, pattern):
                place.value.check_writable()
                places.append((place, edit))
        return cls(places)

    def at(self, step: int) -> Edits:
        """Those that are made at one step."""
        if self._stepped is None:
            self._stepped = {}
        return Edits([(place, edit) for place, edit in self._places if edit.at(step)], self._stepped)

    @property
    def modules(self) -> frozenset[nn.Module]:
        """The modules with a value that is edited."""
        return frozenset(self._names)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: tuple[nn.Module, str]) -> bool:
        return key in self._by_key

    def wants(self, module: nn.Module, names: tuple[str, ...]) -> bool:
        """Whether one of these values of `module` is edited."""
        return module in self._names and not self._names[module].isdisjoint(names)

    def unmade(self) -> ValueRef | None:
        """A place of an edit that was made nowhere so far, at no step that it was for; None when there is none."""
        notes = self._notes if self._stepped is None else self._stepped
        return next((place for place in notes.values() if place is not None), None)

    def applied(self, key: tuple[nn.Module, str], raw: Any) -> Any:
        """What the forward goes on with at a place where it has `raw`."""
        for place, edit in self._by_key.get(key, ()):
            self._notes[edit] = None
            raw = put(place.value, raw, _changed(place, edit.change, serve(place.value, raw)))
        return raw


def _changed(place: ValueRef, change: Callable[[Any], Any] | Tensor, served: Any) -> Any:
    if isinstance(change, Tensor):
        new = change
    else:
        mine = _copy(served)
        new = change(mine)
        new = mine if new is None else new
    return onward(checked(f"`{place.address}`", served, new, place.value.axes))


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, tuple):
        return rebuilt(value, [_copy(item) for item in value])
    return {key: _copy(item) for key, item in value.items()} if type(value) is dict else value


def serve(value: Any, raw: Any) -> Any:
    """The forward's `raw` as a reader gets it: the first argument for `input`, a leading axis where one is declared."""
    if value.name == "input":
        return first_argument(raw)
    return raw[None] if value.add_batch_axis and isinstance(raw, torch.Tensor) else raw


def put(value: Any, raw: Any, new: Any) -> Any:
    """The forward's `raw` with the reader's `new` in the place of what `serve` gives."""
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
