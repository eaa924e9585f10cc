"""Values of many prompts, each pooled over a group of its tokens and kept on disk as they come.

A folder of small files of named tensors, some prompts each: a harvest over many images that was stopped goes on where
it was, and probes can be trained on it again and again. It does not know what is learned from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.progress import OnProgress
from cutaway.analysis.common.sites import Site
from cutaway.analysis.common.sweep import digest, model_digest
from cutaway.analysis.common.token_selection import Where, choose
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import InputError

POOLS = ("mean", "max", "last")

SHARD = 16
"""Prompts in one file: what is lost when a harvest is killed."""


def collect(
    count: int,
    compute: Callable[[int], Mapping[str, Tensor]],
    *,
    settings: Mapping[str, Any],
    keys: Sequence[str],
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Tensor]:
    """Tensors of `count` examples stacked by name: [count …], `SHARD` examples a file in the folder `store`.

    `settings` say what the work is and `keys` what each example is; a file of other work raises `InputError`.
    """
    folder = None if store is None else Path(store)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"What is harvested cannot be kept in {folder}: {error.strerror}.") from error
    parts = []
    for start in range(0, count, SHARD):
        mine = list(range(start, min(start + SHARD, count)))
        notes = {"settings": dict(settings), "examples": [keys[n] for n in mine]}
        file = None if folder is None else folder / f"part-{start // SHARD:05}.safetensors"
        part = None if file is None or not file.is_file() else _kept(file, notes)
        if part is None:
            part = _computed(mine, count, compute, on_progress)
            if file is not None:
                save_tensors(file, part, notes)
        elif on_progress is not None:
            on_progress(mine[-1] + 1, count)
        parts.append(part)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _computed(
    mine: list[int], count: int, compute: Callable[[int], Mapping[str, Tensor]], on_progress: OnProgress | None
) -> dict[str, Tensor]:
    rows = []
    for n in mine:
        rows.append({name: value.detach().float().cpu() for name, value in compute(n).items()})
        if on_progress is not None:
            on_progress(n + 1, count)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _kept(file: Path, notes: dict[str, Any]) -> dict[str, Tensor]:
    tensors, theirs = load_tensors(file)
    if theirs != notes:
        other = [key for key in ("settings", "examples") if theirs.get(key) != notes[key]]
        raise InputError(
            f"{file} holds another harvest; it differs in {', '.join(other)}. Name another folder, or delete "
            f"this one to begin anew."
        )
    return tensors


def pooled(rows: Tensor, pool: str) -> Tensor:
    """[width] of some rows [n width], in float32."""
    rows = rows.float()
    if pool == "last":
        return rows[-1]
    return rows.mean(0) if pool == "mean" else rows.amax(0)


def harvest(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    value: str | Sequence[str] = "layers.*.layer_output",
    where: Where = "last",
    pool: str = "mean",
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Tensor]:
    """Each value of each prompt, pooled over the tokens of `where`: by address, [prompts width] float32.

    - `value`: an address, a pattern or several; heads are laid side by side.
    - `where`: tokens as `where.choose` takes them; in the vision encoder their patches. - `pool`: mean, max or last.
    - `store`: a folder that keeps the harvest; the same call goes on from there.
    """
    if pool not in POOLS:
        raise InputError(f"`pool` is one of {', '.join(POOLS)}; got {pool!r}.")
    check_prompts(prompts)
    model.require_weights("A harvest")
    sites = Site.all(model, value)

    def compute(n: int) -> dict[str, Tensor]:
        inputs = prompts[n]
        positions = choose(model, inputs, where).positions
        taken = {
            site.address: lambda v, site=site: pooled(site.matrix(v)[site.rows(v, inputs, positions)], pool)
            for site in sites
        }
        return dict(model.run(inputs, read=list(taken), reduce=taken))

    settings = {
        "model": model_digest(model),
        "values": [s.address for s in sites],
        "where": spoken(where),
        "pool": pool,
    }
    keys = [digest(inputs) for inputs in prompts] if store is not None else [""] * len(prompts)
    return collect(len(prompts), compute, settings=settings, keys=keys, store=store, on_progress=on_progress)


def spoken(where: Where) -> Any:
    """`where` as plain data."""
    return where.tolist() if isinstance(where, Tensor) else where


def check_prompts(prompts: Sequence[Inputs], least: int = 1) -> None:
    """Raises `InputError` for too few prompts, or one that is not a batch of one."""
    if len(prompts) < least:
        raise InputError(f"At least {least} prompts are needed; got {len(prompts)}.")
    wrong = [n for n, inputs in enumerate(prompts) if len(inputs.input_ids) != 1]
    if wrong:
        raise InputError(
            f"Each prompt is a batch of one; prompt {wrong[0]} has {len(prompts[wrong[0]].input_ids)} rows."
        )
