"""Reading and writing of small files: only regular ones, JSON within bounds, writes that happen whole or not at all.

Every JSON or text file of a checkpoint is read here, and every file that the package writes is written here. A file
that came from elsewhere may be anything: a pipe that never ends, brackets nested a hundred thousand deep, a number
of a million digits. Each of those is an error that names the file. What the content means is the caller's business;
images, videos and tensors have readers of their own, which ask `check_regular` first.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from cutaway.errors import CheckpointError, CutawayError, InputError

SIZE_LIMIT = 128 * 2**20
"""Bytes of a text or JSON file; the largest published one, a tokenizer, has 12 million."""

DEPTH_LIMIT = 64
"""Levels of nesting of a JSON file."""

DIGIT_LIMIT = 100
"""Digits of an integer of a JSON file; `model_max_length` is published with 31."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | Path, error: type[CutawayError] = CheckpointError) -> int:
    """Return the size of a regular file in bytes; links are followed. Nothing is opened.

    Raises `error` for what does not exist, and for folders, pipes, sockets, devices and the files that the system makes
    as they are read (`/proc`, `/sys`): reading one of those may never end.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise error(f"{path} does not exist. Check the name.") from None
    except (OSError, ValueError) as cause:
        raise error(f"{path} cannot be opened ({_reason(cause)}).") from cause
    kind = next((name for test, name in _KINDS if test(status.st_mode)), None)
    if kind is None and status.st_dev in _system_devices():
        kind = "a file that the system makes as it is read"
    if kind is not None:
        raise error(f"Only regular files are read; {path} is {kind}. Give a file.")
    return status.st_size


def read_bytes(path: str | Path, error: type[CutawayError] = CheckpointError, *, limit: int = SIZE_LIMIT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. Raises `error`."""
    size = check_regular(path, error)
    if size > limit:
        raise error(f"{path} has {size:,} bytes, and at most {limit:,} are read: it is not the file that it should be.")
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as cause:
        raise error(f"{path} cannot be read ({_reason(cause)}).") from cause
    if len(data) > limit:
        raise error(f"{path} has more than the {limit:,} bytes that are read: it is not the file that it should be.")
    return data


def read_text(path: str | Path, error: type[CutawayError] = CheckpointError, *, limit: int = SIZE_LIMIT) -> str:
    """Return the UTF-8 text of a regular file of at most `limit` bytes, a byte order mark left out. Raises `error`."""
    try:
        return read_bytes(path, error, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error(
            f"{path} must be text in UTF-8; its byte {cause.start:,} is not ({cause.reason}). Fetch the file again."
        ) from cause


def read_json(
    path: str | Path, error: type[CutawayError] = CheckpointError, *, limit: int = SIZE_LIMIT
) -> dict[str, Any]:
    """Return the mapping that a JSON file holds.

    Raises `error` for a file that is not regular, not UTF-8, not JSON, no mapping, or outside the bounds of
    `parse_json`.
    """
    data = parse_json(read_text(path, error, limit=limit), str(path), error)
    if not isinstance(data, dict):
        raise error(f"{path} must hold a mapping of keys to values; got {_kind(data)}. Fetch the file again.")
    return data


def parse_json(text: str, name: str, error: type[CutawayError] = CheckpointError) -> Any:
    """Return the data of a JSON text; `name` is what messages call it.

    Beside what is no JSON, `error` is raised for NaN and infinities, a key that stands twice in one mapping, integers
    of more than `DIGIT_LIMIT` digits, nesting below `DEPTH_LIMIT` levels, and text that cannot be encoded (a lone half
    of a surrogate pair).
    """
    try:
        data = json.loads(
            text, object_pairs_hook=_mapping, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
        _check_depth(data)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise error(f"{name} is nested more than {DEPTH_LIMIT} levels deep, which no such file is.") from None
    except ValueError as cause:
        raise error(f"{name} cannot be read as JSON ({cause}). Fetch the file again.") from cause
    return data


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(twice)} stands twice in one mapping")
    return mapping


def _integer(digits: str) -> int:
    if len(digits) > DIGIT_LIMIT:
        raise ValueError(f"an integer of {len(digits):,} digits, at most {DIGIT_LIMIT} are read")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {_short(digits)} is too large for a float")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(data: Any) -> None:
    """Raise `ValueError` for data nested more than `DEPTH_LIMIT` levels deep, level by level."""
    level = [data] if isinstance(data, (dict, list)) else []
    for _ in range(DEPTH_LIMIT):
        inner = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in inner if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH_LIMIT} levels deep")


@contextmanager
def replacing(*paths: str | Path) -> Iterator[tuple[Path, ...]]:
    """Give a temporary path beside each of `paths` to write to; at the end each file takes its place, all or none.

    The names are new ones, so two writers never share one, and end as the files do. Files are flushed to disk before
    they take their places. After any error the temporary files are gone and the old files untouched. Raises
    `InputError`, with the path, when something cannot be written: a full disk, a folder that is missing or protected, a
    place that is no regular file.
    """
    finals = [_target(path) for path in paths]
    parts = [final.with_name(f".cutaway-{secrets.token_hex(8)}.part{final.suffix}") for final in finals]
    with ExitStack() as stack:
        for part in parts:
            stack.callback(_remove, part)
        for path, final, part in zip(paths, finals, parts, strict=True):
            with writing(path):
                if final.exists() and not final.is_file():
                    raise InputError(f"{path} cannot be written: it is no regular file. Choose another name.")
                part.touch(exist_ok=False)
        with writing(", ".join(map(str, paths))):
            yield tuple(parts)
        for path, part in zip(paths, parts, strict=True):
            with writing(path):
                _flush(part)
        for path, final, part in zip(paths, finals, parts, strict=True):
            with writing(path):
                os.replace(part, final)
        for folder in {final.parent for final in finals}:
            with suppress(OSError):  # some file systems cannot flush a folder
                _flush(folder)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn what the system says about a write inside into an `InputError` that names `path`."""
    try:
        yield
    except OSError as cause:
        raise InputError(
            f"{path} cannot be written ({_reason(cause)}). Check the folder, its permissions and the space left."
        ) from cause


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file whole or not at all; returns its path. Raises `InputError`.

    A device or a pipe (`/dev/stdout`) is written to as it is.
    """
    path, final = Path(path), _target(path)
    if final.exists() and not final.is_file() and not final.is_dir():
        with writing(path), open(path, "wb") as file:
            file.write(data)
        return path
    with replacing(path) as (part,):
        part.write_bytes(data)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write a file of UTF-8 text whole or not at all; returns its path. Raises `InputError`."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, data: Any, *, indent: int | None = 2) -> Path:
    """Write data as JSON, whole or not at all; returns the path. Raises `InputError`."""
    return write_text(path, json.dumps(data, indent=indent, ensure_ascii=False) + "\n")


def _target(path: str | Path) -> Path:
    """The place that `path` leads to through links. Raises `InputError` for a name that no file can have."""
    with writing(path):
        try:
            final = Path(os.path.realpath(path))
        except ValueError as cause:
            raise InputError(f"{str(path)!r} cannot be written ({cause}). Choose another name.") from cause
        if len(os.fsencode(final.name)) > 255:
            raise InputError(f"{path} cannot be written: its name is longer than 255 bytes. Choose another name.")
        return final


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _system_devices() -> set[int]:
    devices = set()
    for folder in ("/proc", "/sys"):
        with suppress(OSError):
            devices.add(os.stat(folder).st_dev)
    return devices - {os.stat("/").st_dev}


def _reason(cause: Exception) -> str:
    return str(getattr(cause, "strerror", None) or cause)


def _kind(data: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(data), "a number")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:57] + "...")
