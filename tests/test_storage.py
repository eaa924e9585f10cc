"""Files are read within bounds and written whole or not at all, whatever stands in their place."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cutaway import storage
from cutaway.errors import CheckpointError, InputError

GOOD = {"a": [1, {"b": None}], "text": "é😀", "large": 10**30, "x": 1.5}


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = storage.write_json(tmp_path / "a.json", GOOD)
    assert storage.read_json(path) == GOOD
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert storage.read_json(path) == GOOD, "a byte order mark says nothing"
    path.write_text(json.dumps(GOOD, ensure_ascii=True))
    assert storage.read_json(path) == GOOD


@pytest.mark.parametrize(
    ("content", "says"),
    {
        "nested lists": (b'{"a":' + b"[" * 100_000, "levels deep|JSON"),
        "closed nested lists": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels deep"),
        "nested mappings": (b'{"a":' * 500 + b"1" + b"}" * 500, "levels deep"),
        "one level too deep": (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "levels deep"),
        "a huge integer": (b'{"a": ' + b"9" * 5000 + b"}", "5,000 digits"),
        "a huge negative integer": (b'{"a": -' + b"9" * 200 + b"}", "digits"),
        "NaN": (b'{"a": NaN}', "NaN"),
        "minus infinity": (b'{"a": [-Infinity]}', "Infinity"),
        "a float beyond floats": (b'{"a": 1e999}', "too large"),
        "a key twice": (b'{"a": 1, "a": 2}', "'a' stands twice"),
        "a key twice below": (b'{"b": [{"a": 1, "c": 0, "a": 1}]}', "'a' stands twice"),
        "half a surrogate": (b'{"a": "\\ud800"}', "surrogates"),
        "another encoding": ('{"a": "é"}'.encode("latin-1"), "UTF-8"),
        "UTF-16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        "a zero byte": (b'{"a": "\x00"}', "JSON"),
        "cut short": (b'{"a": 1', "JSON"),
        "two documents": (b'{"a": 1}{"a": 1}', "JSON"),
        "empty": (b"", "JSON"),
        "a list": (b"[1]", "a list"),
        "a text": (b'"a"', "a text"),
        "null": (b"null", "null"),
        "a number": (b"3", "a number"),
    }.values(),
)
def test_json_outside_the_bounds_is_an_error_with_its_name(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=says) as error:
        storage.read_json(path)
    assert str(path) in str(error.value)


def test_depth_and_digits_at_the_bounds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a":' + "[" * 62 + "]" * 62 + ', "n": ' + "9" * 100 + "}")
    assert storage.read_json(path)["n"] == int("9" * 100)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: no disk is used
    with pytest.raises(CheckpointError, match="1,099,511,627,776 bytes"):
        storage.read_json(path)
    assert len(storage.read_bytes(storage.write_text(path, "123"), limit=3)) == 3
    with pytest.raises(InputError, match="4 bytes"):
        storage.read_bytes(storage.write_text(path, "1234"), InputError, limit=3)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe, end, link = tmp_path / "pipe", tmp_path / "socket", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(end))
        for path, kind in {
            pipe: "named pipe", link: "named pipe", end: "socket", tmp_path: "folder", Path("/dev/zero"): "device",
            Path("/proc/self/status"): "the system makes", Path("/proc/kmsg"): "the system makes",
        }.items():  # fmt: skip
            with pytest.raises(CheckpointError, match=kind):
                storage.read_text(path)
    for name in (tmp_path / "none", f"{tmp_path}/a\0b", "x" * 5000):
        with pytest.raises(CheckpointError):
            storage.read_text(name)
    real = storage.write_text(tmp_path / "real", "text")
    link.unlink()
    link.symlink_to(real)
    assert storage.read_text(link) == "text"


def _write_and_fail(*paths: Path) -> None:
    with storage.replacing(*paths) as parts:
        for part in parts:
            part.write_text("new")
        raise ZeroDivisionError


def test_files_take_their_places_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("old")
    with pytest.raises(ZeroDivisionError):
        _write_and_fail(first, second)
    assert first.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    with storage.replacing(first, second) as parts:
        assert [part.suffix for part in parts] == [".txt", ".txt"]
        for part in parts:
            part.write_text("new")
        assert first.read_text() == "old"
    assert first.read_text() == second.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_written_file_has_the_mode_of_any_new_file_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    path = storage.write_text(tmp_path / "ours", "")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(path)
    storage.write_text(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "through"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    writers = [threading.Thread(target=storage.write_json, args=(path, [n] * 20_000)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(set(json.loads(path.read_text()))) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("position", ["missing/a.json", "folder", "file/a.json", "n" * 300, "a\0b"])
def test_a_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path, position: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        storage.write_json(tmp_path / position, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from cutaway import storage
try:
    storage.write_text(sys.argv[1], "new" * 1000)
except storage.InputError as error:
    print(error)
"""


def test_on_a_full_disk_the_old_file_stays_and_nothing_is_left(tmp_path: Path) -> None:
    path = storage.write_text(tmp_path / "kept.txt", "old")
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert str(path) in done.stdout
    assert "cannot be written" in done.stdout
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_to_as_it_is() -> None:
    assert storage.write_text("/dev/null", "text") == Path("/dev/null")
    assert not Path("/dev/null").is_file()
