"""`Sweep`: many edited runs over a grid of settings, kept on disk as they finish, returned as arrays with named axes.

Every analysis that measures one run per cell of a grid goes through it: patching, ablation, knockout, pathways,
steering. It orders the cells, skips those that a stopped sweep has left in its `ResultStore`, reports progress, and
fills arrays. It does not know what a cell's run is: the analysis computes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import torch

from cutaway.analysis.common.metrics import Metric
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no advisory locks; there two writers of one store are not noticed
    fcntl = None

Cell = tuple[Any, ...]
"""An entry of each axis of a sweep, in the axes' order; None where an axis does not apply."""

OnProgress = Callable[[int, int], None]
"""Called with the number of finished cells and the number of all cells."""

SAMPLED = 64
"""Numbers of each weight, evenly spread, that `model_digest` hashes."""


class ResultStore:
    """Results by key, in memory and, with a `path`, in a file of JSON lines that survives a kill.

    The first line holds `settings` (plain JSON data: what the results depend on), every other line one result. A line
    that a kill has torn is dropped, and its result is computed again. One process writes a store at a time.

    Raises `InputError` for a file of other settings, a file that is no store, or one in use by another writer.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        if not isinstance(path, str | Path | None):
            raise InputError(f"`store` is the name of a file; got {path!r}.")
        self.path = None if path is None else Path(path)
        self._settings = json.loads(json.dumps(settings))
        self._results: dict[str, Any] = {}
        self._file: TextIO | None = None if self.path is None else self._open(self.path)

    def update(self, results: Mapping[str, Any]) -> None:
        """Keep results (plain JSON data); they are on disk when this returns."""
        lines = [json.dumps([key, value]) for key, value in results.items()]  # fails before anything is kept
        if self._file is not None:
            try:
                self._file.write("".join(f"{line}\n" for line in lines))
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise InputError(
                    f"A result store must be writable; got {error.strerror} for {self.path}. Free some space and run "
                    f"again: finished cells are kept."
                ) from error
        self._results.update((key, json.loads(json.dumps(value))) for key, value in results.items())

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __len__(self) -> int:
        return len(self._results)

    def close(self) -> None:
        """Close the file and let other processes write it; the results stay in memory."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written was reported by `update`
                self._file.close()
            self._file = None

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, path: Path) -> TextIO:
        """Open the file for appending, its results read and a torn last line cut off."""
        if path.exists() and not path.is_file():  # reading a pipe or a device would never end
            raise self._no_store()
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            try:
                self._lock(file)
                self._read(file)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise InputError(
                f"A result store is a file that can be written; got {path}: {error.strerror}. Name another `store`."
            ) from error
        return file

    def _lock(self, file: TextIO) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"One process at a time writes a result store; {self.path} is in use by another. Name another `store`, "
                f"or wait until that one has ended."
            ) from error
        except OSError:  # some network file systems have no locks
            return

    def _read(self, file: TextIO) -> None:
        head = json.dumps({"settings": self._settings}) + "\n"
        file.seek(0)
        raw = file.buffer.read()
        complete = raw[: raw.rfind(b"\n") + 1]
        lines = complete.split(b"\n")[:-1]
        if not lines:
            if not head.encode().startswith(raw):  # anything but our own first line, torn
                raise self._no_store()
            file.truncate(0)
            file.write(head)
            file.flush()
            return
        self._check_settings(lines[0])
        for line in lines[1:]:
            try:
                key, value = json.loads(line)
                self._results[str(key)] = value
            except (ValueError, TypeError):  # torn in the middle of the file, by a crash of the machine
                continue
        file.truncate(len(complete))
        file.seek(0, os.SEEK_END)

    def _check_settings(self, line: bytes) -> None:
        try:
            stored = json.loads(line)["settings"]
        except (ValueError, TypeError, KeyError) as error:
            raise self._no_store() from error
        if not isinstance(stored, dict):
            raise self._no_store()
        if stored != self._settings:
            keys = sorted({*stored, *self._settings})
            different = [key for key in keys if stored.get(key) != self._settings.get(key)]
            raise InputError(
                f"A result store belongs to one sweep; {self.path} holds another, which differs in "
                f"{', '.join(different)}. Name another `store`, or delete the file to begin anew."
            )

    def _no_store(self) -> InputError:
        return InputError(f"A result store is a file of finished cells; {self.path} is none. Name another `store`.")


class Sweep:
    """The cells of a grid, computed once each; a context manager that closes its store.

    - `technique`, `model`, `metric`, `settings`: what the results depend on. A store of anything else is refused.
    - `axes`: the grid's axes by name, each with its entries. `cells`: those cells of the grid that exist, in order;
      default all.
    - `store`: a file that keeps finished cells; the same call goes on from there. `on_progress`: see `OnProgress`.

    Interrupting a sweep (Ctrl-C, a kill) loses no more than the batch that was being computed.
    """

    def __init__(
        self,
        technique: str,
        model: Model,
        metric: Metric,
        axes: Mapping[str, Sequence[Any]],
        *,
        settings: Mapping[str, Any],
        cells: Iterable[Cell] | None = None,
        store: str | Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        if on_progress is not None and not callable(on_progress):
            raise InputError(f"`on_progress` is called with two counts; got {on_progress!r}. Give a function.")
        self.axes = {name: list(entries) for name, entries in axes.items()}
        self.cells = list(product(*self.axes.values()) if cells is None else cells)
        self._on_progress = on_progress
        kept: dict[str, Any] = {}
        if store is not None:
            name = [metric.name, list(metric.answer), list(metric.compared_ids)]
            kept = {"technique": technique, "model": model_digest(model), "metric": name, **settings}
        self._store = ResultStore(store, kept)
        self._done = sum(_key(cell) in self._store for cell in self.cells)
        self._report()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._store.close()

    def run(self, batches: Iterable[Sequence[Cell]], compute: Callable[[Sequence[Cell]], Sequence[Any]]) -> None:
        """Compute the cells, a batch at a time; `compute` returns a result (plain JSON data) per cell.

        Batches whose cells are all finished are skipped. Form batches from all cells, not from those that are missing:
        then a resumed sweep runs the same batches as an uninterrupted one, and gives the same digits.
        """
        for batch in batches:
            missing = sum(_key(cell) not in self._store for cell in batch)
            if not missing:
                continue
            results = compute(batch)
            self._store.update({_key(cell): result for cell, result in zip(batch, results, strict=True)})
            self._done += missing
            self._report()

    def run_each(self, compute: Callable[[Cell], Any]) -> None:
        """Compute every cell by itself."""
        self.run(([cell] for cell in self.cells), lambda batch: [compute(batch[0])])

    def __getitem__(self, cell: Cell) -> Any:
        """Return the result of a finished cell."""
        return self._store[_key(cell)]

    def array(self, number: Callable[[Any], float] = float) -> np.ndarray:
        """Return the results as float64, one axis per axis of the sweep; NaN where a cell does not exist.

        `number` takes the number out of a result.
        """
        return self.fill({cell: number(self[cell]) for cell in self.cells})

    def fill(self, numbers: Mapping[Cell, float]) -> np.ndarray:
        """Return other numbers of the sweep's cells as `array` does."""
        values = np.full([len(entries) for entries in self.axes.values()], np.nan)
        index = [{entry: n for n, entry in enumerate(entries)} for entries in self.axes.values()]
        for cell, number in numbers.items():
            values[tuple(at[entry] for at, entry in zip(index, cell, strict=True))] = number
        return values

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._done, len(self.cells))


def _key(cell: Cell) -> str:
    return json.dumps(cell, ensure_ascii=False)


def model_digest(model: Model) -> str:
    """Return what tells one model from another: family, the head's shape and dtype, a hash of some of every weight.

    Every weight counts, since a fine-tune may have changed no more than a few projections.
    """
    weight, content = model.root.lm_head.weight, sha256()
    for name, parameter in model.root.named_parameters():
        flat = parameter.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED]
        content.update(name.encode() + some.float().cpu().numpy().tobytes())
    return f"{model.config.family} {list(weight.shape)} {weight.dtype} {content.hexdigest()[:16]}"


def digest(inputs: Inputs) -> str:
    """Return what tells one prompt from another: a hash of its ids and pixels."""
    content = sha256()
    for key in inputs:
        content.update(inputs[key].cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:16]
