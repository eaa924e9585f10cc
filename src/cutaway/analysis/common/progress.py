"""`Cells`: the finished cells of long work, kept on disk as they come, so that a run that was killed goes on.

The file is JSON lines: first what the work is, then a cell a line. A line torn by a kill is dropped. It does not know
what a cell means.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from cutaway.errors import InputError

OnProgress = Callable[[int, int], None]
"""Called with the cells that are done and those that there are in all."""


class Cells:
    """Finished cells by key, in memory and, with a `path`, on disk.

    `settings` say what the work is (plain JSON data): a file of other settings is refused with `InputError`, since its
    cells would be mixed with these. `on_progress` is called after every cell.
    """

    def __init__(
        self, path: str | Path | None, settings: Mapping[str, Any], *, on_progress: OnProgress | None = None
    ) -> None:
        self.path = Path(path) if path is not None else None
        self.total = 0
        self._settings = json.loads(json.dumps(settings))
        self._on_progress = on_progress
        self._found: dict[str, Any] = {}
        self._file: TextIO | None = None
        if self.path is not None:
            self._file = self._opened(self.path)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that are not finished yet, in their order; their number becomes the `total`."""
        keys = list(keys)
        self.total = len(keys)
        left = [key for key in keys if key not in self._found]
        self._tell()
        return left

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, cells: Mapping[str, Any]) -> None:
        """Keeps finished cells; on disk before this returns."""
        lines = [json.dumps([key, value]) for key, value in cells.items()]  # fails before anything is kept
        if self._file is not None:
            self._file.write("".join(f"{line}\n" for line in lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        self._found.update({key: json.loads(json.dumps(value)) for key, value in cells.items()})
        self._tell()

    def __getitem__(self, key: str) -> Any:
        return self._found[key]

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def close(self) -> None:
        """Closes the file; its cells stay."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Cells:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(min(len(self._found), self.total), self.total)

    def _opened(self, path: Path) -> TextIO:
        """The file, its cells read, its torn last line cut off, ready for more."""
        try:
            raw = path.read_bytes() if path.exists() else b""
            whole = raw[: raw.rfind(b"\n") + 1]
            lines = whole.decode("utf-8").splitlines()
            if lines:
                self._check(json.loads(lines[0]))
                self._found = dict(json.loads(line) for line in lines[1:])
            file = open(path, "r+" if path.exists() else "x", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            file.truncate(len(whole))
            file.seek(0, os.SEEK_END)
            if not lines:
                file.write(json.dumps({"settings": self._settings}) + "\n")
                file.flush()
            return file
        except OSError as error:
            raise InputError(f"Finished cells cannot be kept in {path}: {error.strerror}.") from error
        except (ValueError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is no file of finished cells. Name another, or delete it.") from error

    def _check(self, head: Any) -> None:
        theirs = head["settings"] if isinstance(head, dict) and "settings" in head else {}
        if theirs != self._settings:
            keys = sorted({*theirs, *self._settings})
            other = [key for key in keys if theirs.get(key) != self._settings.get(key)]
            raise InputError(
                f"{self.path} holds cells of other work; it differs in {', '.join(other)}. Name another file, or "
                f"delete this one to begin anew."
            )
