"""Checkpoint folders with a config, an index or a header that somebody changed: loaded, or refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cutaway.api import load
from cutaway.checkpoint.families import FAMILIES

CHECKPOINTS = Path(__file__).parents[1] / "data" / "oracle" / "ckpt"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**62, 10**99, 0.0, -0.5, 1e-300, 1e300, 0.25, "", "x", "../x", "\x00",
    [], {}, [1], [0, 0, 0], [[[]]], {"a": 1}, ["full_attention"], "yarn", [-1, 2**40], {"type": "yarn", "factor": 4.0},
)  # fmt: skip
"""What a key of a config or index is changed to."""

TEXTS = (
    b"",
    b"[]",
    b"null",
    b"{",
    b'{"a":' * 3000,
    b'{"a": NaN}',
    b"9" * 6000,
    b'{"a":1,"a":2}',
    b"\xff\xfe{\x00}\x00",
)


def cases(chance: random.Random, count: int, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Pairs of a name and an attempt to load a changed copy of a tiny checkpoint."""
    makers = (_config, _config, _config, _index, _header, _bytes)
    for number in range(count):
        family, maker = chance.choice(tuple(FAMILIES)), chance.choice(makers)
        position = folder / "checkpoint"
        for old in position.iterdir() if position.exists() else ():
            old.unlink()
        position.mkdir(exist_ok=True)
        for name in ("config.json", WEIGHTS):
            (position / name).symlink_to(CHECKPOINTS / family / name)
        what = maker(chance, position)
        task = chance.choice(("image-text-to-text", "text-generation"))
        yield f"{number} {family} {what}", lambda task=task, position=position: load(position, task=task, device="cpu")


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _changed(chance: random.Random, data: dict[str, Any], times: int) -> str:
    """Change some keys anywhere in `data`, take some out, put some in another section; says which."""
    message = []
    for _ in range(times):
        sections = [data, *(value for value in data.values() if isinstance(value, dict) and value)]
        section = chance.choice(sections)
        key = chance.choice(sorted(section) or ["model_type"])
        way = chance.randrange(4)
        if way == 0:
            section.pop(key, None)
        elif way == 1:
            chance.choice(sections)[key] = chance.choice(VALUES)
        elif way == 2 and isinstance(section.get(key), (int, float)):
            section[key] = section[key] * chance.choice((-1, 0, 2, 3, 0.5, 1000, 10**9, 10**18))
        else:
            section[key] = chance.choice(VALUES)
        message.append(f"{key} by {way}")
    return ", ".join(message)


def _config(chance: random.Random, position: Path) -> str:
    data = json.loads((position / "config.json").read_bytes())
    message = _changed(chance, data, chance.randint(1, 3))
    _write(position / "config.json", json.dumps(data).encode())
    return f"config: {message}"


def _index(chance: random.Random, position: Path) -> str:
    names = list(_read_header(position / WEIGHTS)[0])
    (position / "part.safetensors").symlink_to((position / WEIGHTS).resolve())
    data: dict[str, Any] = {"metadata": {}, "weight_map": dict.fromkeys(names, "part.safetensors")}
    message = _changed(chance, data, chance.randint(1, 3))
    _write(position / INDEX, json.dumps(data).encode())
    (position / WEIGHTS).unlink()
    return f"index: {message}"


def _header(chance: random.Random, position: Path) -> str:
    header, body = _read_header(position / WEIGHTS)
    message = []
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(sorted(set(header) - {"__metadata__"}) or ["x"])
        key = chance.choice(("dtype", "shape", "data_offsets"))
        odd = {
            "dtype": ("F64", "BF16", "I8", "F8_E4M3", "Q4", 3, None),
            "shape": ([], [0], [-1], [2**40, 2**40], [1.5], "x", None),
            "data_offsets": ([0, 0], [4, 0], [0, 2**62], [-1, 4], [0], "x", None),
        }[key]
        header.setdefault(name, {})[key] = chance.choice(odd)
        if chance.random() < 0.2:
            header[chance.choice((name + ".lora_A", "mtp.x", "x" * 3000, ""))] = header.pop(name)
        message.append(f"{name[-30:]}.{key}")
    text = json.dumps(header).encode()
    length = len(text) if chance.random() < 0.8 else chance.choice((0, 1, len(text) - 1, 2**40, 2**63))
    _write(position / WEIGHTS, length.to_bytes(8, "little") + text + body)
    return f"header: {', '.join(message)}"


def _bytes(chance: random.Random, position: Path) -> str:
    """Another text in place of a JSON file, or bytes of a file cut off, doubled or flipped."""
    name = chance.choice(("config.json", INDEX, WEIGHTS))
    if name == INDEX or chance.random() < 0.3:
        _write(position / name, chance.choice(TEXTS))
        return f"{name}: another text"
    data = bytearray((position / name).read_bytes())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(min(len(data), 4000))] = chance.randrange(256)
    end = chance.choice((len(data), len(data), chance.randrange(len(data))))
    _write(position / name, bytes(data[:end]))
    return f"{name}: bytes"


def _read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]
