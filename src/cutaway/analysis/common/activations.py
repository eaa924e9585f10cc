"""Activations as tables: a value's vector at each token of a prompt, and pooled vectors of many prompts kept on disk.

Use `Site` to read or edit any value at some tokens, whatever its own axes: the text model's values have a vector for
each position, the projector's for each image token, the vision encoder's for each patch. Use `harvest` to collect such
vectors from many prompts; it writes small files as it goes and resumes from them. Nothing is learned here: probes,
directions and SAEs are in their own folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_choice, check_model
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.sweep import OnProgress, digest, model_digest
from cutaway.analysis.common.token_selection import TokenSelection, geometry, select_tokens
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import InputError
from cutaway.trace.addresses import find

POOLS = ("mean", "max", "last")

SHARD = 16
"""Prompts per file; a harvest that is killed loses no more than these."""

SEQ, TOKENS, VISUAL, PATCHES = "seq", "tokens", "image_tokens", "patches"
"""The axis that a value has a vector for each entry of: positions, image tokens (images before videos), image tokens in
the sequence's order, patches."""

_IMAGE_ONLY, _VIDEO_ONLY = "vision.image_features", "vision.video_features"


@dataclass(frozen=True)
class Site:
    """A value that has a vector for each token or patch, seen as a matrix [rows width].

    - `address`: its standard name. - `axes`: as declared; ``("…",)`` for a module's input or output.
    - `windowed`: its rows are in the window order of Qwen2.5-VL's encoder.
    """

    address: str
    axes: tuple[str, ...]
    windowed: bool

    @classmethod
    def all(cls, model: Model, pattern: str | Sequence[str]) -> list[Site]:
        """Return the values of an address, a pattern or several. Raises `InputError` for one without a row a token."""
        sites = {}
        for one in [pattern] if isinstance(pattern, str) else pattern:
            for ref in find(model.root, one):
                known = ref.value.axes == ("…",) or {SEQ, TOKENS, VISUAL, PATCHES} & set(ref.value.axes)
                if not known or ref.value.is_list or {"query", "key"} & set(ref.value.axes):
                    raise InputError(
                        f"A value with a vector for each token or patch is wanted; got `{ref.address}`, whose axes are "
                        f"{' '.join(ref.value.axes)}. Choose one such as layers.*.layer_output or "
                        f"vision.image_features."
                    )
                encoder = ref.address.startswith(("vision.layers.", "projector.", "vision.tower_output"))
                windowed = encoder and model.config.vision.window_size is not None
                sites[ref.address] = cls(ref.address, ref.value.axes, windowed)
        return list(sites.values())

    @classmethod
    def one(cls, model: Model, address: str) -> Site:
        """Return the value of an address. Raises `InputError` for a pattern of several."""
        sites = cls.all(model, address)
        if len(sites) != 1:
            raise InputError(
                f"One value is wanted; got {address!r}, which names {len(sites)}: {sites[0].address} … Name one of "
                f"them."
            )
        return sites[0]

    def kind(self, value: Tensor, inputs: Inputs) -> str:
        """Return the axis whose entries the rows are: `SEQ`, `TOKENS`, `VISUAL` or `PATCHES`."""
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
            f"A value's rows must belong to tokens or patches; got `{self.address}` of shape {list(value.shape)}, "
            f"which "
            f"fits neither. Choose a value with named axes."
        )

    def matrix(self, value: Tensor) -> Tensor:
        """Return the value as [rows width]; other axes, such as heads, are concatenated."""
        return self._rows_second(value).flatten(0, 1).flatten(1)  # [samples·rows width]

    def restored(self, matrix: Tensor, value: Tensor) -> Tensor:
        """Return the inverse of `matrix`, in the shape and dtype of `value`."""
        moved = matrix.to(value.dtype).reshape(self._rows_second(value).shape)  # [samples rows …]
        return moved[0] if self._is_packed(value) else moved.movedim(1, self.axis)

    def _is_packed(self, value: Tensor) -> bool:
        return self.axes[0] in (TOKENS, VISUAL) or (self.axes == ("…",) and value.dim() == 2)

    @property
    def axis(self) -> int:
        """The axis of the value along which its rows lie, where samples come first."""
        return next((n for n, axis in enumerate(self.axes) if axis in (SEQ, PATCHES)), 1)

    def _rows_second(self, value: Tensor) -> Tensor:
        """Return [samples rows …]; one sample where all samples' rows are packed into one axis."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            raise InputError(
                f"A tensor of floating-point vectors is wanted; got `{self.address}`, which is none. Choose another "
                f"value."
            )
        return value[None] if self._is_packed(value) else value.movedim(self.axis, 1)

    def rows(self, value: Tensor, inputs: Inputs, positions: Tensor, sample: int = 0) -> Tensor:
        """Return [n] int64: the rows of `matrix` of the tokens at `positions` of a sample; all patches of each token.

        Tokens that the value has no row for, such as words in the vision encoder, are left out. Raises `InputError`
        where none is left.
        """
        kind = self.kind(value, inputs)
        if kind == SEQ:
            return (positions + sample * value.shape[self.axis]).to(value.device)
        table = geometry(inputs).tokens
        at = self.with_rows(inputs, positions, sample).numpy()
        if kind == VISUAL:
            order = torch.from_numpy((table.token >= 0).ravel().cumsum() - 1)
            return order[torch.from_numpy(sample * table.token.shape[1] + at)].to(value.device)
        tokens = torch.from_numpy(table.token[sample, at].copy())
        if self.address not in (_IMAGE_ONLY, _VIDEO_ONLY):
            tokens = tokens + torch.from_numpy((table.kind[sample, at] == "video") * int((table.kind == "image").sum()))
        patches_per_token = geometry(inputs).merge ** 2
        if self.windowed:
            tokens = self._window_index(inputs)[tokens]
        if kind == TOKENS:
            return tokens.to(value.device)
        return (tokens[:, None] * patches_per_token + torch.arange(patches_per_token)).flatten().to(value.device)

    def with_rows(self, inputs: Inputs, positions: Tensor, sample: int = 0) -> Tensor:
        """Return those of the positions that hold image tokens which the value has rows for."""
        table, at = geometry(inputs).tokens, positions.cpu().numpy()
        seen = table.token[sample, at] >= 0
        if self.address in (_IMAGE_ONLY, _VIDEO_ONLY):
            seen &= table.kind[sample, at] == ("image" if self.address == _IMAGE_ONLY else "video")
        if not seen.any():
            raise InputError(
                f"`{self.address}` has rows for image tokens only; got positions {positions.tolist()[:8]}, which are "
                f"none. Select an image's tokens."
            )
        return torch.from_numpy(at[seen])

    def _window_index(self, inputs: Inputs) -> Tensor:
        """Return [tokens]: the index of each image token (images before videos) in window order."""
        where, parts, count = geometry(inputs), [], 0
        for kind, items in (("image", where.images), ("video", where.videos)):
            if items:
                parts.append(where.window_order(kind, patches=False).argsort() + count)
                count += len(parts[-1])
        return torch.cat(parts)

    def change(
        self, inputs: Inputs, positions: Tensor | None, change: Callable[[Tensor], Tensor], sample: int = 0
    ) -> Callable[[Tensor], Tensor]:
        """Return an edit that replaces the rows of some tokens, or of all, by ``change(rows [n width])``."""

        def edit(value: Tensor) -> Tensor:
            matrix = self.matrix(value).clone()
            at = slice(None) if positions is None else self.rows(value, inputs, positions, sample)
            matrix[at] = change(matrix[at]).to(matrix.dtype)
            return self.restored(matrix, value)

        return edit


def collect(
    count: int,
    compute: Callable[[int], Mapping[str, Tensor]],
    *,
    settings: Mapping[str, Any],
    keys: Sequence[str],
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Tensor]:
    """Return the tensors that `compute` gives for each of `count` examples, stacked by name: [count …] float32.

    With `store` they are kept in that folder, `SHARD` examples per file, and read back by the same call. `settings`
    say what they depend on and `keys` what each example is; a file of anything else raises `InputError`.
    """
    folder = None if store is None else Path(store)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"A harvest is kept in a folder that can be written; got {folder}: {error.strerror}. Name another "
                f"`store`."
            ) from error
    parts = []
    for start in range(0, count, SHARD):
        shard = list(range(start, min(start + SHARD, count)))
        notes = {"settings": dict(settings), "examples": [keys[n] for n in shard]}
        file = None if folder is None else folder / f"part-{start // SHARD:05}.safetensors"
        part = None if file is None or not file.is_file() else _load_shard(file, notes)
        if part is None:
            part = _compute_shard(shard, count, compute, on_progress)
            if file is not None:
                save_tensors(file, part, notes)
        elif on_progress is not None:
            on_progress(shard[-1] + 1, count)
        parts.append(part)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _compute_shard(
    shard: list[int], count: int, compute: Callable[[int], Mapping[str, Tensor]], on_progress: OnProgress | None
) -> dict[str, Tensor]:
    examples = []
    for n in shard:
        examples.append({name: value.detach().float().cpu() for name, value in compute(n).items()})
        if on_progress is not None:
            on_progress(n + 1, count)
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


def _load_shard(file: Path, notes: dict[str, Any]) -> dict[str, Tensor]:
    tensors, stored = load_tensors(file)
    if stored != notes:
        different = [key for key in ("settings", "examples") if stored.get(key) != notes[key]]
        raise InputError(
            f"A folder belongs to one harvest; {file} holds another, which differs in {', '.join(different)}. Name "
            f"another `store`, or delete this one to begin anew."
        )
    return tensors


def pooled(rows: Tensor, pool: str) -> Tensor:
    """Return [width] float32 from the vectors of some tokens, [tokens width]; `pool` is one of `POOLS`."""
    rows = rows.float()
    if pool == "last":
        return rows[-1]
    return rows.mean(0) if pool == "mean" else rows.amax(0)


def harvest(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    value: str | Sequence[str] = "layers.*.layer_output",
    where: TokenSelection = "last",
    pool: str = "mean",
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Tensor]:
    """Return each value of each prompt, pooled over the tokens of `where`: by address, [prompts width] float32.

    - `value`: an address, a pattern or several; heads are concatenated.
    - `where`: tokens as `select_tokens` takes them; in the vision encoder their patches.
    - `pool`: one of `POOLS`.
    - `store`: a folder that keeps the vectors; the same call resumes from it.

    Raises `InputError` before any run for values without a vector per token or prompts that are not batches of one.
    """
    check_model(model, "A harvest")
    check_choice("pool", pool, POOLS)
    prompts = check_prompts(prompts)
    sites = Site.all(model, value)

    def compute(n: int) -> dict[str, Tensor]:
        inputs = prompts[n]
        positions = select_tokens(model, inputs, where).positions
        reduce = {
            site.address: lambda v, site=site: pooled(site.matrix(v)[site.rows(v, inputs, positions)], pool)
            for site in sites
        }
        return dict(model.run(inputs, read=list(reduce), reduce=reduce))

    settings = {
        "model": model_digest(model),
        "values": [s.address for s in sites],
        "where": plain_selection(where),
        "pool": pool,
    }
    keys = [digest(inputs) for inputs in prompts] if store is not None else [""] * len(prompts)
    return collect(len(prompts), compute, settings=settings, keys=keys, store=store, on_progress=on_progress)


def plain_selection(where: TokenSelection) -> Any:
    """Return a token selection as plain JSON data."""
    return where.tolist() if isinstance(where, Tensor) else where
