"""What a body holds of a value: the model's own tensor under a class with `save`, and lists, tuples and dicts of them.

`hand` makes it, `settle` says what the forward goes on with afterwards. This module does not know which value it is.

How gradients stay on the path: of the forward's tensor `t` the body holds ``h``, an alias of it. When the forward
records gradients it goes on with an alias of `h`, so that `h` and `t` are both upstream of the logits: `retain_grad`,
`torch.autograd.grad` and in-place edits work on either. When it does not, it goes on with `t` itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _autograd as autograd  # type: ignore[attr-defined]

from cutaway.errors import EditError


class Handed(Tensor):
    """A value as the body holds it, and what is computed from it: a tensor with `save`."""

    _source: Tensor  # the forward's tensor that this stands for; absent on what the body computes
    _own: Tensor  # what `save` gives, upstream of this alias, where that is not `_source`
    _onward: Callable[[], Tensor | None]

    def save(self) -> Tensor:
        """The plain tensor: of a value the model's own, of something computed an alias."""
        held = self.__dict__
        if "_source" not in held:
            return self.as_subclass(Tensor)
        own = held["_own"] if "_own" in held else held["_source"]
        if not own.requires_grad and _requires_grad(self):  # the body made a leaf of the handle
            return self.onward()
        return own.as_subclass(Tensor) if isinstance(own, Handed) else own

    def onward(self) -> Tensor:
        """The alias downstream of this handle with which the forward goes on: one, while somebody holds it."""
        held = self.__dict__.get("_onward", lambda: None)()
        if held is None:
            held = self.as_subclass(Tensor)
            self._onward = ref(held)  # held by its base, an own reference would keep both alive for ever
        return held

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.save(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.save().__reduce_ex__(protocol)


def _requires_grad(handed: Handed) -> bool:
    with torch._C.DisableTorchFunctionSubclass():  # else the question costs more than all the rest of a read
        return handed.requires_grad


class _Saved:
    """The `save` of a tensor of a foreign class, which cannot be handed out under ours."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Tensor:
        return self.tensor


class HandedTuple(tuple):
    """A tuple of handed values."""

    _own: tuple

    def save(self) -> Any:
        """The plain tuple, its tensors the model's own."""
        return rebuilt(self._own, [plain(item) for item in self])

    def __getattr__(self, name: str) -> Any:
        """What the model's own tuple has more than its items: the names of a named tuple, the methods of a size."""
        if name.startswith("__") or "_own" not in self.__dict__:
            raise AttributeError(name)
        fields = getattr(self._own, "_fields", ())
        return self[fields.index(name)] if name in fields else getattr(self._own, name)


class HandedList(list):
    """A list of handed values. Its items can be edited in place and assigned; its length stays."""

    _own: list

    def save(self) -> list:
        """The plain list, its tensors the model's own."""
        return [plain(item) for item in self]

    def __setitem__(self, index: Any, new: Any) -> None:
        if isinstance(index, slice):
            new = list(new)
            places = range(*index.indices(len(self)))
            if len(new) != len(places):
                raise EditError(f"A list value keeps its length: {len(places)} items are there, {len(new)} came.")
            for place, item in zip(places, new, strict=True):
                self[place] = item
            return
        old = self[index]
        super().__setitem__(index, new if new is old else checked(f"item {index}", old, new))

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise EditError(
            f"A list value keeps its length of {len(self)}: assign its items (`values[k] = …`) or edit them in place."
        )

    _other: Any = _fixed
    append = extend = insert = pop = remove = clear = sort = reverse = _other
    __delitem__ = __iadd__ = __imul__ = _other


class HandedDict(dict):
    """A dict of handed values. Its items can be edited in place and assigned; its keys stay."""

    _own: dict

    def save(self) -> dict:
        """The plain dict, its tensors the model's own."""
        return {key: plain(item) for key, item in self.items()}

    def __setitem__(self, key: Any, new: Any) -> None:
        if key not in self:
            raise EditError(f"The arguments are {', '.join(map(repr, self))}: {key!r} cannot be added.")
        old = self[key]
        super().__setitem__(key, new if new is old else checked(f"item {key!r}", old, new))

    def update(self, *others: Any, **items: Any) -> None:
        """Assigns several items."""
        for key, item in dict(*others, **items).items():
            self[key] = item

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise EditError(f"A dict value keeps its keys {', '.join(map(repr, self))}: assign its items.")

    _other: Any = _fixed
    pop = popitem = clear = setdefault = __delitem__ = __ior__ = _other


def plain(value: Any) -> Any:
    """What `save` gives, for anything that was handed out; other things as they are."""
    return value.save() if isinstance(value, Handed | HandedTuple | HandedList | HandedDict) else value


def hand(value: Any, *, recording: bool) -> Any:
    """`value` as the body is to hold it; to be called in the forward's torch state."""
    if type(value) not in _PLAIN:
        if not isinstance(value, Tensor):
            return _hand_items(value, recording)
        if not hasattr(value, "save"):
            value.save = _Saved(value)  # type: ignore[attr-defined]
        return value
    if (
        not value.requires_grad
    ):  # the same storage, no tie to it: what the body does with gradients begins at its handle
        handed = _make_subclass(Handed, value)
    elif recording:
        own = _editable(value)
        handed = own.as_subclass(Handed)
        handed._own = own
    else:
        own = value.detach()
        handed = _make_subclass(Handed, own)
        handed._own = own
    handed._source = value
    return handed


_PLAIN = (Tensor, torch.nn.Parameter, Handed)
_make_subclass = Tensor._make_subclass


def _hand_items(value: Any, recording: bool) -> Any:
    made: Any
    if isinstance(value, tuple):
        made = HandedTuple(hand(item, recording=recording) for item in value)
    elif type(value) is list:
        made = HandedList(hand(item, recording=recording) for item in value)
    elif type(value) is dict:
        made = HandedDict({key: hand(item, recording=recording) for key, item in value.items()})
    else:
        return value
    made._own = value
    return made


def _editable(t: Tensor) -> Tensor:
    """`t`, or a copy of it where autograd would refuse an in-place edit of the very tensor.

    Those are pieces of one split (`chunk`, `unbind`), and results that their own backward needs (a softmax, a fused
    attention) with views of them.
    """
    base = t._base
    several = base is not None and "MULTI_OUTPUT" in autograd._get_creation_meta(t).name
    return t.clone() if several or _needed(t.grad_fn) or (base is not None and _needed(base.grad_fn)) else t


def _needed(step: Any) -> bool:
    """Whether the backward of this step has saved the step's own result."""
    return any(hasattr(step, name) for name in ("_saved_result", "_saved_output", "_saved_out"))


def settle(handed: Any, original: Any) -> Any:
    """What the forward goes on with after the body had `handed`; `original` if nothing was replaced."""
    if isinstance(handed, Handed):
        if handed.__dict__.get("_source") is not original:  # computed by the body, or another value, and put here
            return handed.as_subclass(Tensor)
        return _recorded(handed, original) if is_grad_enabled() else original
    if isinstance(handed, HandedTuple):
        items = [settle(item, old) for item, old in zip(handed, original, strict=True)]
        return rebuilt(original, items)
    if isinstance(handed, HandedList):
        original[:] = [settle(item, old) for item, old in zip(handed, original, strict=True)]
        return original
    if isinstance(handed, HandedDict):
        original.update({key: settle(item, original[key]) for key, item in handed.items()})
        return original
    return handed


def _recorded(handed: Handed, original: Any) -> Any:
    """What a forward that records gradients goes on with."""
    if _requires_grad(handed):
        return handed.onward()
    own = handed.__dict__.get("_own", original)
    return own if own.requires_grad else original


def onward(new: Any) -> Any:
    """What the body assigned as the forward is to have it: plain tensors, plain containers."""
    if isinstance(new, Handed):
        return new.as_subclass(Tensor)
    if isinstance(new, tuple):
        return rebuilt(new._own if isinstance(new, HandedTuple) else new, [onward(item) for item in new])
    if isinstance(new, list):
        return [onward(item) for item in new]
    if isinstance(new, dict):
        return {key: onward(item) for key, item in new.items()}
    return new


def rebuilt(original: tuple, items: list[Any]) -> Any:
    """A tuple of the original's class with these items; the original itself if they are its own."""
    if all(new is old for new, old in zip(items, original, strict=True)):
        return original
    return type(original)(*items) if hasattr(original, "_fields") else tuple(items)


def checked(place: object, old: Any, new: Any, axes: tuple[str, ...] = ()) -> Any:
    """`new` if it can stand in the place of `old`: the same structure, shapes, dtypes and devices.

    Raises `EditError` that names `place` and its `axes`.
    """
    if isinstance(old, Tensor):
        return _checked_tensor(place, old, new, axes)
    if isinstance(old, tuple | list):
        if not isinstance(new, tuple | list) or len(new) != len(old):
            came = f"{len(new)} items" if isinstance(new, tuple | list) else f"a {type(new).__name__}"
            raise EditError(f"{place} is a {_kind(old)} of {len(old)} items; {came} came. Assign as many items.")
        items = [checked(f"{place}[{i}]", o, n, axes) for i, (o, n) in enumerate(zip(old, new, strict=True))]
        return items if isinstance(old, list) else rebuilt(getattr(old, "_own", old), items)
    if isinstance(old, Mapping) and type(old) in (dict, HandedDict):
        if not isinstance(new, Mapping) or list(new) != list(old):
            raise EditError(f"{place} is a dict of {', '.join(map(repr, old))}; assign one with the same keys.")
        return {key: checked(f"{place}[{key!r}]", o, new[key], axes) for key, o in old.items()}
    return new


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "tuple"


def _checked_tensor(place: object, old: Tensor, new: Any, axes: tuple[str, ...]) -> Tensor:
    if not isinstance(new, Tensor):
        raise EditError(
            f"{place} takes a tensor; a {type(new).__name__} came. To fill it with a number write `[:] = …`, "
            f"or assign `torch.full_like(value, …)`."
        )
    named = f" [{' '.join(axes)}]" if axes and axes != ("…",) else ""
    if new.shape != old.shape:
        raise EditError(
            f"{place}{named} has the shape {list(old.shape)} in this run; a tensor of {list(new.shape)} came. "
            f"Assign the whole value: `.expand({', '.join(map(str, old.shape))})` repeats a smaller one, "
            f"`[:] = …` broadcasts in place."
        )
    if new.dtype != old.dtype:
        raise EditError(f"{place} is {old.dtype}; a tensor of {new.dtype} came. Convert it: `.to({old.dtype})`.")
    if new.device != old.device:
        raise EditError(f'{place} is on {old.device}; a tensor on {new.device} came. Move it: `.to("{old.device}")`.')
    return new
