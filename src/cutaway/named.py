"""`Named`, the base class of every module of the model, and `Value`, the declaration of a named value.

A forward says ``x = self.value("mlp_output", x)`` where it computes a value, and that is all a model file knows of
tracing. Without an observer the call returns its argument. What observers and readers do is the business of `trace`;
this module knows neither that nor anything about Qwen.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as _torch_module

from cutaway.errors import EditError, NoRunError, Unavailable, UnknownValue
from cutaway.observe import current_observer, reader

_GLOBAL_HOOKS = (
    _torch_module._global_forward_pre_hooks,
    _torch_module._global_forward_hooks,
    _torch_module._global_backward_pre_hooks,
    _torch_module._global_backward_hooks,
)
"""Torch's tables of hooks on every module; torch changes them in place."""


class Value:
    """A named value of a module: declared on the class, computed in its forward, read and assigned as an attribute.

    - `axes`: names of the axes as served, such as ``"batch heads seq head_dim"``; ``1`` is an axis of size one.
    - `doc`: one phrase: what it is and where it is computed.
    - `add_batch_axis`: the forward's tensor lacks the first axis; it is served as a view with that axis in front, so
      that an in-place edit lands.
    - `writable`: whether it may be edited or assigned.
    - `from_inputs`: it comes from the inputs, and can be read at any moment of a run.
    - `is_list`: a list of tensors with these axes each (one per image, frame or window).
    - `computed`: computed only on request; the forward asks `wants`. Its own module's forward must name it.
    - `dtype`: the dtype's name where it is not that of the weights, such as ``"int64"``.
    - `why_absent`: why a forward may end without it, for the message of that error.
    """

    name: str = ""
    key: str = ""
    """The name under which the forward passes it: `input` is passed with all arguments, as `inputs`."""
    declared: str = ""
    """The name under which the class declares it; for one position of a `ValueAt`, the name of the `ValueAt`."""

    def __init__(
        self,
        axes: str,
        doc: str,
        *,
        add_batch_axis: bool = False,
        writable: bool = True,
        from_inputs: bool = False,
        is_list: bool = False,
        computed: bool = False,
        dtype: str | None = None,
        why_absent: str = "",
    ) -> None:
        self.axes, self.doc = tuple(axes.split()), doc
        self.dtype, self.why_absent = dtype, why_absent
        self.add_batch_axis, self.writable, self.from_inputs = add_batch_axis, writable, from_inputs
        self.is_list, self.computed = is_list, computed

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.key, self.declared = name, "inputs" if name == "input" else name, name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} [{' '.join(self.axes)}]: {self.doc}>"

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        unavailable = module.__dict__.get("_unavailable")  # inlined from `check`: every read comes through here
        if unavailable is not None and self.declared in unavailable:
            self.check(module)
        run = reader.get()
        if run is None:
            raise NoRunError(
                f"`{self.name}` exists only while the model runs, and no run is open here. Read it inside "
                f"`with model.trace(...):` or, in a generation, `for step in run:`; or by address with "
                f"`model.run(..., read=[...])`."
            )
        return run.read(module, self)

    def __set__(self, module: nn.Module, new: Any) -> None:
        self.check(module)
        self.check_writable()
        run = reader.get()
        if run is None:
            raise NoRunError(
                f"`{self.name}` can be assigned only while the model runs, and no run is open here. Assign "
                f"it inside `with model.trace(...):` or `for step in run:`, or pass `edit={{...}}` to `model.run`."
            )
        run.write(module, self, new)

    def check(self, module: nn.Module) -> None:
        """Raise `Unavailable` when this module does not have the value."""
        reason = self.why_unavailable(module)
        if reason is not None:
            raise Unavailable(_unavailable_message(self.name, reason))

    def check_writable(self) -> None:
        """Raise `EditError` when the value is read-only."""
        if not self.writable:
            raise EditError(f"`{self.name}` is read-only ({self.doc}). Edit a value that the model computes from.")

    def why_unavailable(self, module: nn.Module) -> str | None:
        """Why this module does not have the value; None when it has."""
        unavailable = module.__dict__.get("_unavailable")
        return None if unavailable is None else unavailable.get(self.declared)


class ValueAt(Value):
    """A value for each position of the sequence, ``state_after(t)``, computed only for the positions that are read.

    `at` returns the `Value` of one position, named ``"state_after(5)"``, which works as any other value.
    """

    def __init__(self, axes: str, doc: str, *, writable: bool = True, dtype: str | None = None) -> None:
        super().__init__(axes, doc, writable=writable, computed=True, dtype=dtype)

    def at(self, index: int) -> Value:
        """The value of position `index`; negative positions count from the end."""
        one = Value(" ".join(self.axes), self.doc, writable=self.writable, computed=True, dtype=self.dtype)
        one.name = one.key = f"{self.name}({int(index)})"
        one.declared = self.name
        return one

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        self.check(module)
        return PositionValues(self, module)

    def __set__(self, module: nn.Module, new: Any) -> None:
        self.check(module)
        raise EditError(f"`{self.name}` has a value for each position. Assign one with `{self.name}.set(t, new)`.")


class PositionValues:
    """What a module's `ValueAt` reads as: calling it with a position reads the value there, `set` replaces it."""

    def __init__(self, value: ValueAt, module: nn.Module) -> None:
        self._value, self._module = value, module

    def __call__(self, index: int) -> Any:
        """The value at position `index`; negative positions count from the end."""
        return self._value.at(index).__get__(self._module)

    def set(self, index: int, new: Any) -> None:
        """Replace the value at position `index`."""
        self._value.at(index).__set__(self._module, new)


class Alias:
    """A second name for a part of the tree, or for a value of a part: ``layers = Alias("language_model.layers")``."""

    def __init__(self, path: str) -> None:
        self.path = tuple(path.split("."))

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Any:
        if module is None:
            return self
        part: Any = module
        for name in self.path:
            part = getattr(part, name)
        return part

    def __set__(self, module: nn.Module, new: Any) -> None:
        part: Any = module
        for name in self.path[:-1]:
            part = getattr(part, name)
        setattr(part, self.path[-1], new)


_declared: WeakKeyDictionary[type, Mapping[str, Value]] = WeakKeyDictionary()  # by class: declarations never change


def values_of(kind: type) -> Mapping[str, Value]:
    """Every value declared on a module class and its bases, by name, `input`, `inputs` and `output` included."""
    values = _declared.get(kind)
    if values is None:
        values = {name: v for base in reversed(kind.__mro__) for name, v in vars(base).items() if isinstance(v, Value)}
        _declared[kind] = values
    return values


def names_of(module: nn.Module) -> list[str]:
    """Every name that a module answers to: its values, its aliases and its parts."""
    aliases = [name for base in type(module).__mro__ for name, kind in vars(base).items() if isinstance(kind, Alias)]
    return [*values_of(type(module)), *aliases, *(name for name, _ in module.named_children())]


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence with the names nearest to a misspelt one; empty when none is near."""
    near = difflib.get_close_matches(name.lower(), list(names), n=3, cutoff=0.5)
    return f" Nearest: {', '.join(f'`{n}`' for n in near)}." if near else ""


def _unavailable_message(name: str, reason: str) -> str:
    return f"`{name}` is unavailable here: {reason}"


def _may_be_a_value(name: str, new: Any) -> bool:
    number = isinstance(new, int | float) and not isinstance(new, bool)
    return not name.startswith("_") and (number or isinstance(new, torch.Tensor | list | tuple))


def unknown(module: nn.Module, name: str) -> UnknownValue:
    """The error for a name that `module` does not have."""
    if not isinstance(module, Named) and name in values_of(Named):
        return UnknownValue(
            f"`{type(module).__name__}` is a plain torch module, which no run observes, so it has no `{name}`. Derive "
            f"its class from `cutaway.named.Named` before `nn.Module`, or read the values of the part that it is in."
        )
    parts = (path for path, part in module.named_modules() if path and name in values_of(type(part)))
    nested = next((f" Its part `{path}` has it: `{path}.{name}`." for path in parts), None)
    return UnknownValue(
        f"`{type(module).__name__}` has no value or part `{name}`.{nested or nearest(name, names_of(module))} "
        f"`model.values()` lists every value, `print(model)` the tree."
    )


def _marks_hooked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of `nn.Module` after which the module must be run by torch's own call."""

    @functools.wraps(method)
    def marked(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_hooked"] = True
        return method(self, *args, **kwargs)

    return marked


class Named(nn.Module):
    """A module whose values have names. Subclasses declare `Value`s and call `value` where they are computed."""

    _hooked = False
    """Whether a hook was ever set on this module, or its call compiled. Looking into torch's five tables of hooks at
    every call would cost more than the call."""

    register_forward_hook = _marks_hooked(nn.Module.register_forward_hook)
    register_forward_pre_hook = _marks_hooked(nn.Module.register_forward_pre_hook)
    register_backward_hook = _marks_hooked(nn.Module.register_backward_hook)
    register_full_backward_hook = _marks_hooked(nn.Module.register_full_backward_hook)
    register_full_backward_pre_hook = _marks_hooked(nn.Module.register_full_backward_pre_hook)
    compile = _marks_hooked(nn.Module.compile)

    input = Value("…", "the module's first argument, in the module's own layout")
    inputs = Value("…", "the module's arguments, `(args, kwargs)`")
    output = Value("…", "what the module returns, in the module's own layout")

    def value(self, name: str, tensor: Any) -> Any:
        """Name a value where it is computed. Returns what the forward must go on with: an edit may have replaced it."""
        current = current_observer()
        if current is None:
            return tensor
        if self in current.value_modules:
            return current.on_value(self, name, tensor)
        log = current.log
        if log is not None:
            log.named.append(self)
            log.named.append(name)
        return tensor

    def wants(self, *names: str) -> bool:
        """Whether one of these computed values is read or edited, so that the forward has to compute it."""
        current = current_observer()
        return False if current is None else current.wants(self, names)

    def mark_unavailable(self, name: str, reason: str) -> None:
        """Declare that this instance lacks a value or a part that its class has, and why."""
        self.__dict__.setdefault("_unavailable", {})[name] = reason

    def __getattr__(self, name: str) -> Any:
        for table in ("_modules", "_parameters", "_buffers"):  # the fast path of a forward
            entries = self.__dict__.get(table)
            if entries is not None and name in entries:
                return entries[name]
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            declared = getattr(type(self), name, None)
            if isinstance(declared, Value | Alias | property):  # its own error led here: raise that one
                return declared.__get__(self, type(self))
            reason = self.__dict__.get("_unavailable", {}).get(name)
            raise (unknown(self, name) if reason is None else Unavailable(_unavailable_message(name, reason))) from None

    def __setattr__(self, name: str, new: Any) -> None:
        declared = getattr(type(self), name, None)
        if isinstance(declared, Value | Alias):  # nn.Module would register an assigned Parameter or Module instead
            declared.__set__(self, new)
            return
        run = reader.get()
        if run is not None and _may_be_a_value(name, new) and not hasattr(self, name) and run.contains(self):
            raise unknown(self, name)  # a misspelt value, which would otherwise be kept as a new attribute
        super().__setattr__(name, new)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward, observed if there is an observer."""
        current = current_observer()
        if current is None:
            return (super().__call__ if self._hooked or any(_GLOBAL_HOOKS) else self.forward)(*args, **kwargs)
        observed = current.call_modules
        if observed is not None and self in observed:
            args, kwargs = current.on_call(self, args, kwargs)
        elif (log := current.log) is not None:
            log.entered.append(self)
        if not self._hooked and not any(_GLOBAL_HOOKS):
            output = self.forward(*args, **kwargs)
        elif self._compiled_call_impl is None:
            output = super().__call__(*args, **kwargs)
        else:  # a compiled call would skip the named values: run it eagerly, with its hooks
            output = self._call_impl(*args, **kwargs)
        observed = current.call_modules  # looked up again: the body may have read this module meanwhile
        if observed is not None and self in observed:
            return current.on_return(self, output)
        if (log := current.log) is not None:
            log.left.append(self)
        return output
