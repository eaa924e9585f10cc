"""`LateEdits`: notices in-place edits of tensors that the forward has already gone on from.

Such an edit would act in part (where the forward still uses the tensor) or not at all, and no number would tell. Torch
counts the in-place edits of a tensor, its views and aliases; this module compares the counts. It holds no tensor alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _autograd as autograd  # type: ignore[attr-defined]

from cutaway.errors import EditError
from cutaway.named import Value

RECENT = 256
"""How many tensors are looked at before every read; all are when the run is left."""


class _Entry(NamedTuple):
    counter: Tensor  # an empty tensor with the count of the tensor that is watched
    version: int
    module: nn.Module
    name: str
    read_only: str  # why an edit could never act
    storage: int | None  # where the numbers lie, if the forward's own in-place edits count too


class LateEdits:
    """The tensors of one run that must not be changed in place any more, with their counts of edits."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(self, module: nn.Module, value: Value, tensors: Iterable[Tensor], *, recording: bool = False) -> None:
        """From now on these tensors, which the body holds of `value`, must not change.

        `recording`: whether the forward records gradients, and so has the same tensors.
        """
        reason = "" if value.writable else value.doc
        for tensor in tensors:
            if tensor.is_inference() or tensor.layout is not torch.strided:  # torch counts no edits of the former
                continue
            storage = tensor.untyped_storage().data_ptr() if recording else None
            self._entries.append(_Entry(_counter(tensor), tensor._version, module, value.name, reason, storage))

    def forward_has_run(self) -> None:
        """What the forward itself has changed in place since is no edit of the body."""
        for i, entry in enumerate(self._entries):
            if entry.storage is not None and entry.counter._version != entry.version:
                self._entries[i] = entry._replace(version=entry.counter._version)

    def first(self, current: Iterable[Tensor] = (), *, everything: bool = True) -> _Entry | None:
        """The first tensor that was changed; None if none was.

        `current` are tensors that may be changed now. One that shares their storage is among them by another name,
        where the forward's own edits count.
        """
        for entry in self._entries if everything else self._entries[-RECENT:]:
            if entry.counter._version == entry.version:
                continue
            if entry.storage is None or all(entry.storage != t.untyped_storage().data_ptr() for t in current):
                return entry
        return None

    def clear(self) -> None:
        """Forget every tensor."""
        self._entries.clear()


def late_edit(entry: _Entry, address: str, moment: str) -> EditError:
    """The error for a tensor that was changed too late; `moment` says where the forward was."""
    if entry.read_only:
        return EditError(
            f"{address} was changed in place, and it is read-only ({entry.read_only}): the model would not see the "
            f"edit. {moment} Edit another value, or change a `.clone()`. See docs/errors/edit.md."
        )
    return EditError(
        f"{address} was changed in place after the forward had gone on from it: such an edit acts in part or not at "
        f"all. {moment} Edit a value before the next read, or change a `.clone()`. See docs/errors/edit.md."
    )


def _counter(tensor: Tensor) -> Tensor:
    """An empty tensor that shares the count of in-place edits, and keeps no numbers alive."""
    version = tensor._version
    with torch._C.DisableTorchFunctionSubclass():
        counter = Tensor._make_subclass(Tensor, tensor)
    counter.set_()  # type: ignore[call-overload]  # counts as an edit itself
    autograd._unsafe_set_version_counter((counter,), (version,))
    return counter
