"""`Cache`: the keys, values and recurrent states of the tokens that a model has already read.

It is the one place of the model that writes in place. It stores what it is given, by layer number; it does not know
what attention is, which rows are padded, or which layers have keys and which have a state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.errors import InputError

State = tuple[Tensor, ...]
"""What a recurrent layer keeps between calls (Qwen3.5: the convolution's window and the delta net's state)."""


class Cache:
    """The past of one batch: per attention layer the keys and values, per recurrent layer its state.

    A forward calls `update` once per attention layer (or `state` and `set_state` once per recurrent one), all at the
    same place, and `advance` once at its end. A forward that is dropped on the way leaves the cache as it was: keys
    written but not advanced over are overwritten by the next forward, and a state counts from `advance` on.

    `capacity` is a number of tokens. Buffers [batch kv_heads capacity head_dim] are allocated at the first update, with
    the dtype and device of what comes, and doubled when they are full.

    With gradients enabled nothing is written in place, which autograd could not follow: the past and the new
    tokens are concatenated, at the cost of a copy per call.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        if layers < 1 or capacity < 1:
            raise InputError(
                f"A cache needs at least one layer and room for one token; got layers={layers}, capacity={capacity}."
            )
        self.layers, self.capacity = layers, capacity
        self.length = 0
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._states: list[State | None] = [None] * layers
        self._staged: dict[int, State] = {}

    @property
    def batch(self) -> int | None:
        """Number of rows; None while nothing is stored."""
        return next((t.shape[0] for t in self._tensors()), None)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Keys of every layer that has some, then values [batch kv_heads capacity head_dim], room to come included."""
        return tuple(t for t in (*self._keys, *self._values) if t is not None)

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps a state, so that the cache cannot be cropped to a part of its length."""
        return any(state is not None for state in self._states)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new tokens to a layer: [batch kv_heads new head_dim] in, [batch kv_heads length+new head_dim] out.

        The returned tensors are views of the cache: an edit in place is there in the next call too. Raises
        `InputError` when the batch, heads, dtype or device differ from what the layer holds.
        """
        self._keys[layer], all_keys = self._extend(self._keys[layer], keys)
        self._values[layer], all_values = self._extend(self._values[layer], values)
        return all_keys, all_values

    def replace(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Takes what `update` returned back after an edit: what was edited in place is there already, the rest is kept.

        [batch kv_heads length+new head_dim], as `update` returned them.
        """
        self._keys[layer] = self._kept(self._keys[layer], keys)
        self._values[layer] = self._kept(self._values[layer], values)

    def advance(self, count: int) -> None:
        """Counts `count` tokens as read; called once, at the end of a forward."""
        self.length += count
        for layer, state in self._staged.items():
            self._states[layer] = state
        self._staged.clear()

    def state(self, layer: int) -> State | None:
        """A recurrent layer's state after `length` tokens; None before the first."""
        return self._states[layer]

    def set_state(self, layer: int, state: State) -> None:
        """Replaces a recurrent layer's state; it counts from the next `advance` on."""
        self._staged[layer] = state

    def crop(self, length: int) -> None:
        """Drops all tokens from position `length` on.

        Raises `InputError` for a length beyond the cache's, and for a part of it when a layer keeps a recurrent state,
        which has no way back: `crop(0)` empties the cache, a `clone` taken earlier is the way to keep a state.
        """
        if not 0 <= length <= self.length:
            raise InputError(f"A cache can be cropped to 0..{self.length} tokens, as many as it holds; got {length}.")
        if 0 < length < self.length and self.recurrent:
            raise InputError(
                f"A recurrent state cannot be taken back from {self.length} to {length} tokens. Keep a `clone()` from "
                f"before, or `crop(0)` and read the tokens again."
            )
        self.length = length
        self._staged.clear()
        if length == 0:
            self._states = [None] * self.layers

    def clone(self) -> Cache:
        """A copy that shares no memory with this one."""
        return self._mapped(lambda tensor: tensor.clone())

    def select(self, rows: Sequence[int] | Tensor) -> Cache:
        """A new cache with these rows, in this order; a row may be taken more than once.

        `rows` are row numbers, or a boolean tensor [batch].
        """
        index = torch.as_tensor(rows)
        if index.dtype == torch.bool:
            index = index.nonzero().flatten()
        index = index.long()
        have = self.batch
        if have is not None and index.numel() and not (-have <= int(index.min()) and int(index.max()) < have):
            raise InputError(f"Rows must be within 0..{have - 1}, the rows of this cache; got {index.tolist()}.")
        return self._mapped(lambda tensor: tensor[index.to(tensor.device)])

    def shared(self, rows: int, length: int | None = None) -> SharedPast:
        """This one row's past, or its first `length` tokens, for `rows` rows to go on from."""
        return SharedPast(self, rows, length)

    def memory(self) -> int:
        """Bytes allocated, room for tokens to come included."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())

    def _extend(self, buffer: Tensor | None, new: Tensor) -> tuple[Tensor | None, Tensor]:
        """The buffer with `new` behind the tokens counted so far, and the view of all of them."""
        start, end = self.length, self.length + new.shape[2]
        if buffer is None:
            if start:
                raise InputError(f"This layer has no keys for the {start} tokens that the cache counts as read.")
            if torch.is_grad_enabled():
                return new, new
            self.capacity = _room(self.capacity, end)
            buffer = new.new_empty(*new.shape[:2], self.capacity, new.shape[3])
        self._check(buffer, new)
        if torch.is_grad_enabled():
            joined = torch.cat((_ordinary(buffer[:, :, :start]), new), dim=2)
            return joined, joined
        if end > buffer.shape[2]:
            self.capacity = _room(self.capacity, end)
            larger = buffer.new_empty(*buffer.shape[:2], self.capacity, buffer.shape[3])
            larger[:, :, :start] = buffer[:, :, :start]
            buffer = larger
        buffer = _ordinary(buffer)
        buffer.narrow(2, start, end - start).copy_(new)
        return buffer, buffer.narrow(2, 0, end)

    @staticmethod
    def _kept(buffer: Tensor | None, edited: Tensor) -> Tensor:
        """The buffer with `edited` in it; `edited` itself where autograd has to follow."""
        if buffer is None or torch.is_grad_enabled():
            return edited
        view = buffer[:, :, : edited.shape[2]]
        if view.data_ptr() != edited.data_ptr():
            view.copy_(edited)
        return buffer

    @staticmethod
    def _check(buffer: Tensor, new: Tensor) -> None:
        """Raises `InputError` unless `new` can follow what the buffer holds."""
        (rows, heads, _, width), (new_rows, new_heads, _, new_width) = buffer.shape, new.shape
        same = rows == new_rows and heads == new_heads and width == new_width
        if not same or buffer.dtype != new.dtype or buffer.device != new.device:
            raise InputError(
                f"A cache goes on with the batch it began with: it holds [batch kv_heads tokens head_dim] "
                f"{[*buffer.shape[:2], '…', buffer.shape[3]]} in {buffer.dtype} on {buffer.device}; got "
                f"{list(new.shape)} in {new.dtype} on {new.device}. Use a new cache, or `select` the rows that go on."
            )

    def _mapped(self, change) -> Cache:
        """A new cache with `change` applied to every stored tensor (gradients do not follow)."""
        copy = Cache(self.layers, self.capacity)
        copy.length = self.length
        with torch.no_grad():
            copy._keys = [None if t is None else change(t) for t in self._keys]
            copy._values = [None if t is None else change(t) for t in self._values]
            copy._states = [None if s is None else tuple(change(t) for t in s) for s in self._states]
        return copy

    def _tensors(self):
        """Every stored tensor."""
        yield from (tensor for tensor in (*self._keys, *self._values) if tensor is not None)
        for state in self._states:
            yield from state or ()


class SharedPast(Cache):
    """The past of one row, read by `rows` rows at once: what they add is used and not kept.

    So many continuations of one prompt, or of its first `length` tokens, run side by side, again and again, with no
    copy of it each. It looks into `source`, which may go on growing. Raises `InputError` for a source of several rows,
    and for a part of one with recurrent states: share that one when it has just read so many tokens.
    """

    def __init__(self, source: Cache, rows: int, length: int | None = None) -> None:
        super().__init__(source.layers, source.capacity)
        self.rows, self.length = rows, source.length if length is None else length
        if source.batch not in (None, 1) or not 0 <= self.length <= source.length:
            raise InputError(
                f"A shared past is that of one row, 0..{source.length} tokens of it; got {self.length} tokens of "
                f"{source.batch} rows."
            )
        if 0 < self.length < source.length and source.recurrent:
            raise InputError(
                f"A recurrent state after {self.length} of {source.length} tokens is no longer there. Share the past "
                f"when it has read {self.length} tokens."
            )
        if self.length:
            self._keys = [None if t is None else t[:, :, : self.length] for t in source._keys]
            self._values = [None if t is None else t[:, :, : self.length] for t in source._values]
            self._states = list(source._states)

    def state(self, layer: int) -> State | None:
        """A recurrent layer's state, the same for every row."""
        resident = self._states[layer]
        return None if resident is None else tuple(t.expand(self.rows, *t.shape[1:]) for t in resident)

    def set_state(self, layer: int, state: State) -> None:
        """Keeps nothing."""

    def replace(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keeps nothing."""

    def advance(self, count: int) -> None:
        """Keeps nothing: the next forward follows the same past."""

    def _extend(self, buffer: Tensor | None, new: Tensor) -> tuple[Tensor | None, Tensor]:
        if buffer is None:
            return None, new
        past = buffer.expand(self.rows, *buffer.shape[1:])
        self._check(past, new)
        return buffer, torch.cat((past, new), 2)


class FixedCache(Cache):
    """A cache that goes on from another one in tensors that neither move nor grow, so that a step can be recorded.

    A forward of one token writes at the place that `place` [1] holds and is given the keys of the whole capacity; an
    attention mask [batch capacity] says which of them are tokens. `place` is moved by the caller, as a recorded step
    cannot count. Raises `InputError` for a source that is empty, or that has recurrent states, which are no places.
    """

    def __init__(self, source: Cache) -> None:
        super().__init__(source.layers, source.capacity)
        resident = source.buffers
        if source.recurrent or len(resident) != 2 * source.layers:
            raise InputError("A fixed cache goes on from keys and values of every layer; this one lacks some.")
        self.length = source.length
        self._keys, self._values = source._keys, source._values
        for tensor in resident:  # what was never written may be anything, and a weight of zero does not hide NaN
            tensor[:, :, self.length :].zero_()
        self.position = torch.tensor([self.length], device=resident[0].device)

    def _extend(self, buffer: Tensor | None, new: Tensor) -> tuple[Tensor | None, Tensor]:
        assert buffer is not None
        self._check(buffer, new)
        buffer.index_copy_(2, self.position, new)
        return buffer, buffer

    def advance(self, count: int) -> None:
        """Counts nothing: the caller moves `place`."""


def _room(capacity: int, needed: int) -> int:
    """The capacity, doubled until `needed` tokens fit."""
    while capacity < needed:
        capacity *= 2
    return capacity


def _ordinary(tensor: Tensor) -> Tensor:
    """The tensor, copied if it was made in inference mode and is to be used outside: torch forbids writing to it."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor
