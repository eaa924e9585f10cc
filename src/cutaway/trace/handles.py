"""What a trace body holds of a value: the model's own tensor under a class with `save`, and containers of such tensors.

`wrap` makes it, `resolve` gives what the forward goes on with afterwards, `validate_replacement` checks an assignment.
This module does not know which value it is.

Gradients: of the forward's tensor `t` the body holds an alias `h`. A forward that records gradients goes on with an
alias of `h`, so that `h` and `t` are both upstream of the logits, and `retain_grad`, `torch.autograd.grad` and in-place
edits work on either. A forward that records none goes on with `t` itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _autograd as autograd  # type: ignore[attr-defined]

from cutaway.errors import EditError


class TracedTensor(Tensor):
    """A value as the body holds it, and whatever is computed from it: a tensor with `save`."""

    _source: Tensor  # the forward's tensor; absent on what the body computes
    _own: Tensor  # what `save` gives, upstream of this alias, where that is not `_source`
    _downstream: Callable[[], Tensor | None]

    def save(self) -> Tensor:
        """The plain tensor: the model's own for a value, an alias for something computed."""
        state = self.__dict__
        if "_source" not in state:
            return self.as_subclass(Tensor)
        own = state["_own"] if "_own" in state else state["_source"]
        if not own.requires_grad and _requires_grad(self):  # the body made a leaf of the handle
            return self.downstream()
        return own.as_subclass(Tensor) if isinstance(own, TracedTensor) else own

    def downstream(self) -> Tensor:
        """The alias of this handle with which the forward goes on; the same one for as long as somebody holds it."""
        alias = self.__dict__.get("_downstream", lambda: None)()
        if alias is None:
            alias = self.as_subclass(Tensor)
            self._downstream = ref(alias)  # the alias holds its base: a strong reference would be a cycle
        return alias

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.save(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.save().__reduce_ex__(protocol)


def _requires_grad(handle: TracedTensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():  # otherwise this question costs more than the rest of a read
        return handle.requires_grad


class _Saved:
    """The `save` of a tensor of a foreign class, which cannot be wrapped in ours."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Tensor:
        return self.tensor


class TracedTuple(tuple):
    """A tuple of traced values."""

    _own: tuple

    def save(self) -> Any:
        """The plain tuple, its tensors the model's own."""
        return rebuild_tuple(self._own, [unwrap(item) for item in self])

    def __getattr__(self, name: str) -> Any:
        """What the model's tuple has beside its items: the fields of a named tuple, the methods of a `torch.Size`."""
        if name.startswith("__") or "_own" not in self.__dict__:
            raise AttributeError(name)
        fields = getattr(self._own, "_fields", ())
        return self[fields.index(name)] if name in fields else getattr(self._own, name)


class TracedList(list):
    """A list of traced values. Items can be edited in place and assigned; the length is fixed."""

    _own: list

    def save(self) -> list:
        """The plain list, its tensors the model's own."""
        return [unwrap(item) for item in self]

    def __setitem__(self, index: Any, new: Any) -> None:
        if isinstance(index, slice):
            new = list(new)
            indices = range(*index.indices(len(self)))
            if len(new) != len(indices):
                raise EditError(
                    f"A list value keeps its length: this slice has {len(indices)}; got {len(new)}. Assign as many."
                )
            for i, item in zip(indices, new, strict=True):
                self[i] = item
            return
        old = self[index]
        super().__setitem__(index, new if new is old else validate_replacement(f"item {index}", old, new))

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise EditError(
            f"A list value keeps its length of {len(self)}. Assign its items (`values[k] = …`) or edit them in place."
        )

    _refuse: Any = _fixed
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __delitem__ = __iadd__ = __imul__ = _refuse


class TracedDict(dict):
    """A dict of traced values. Items can be edited in place and assigned; the keys are fixed."""

    _own: dict

    def save(self) -> dict:
        """The plain dict, its tensors the model's own."""
        return {key: unwrap(item) for key, item in self.items()}

    def __setitem__(self, key: Any, new: Any) -> None:
        if key not in self:
            raise EditError(
                f"A dict value keeps its keys {', '.join(map(repr, self))}; got {key!r}. Assign one of them."
            )
        old = self[key]
        super().__setitem__(key, new if new is old else validate_replacement(f"item {key!r}", old, new))

    def update(self, *others: Any, **items: Any) -> None:
        """Assign several items."""
        for key, item in dict(*others, **items).items():
            self[key] = item

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise EditError(f"A dict value keeps its keys {', '.join(map(repr, self))}. Assign its items.")

    _refuse: Any = _fixed
    pop = popitem = clear = setdefault = __delitem__ = __ior__ = _refuse


def unwrap(value: Any) -> Any:
    """What `save` gives for a traced value; anything else as it is."""
    return value.save() if isinstance(value, TracedTensor | TracedTuple | TracedList | TracedDict) else value


def wrap(value: Any, *, recording: bool) -> Any:
    """`value` as the body is to hold it; to be called in the forward's torch state.

    `recording`: whether the forward records gradients.
    """
    if type(value) not in _PLAIN:
        if not isinstance(value, Tensor):
            return _wrap_container(value, recording)
        if not hasattr(value, "save"):
            value.save = _Saved(value)  # type: ignore[attr-defined]
        return value
    if not recording:
        own = value.data  # with a count of in-place edits of its own, which the forward's do not touch
        handle = _make_subclass(TracedTensor, own)
        handle._own = own
    elif value.requires_grad:
        own = _editable(value)
        handle = own.as_subclass(TracedTensor)
        handle._own = own
    else:  # an alias apart from the graph: what the body differentiates begins at its handle
        handle = _make_subclass(TracedTensor, value)
    handle._source = value
    return handle


_PLAIN = (Tensor, torch.nn.Parameter, TracedTensor)
_make_subclass = Tensor._make_subclass


def _wrap_container(value: Any, recording: bool) -> Any:
    wrapped: Any
    if isinstance(value, tuple):
        wrapped = TracedTuple(wrap(item, recording=recording) for item in value)
    elif type(value) is list:
        wrapped = TracedList(wrap(item, recording=recording) for item in value)
    elif type(value) is dict:
        wrapped = TracedDict({key: wrap(item, recording=recording) for key, item in value.items()})
    else:
        return value
    wrapped._own = value
    return wrapped


def _editable(t: Tensor) -> Tensor:
    """`t`, or a copy of it where autograd would refuse an in-place edit of `t` itself.

    It refuses for the pieces of one split (`chunk`, `unbind`), and for results that their own backward needs (a
    softmax, a fused attention) with views of them.
    """
    base = t._base
    is_piece = base is not None and "MULTI_OUTPUT" in autograd._get_creation_meta(t).name
    return (
        t.clone() if is_piece or _needs_result(t.grad_fn) or (base is not None and _needs_result(base.grad_fn)) else t
    )


def _needs_result(node: Any) -> bool:
    """Whether this node's backward uses the node's own result."""
    return any(hasattr(node, name) for name in ("_saved_result", "_saved_output", "_saved_out"))


def resolve(handle: Any, original: Any) -> Any:
    """What the forward goes on with, given what the body holds; `original` if nothing was replaced."""
    if isinstance(handle, TracedTensor):
        if handle.__dict__.get("_source") is not original:  # computed by the body, or another value, and assigned here
            return handle.as_subclass(Tensor)
        return _resolve_recorded(handle, original) if is_grad_enabled() else original
    if isinstance(handle, TracedTuple):
        items = [resolve(item, old) for item, old in zip(handle, original, strict=True)]
        return rebuild_tuple(original, items)
    if isinstance(handle, TracedList):
        original[:] = [resolve(item, old) for item, old in zip(handle, original, strict=True)]
        return original
    if isinstance(handle, TracedDict):
        original.update({key: resolve(item, original[key]) for key, item in handle.items()})
        return original
    return handle


def _resolve_recorded(handle: TracedTensor, original: Any) -> Any:
    """What a forward that records gradients goes on with."""
    if _requires_grad(handle):
        return handle.downstream()
    own = handle.__dict__.get("_own", original)
    return own if own.requires_grad else original


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of what the body holds, those that count in-place edits of them."""
    if isinstance(value, Tensor):
        state = value.__dict__
        yield state["_own"] if "_own" in state else state.get("_source", value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def aliased(value: Any) -> Any:
    """The forward's value as tensors with their own counts of in-place edits; under gradients, as it is."""
    if is_grad_enabled():
        return value
    if isinstance(value, Tensor):
        return value.data
    if isinstance(value, tuple):
        return rebuild_tuple(value, [aliased(item) for item in value])
    if type(value) is list:
        return [aliased(item) for item in value]
    return {key: aliased(item) for key, item in value.items()} if type(value) is dict else value


def unwrap_for_forward(new: Any) -> Any:
    """What the body assigned, as the forward takes it: plain tensors and plain containers."""
    if isinstance(new, Tensor):
        new = new.as_subclass(Tensor) if isinstance(new, TracedTensor) else new
        return aliased(new) if type(new) is Tensor else new
    if isinstance(new, tuple):
        original = new._own if isinstance(new, TracedTuple) else new
        return rebuild_tuple(original, [unwrap_for_forward(item) for item in new])
    if isinstance(new, list):
        return [unwrap_for_forward(item) for item in new]
    if isinstance(new, dict):
        return {key: unwrap_for_forward(item) for key, item in new.items()}
    return new


def rebuild_tuple(original: tuple, items: list[Any]) -> Any:
    """A tuple of the original's class with these items; the original itself if they are its own."""
    if all(new is old for new, old in zip(items, original, strict=True)):
        return original
    return type(original)(*items) if hasattr(original, "_fields") else tuple(items)


def validate_replacement(name: object, old: Any, new: Any, axes: tuple[str, ...] = ()) -> Any:
    """`new` if it can replace `old`: the same structure, shapes, dtypes and devices.

    Raises `EditError` with `name`, the value's address, and its `axes`.
    """
    if isinstance(old, Tensor):
        return _validate_tensor(name, old, new, axes)
    if isinstance(old, tuple | list):
        kind = "list" if isinstance(old, list) else "tuple"
        if not isinstance(new, tuple | list) or len(new) != len(old):
            got = f"{len(new)} items" if isinstance(new, tuple | list) else f"a {type(new).__name__}"
            raise EditError(f"{name} is a {kind} of {len(old)} items; got {got}. Assign as many items.")
        items = [
            validate_replacement(f"{name}[{i}]", o, n, axes) for i, (o, n) in enumerate(zip(old, new, strict=True))
        ]
        return items if isinstance(old, list) else rebuild_tuple(getattr(old, "_own", old), items)
    if isinstance(old, Mapping) and type(old) in (dict, TracedDict):
        keys = ", ".join(map(repr, old))
        if not isinstance(new, Mapping) or list(new) != list(old):
            got = f"the keys {', '.join(map(repr, new))}" if isinstance(new, Mapping) else f"a {type(new).__name__}"
            raise EditError(f"{name} is a dict of {keys}; got {got}. Assign a dict with the same keys.")
        return {key: validate_replacement(f"{name}[{key!r}]", o, new[key], axes) for key, o in old.items()}
    return new


def _validate_tensor(name: object, old: Tensor, new: Any, axes: tuple[str, ...]) -> Tensor:
    if not isinstance(new, Tensor):
        raise EditError(
            f"{name} takes a tensor; got a {type(new).__name__}. To fill it with a number write `[:] = …`, "
            f"or assign `torch.full_like(value, …)`."
        )
    if new.layout != old.layout or new.is_nested or new.is_quantized != old.is_quantized:
        kind = "nested" if new.is_nested else "quantized" if new.is_quantized else str(new.layout)
        raise EditError(f"{name} is a dense tensor; got a {kind} one. Convert it: `.to_dense()` or `.dequantize()`.")
    axis_names = f" [{' '.join(axes)}]" if axes and axes != ("…",) else ""
    if new.shape != old.shape:
        raise EditError(
            f"{name}{axis_names} has the shape {list(old.shape)} in this run; got {list(new.shape)}. Assign the whole "
            f"value: `.expand({', '.join(map(str, old.shape))})` repeats a smaller one, `[:] = …` broadcasts in place."
        )
    if new.dtype != old.dtype:
        raise EditError(f"{name} is {old.dtype}; got {new.dtype}. Convert it: `.to({old.dtype})`.")
    if new.device != old.device:
        raise EditError(f'{name} is on {old.device}; got a tensor on {new.device}. Move it: `.to("{old.device}")`.')
    return new
