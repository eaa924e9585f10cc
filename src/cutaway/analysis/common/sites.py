"""A value as a table of rows, one a token or patch, and which rows a prompt's tokens have in it.

Techniques that learn from values, or write into them, want [rows width] whatever the value's own axes are: the text
model's have a row for each position, the projector's for each image token, the vision encoder's for each patch. It
knows axes and geometry; what the numbers mean is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.analysis.common.prompts import geometry
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.addresses import find

SEQ, TOKENS, VISUAL, PATCHES = "seq", "tokens", "image_tokens", "patches"
"""What a row is: a position, an image token (images before videos), one in sequence order, a patch."""

_IMAGE_ALONE, _VIDEO_ALONE = "vision.image_features", "vision.video_features"


@dataclass(frozen=True)
class Site:
    """One value. - `address`: its standard name. - `axes`: as served; of a module's input or output they are unknown.

    - `windowed`: its rows are in the window order of Qwen2.5-VL's encoder.
    """

    address: str
    axes: tuple[str, ...]
    windowed: bool

    @classmethod
    def all(cls, model: Model, pattern: str | Sequence[str]) -> list[Site]:
        """The values of an address, a pattern or several. Raises `InputError` for one without a row a token."""
        found = {}
        for one in [pattern] if isinstance(pattern, str) else pattern:
            for place in find(model.root, one):
                known = place.value.axes == ("…",) or {SEQ, TOKENS, VISUAL, PATCHES} & set(place.value.axes)
                if not known or place.value.is_list or {"query", "key"} & set(place.value.axes):
                    raise InputError(
                        f"`{place.address}` has the axes {' '.join(place.value.axes)}, so no row for each token or "
                        f"patch. Choose a value that has one, such as layers.*.layer_output or vision.image_features."
                    )
                encoder = place.address.startswith(("vision.layers.", "projector.", "vision.tower_output"))
                windowed = encoder and model.config.vision.window_size is not None
                found[place.address] = cls(place.address, place.value.axes, windowed)
        return list(found.values())

    @classmethod
    def one(cls, model: Model, address: str) -> Site:
        """The value of an address. Raises `InputError` for a pattern of several."""
        found = cls.all(model, address)
        if len(found) != 1:
            raise InputError(f"One value is wanted; {address!r} names {len(found)}: {found[0].address} …")
        return found[0]

    def kind(self, value: Tensor, inputs: Inputs) -> str:
        """What a row of the value is, one of the four."""
        named = [kind for kind in (SEQ, TOKENS, VISUAL, PATCHES) if kind in self.axes]
        if named:
            return named[0]
        grids = [g for g in (inputs.image_grid_thw, inputs.video_grid_thw) if g is not None]
        if value.dim() == 2 and sum(int(g.prod(-1).sum()) for g in grids) == len(value):
            return PATCHES
        if value.dim() == 2 and int((inputs.mm_token_type_ids > 0).sum()) == len(value):
            return TOKENS
        if value.dim() == 3 and len(value) == len(inputs.input_ids):
            return SEQ
        raise InputError(
            f"`{self.address}` has the shape {list(value.shape)}, so it is not clear which row belongs to which token. "
            f"Choose a named value."
        )

    def matrix(self, value: Tensor) -> Tensor:
        """[rows width] of a value as it is served; other axes, such as heads, are laid side by side."""
        moved = self._moved(value)
        return moved.flatten(0, 1).flatten(1)

    def restored(self, matrix: Tensor, value: Tensor) -> Tensor:
        """The inverse of `matrix`, in the form and dtype of `value`."""
        moved = matrix.to(value.dtype).reshape(self._moved(value).shape)
        if self._flat(value):
            return moved[0]
        return moved.movedim(1, self.axis)

    def _flat(self, value: Tensor) -> bool:
        return self.axes[0] in (TOKENS, VISUAL) or (self.axes == ("…",) and value.dim() == 2)

    @property
    def axis(self) -> int:
        """Which axis of the served value has a row an entry, where samples come first."""
        return next((n for n, axis in enumerate(self.axes) if axis in (SEQ, PATCHES)), 1)

    def _moved(self, value: Tensor) -> Tensor:
        """[samples rows …]: one sample where the value's rows are packed."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            raise InputError(
                f"`{self.address}` is not a table of numbers, so nothing can be learned from or added to it."
            )
        return value[None] if self._flat(value) else value.movedim(self.axis, 1)

    def rows(self, value: Tensor, inputs: Inputs, positions: Tensor, row: int = 0) -> Tensor:
        """[n] int64: the rows of `matrix` that the tokens at `positions` of a row have; of patches all of each token.

        Tokens that the value has no row for, such as words in the vision encoder, are left out. Raises `InputError`
        where none is left.
        """
        kind = self.kind(value, inputs)
        if kind == SEQ:
            return (positions + row * value.shape[self.axis]).to(value.device)
        table = geometry(inputs).tokens
        at = self.visible(inputs, positions, row).numpy()
        if kind == VISUAL:
            order = torch.from_numpy((table.token >= 0).ravel().cumsum() - 1)
            return order[torch.from_numpy(row * table.token.shape[1] + at)].to(value.device)
        tokens = torch.from_numpy(table.token[row, at].copy())
        if self.address not in (_IMAGE_ALONE, _VIDEO_ALONE):
            tokens = tokens + torch.from_numpy((table.kind[row, at] == "video") * int((table.kind == "image").sum()))
        fold = geometry(inputs).merge ** 2
        if self.windowed:
            tokens = self._window_places(inputs)[tokens]
        if kind == TOKENS:
            return tokens.to(value.device)
        return (tokens[:, None] * fold + torch.arange(fold)).flatten().to(value.device)

    def visible(self, inputs: Inputs, positions: Tensor, row: int = 0) -> Tensor:
        """Those of the positions that show an image or video, of the kind that the value has rows for."""
        table, at = geometry(inputs).tokens, positions.cpu().numpy()
        seen = table.token[row, at] >= 0
        if self.address in (_IMAGE_ALONE, _VIDEO_ALONE):
            seen &= table.kind[row, at] == ("image" if self.address == _IMAGE_ALONE else "video")
        if not seen.any():
            raise InputError(f"None of these tokens has a row in `{self.address}`; it has rows for image tokens alone.")
        return torch.from_numpy(at[seen])

    def _window_places(self, inputs: Inputs) -> Tensor:
        """[tokens]: where each merged token, images before videos, stands in window order."""
        where, parts, count = geometry(inputs), [], 0
        for kind, items in (("image", where.images), ("video", where.videos)):
            if items:
                parts.append(where.window_order(kind, patches=False).argsort() + count)
                count += len(parts[-1])
        return torch.cat(parts)

    def change(
        self, inputs: Inputs, positions: Tensor | None, change: Callable[[Tensor], Tensor], row: int = 0
    ) -> Callable[[Tensor], Tensor]:
        """An edit that puts ``change(rows [n width])`` in the place of the rows of some tokens, or of all."""

        def edit(value: Tensor) -> Tensor:
            matrix = self.matrix(value).clone()
            at = slice(None) if positions is None else self.rows(value, inputs, positions, row)
            matrix[at] = change(matrix[at]).to(matrix.dtype)
            return self.restored(matrix, value)

        return edit
