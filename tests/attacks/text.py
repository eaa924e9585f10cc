"""Malformed conversations, options, settings files and chat templates, through the processor as a user calls it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cutaway.checkpoint.config_reader import read_config
from cutaway.inputs.options import NAMES
from cutaway.inputs.processor import Processor
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.messages import read_messages
from tests.conversation import PUBLISHED

FOLDER = Path(__file__).parents[1] / "data" / "oracle" / "ckpt" / "qwen3_vl"
KEYS = ("role", "content", "type", "text", "image", "image_url", "video", "url", "tool_calls", "function", "arguments")
PIECES = (
    "{% for m in messages %}", "{% endfor %}", "{% if x %}", "{% else %}", "{% endif %}", "{{ messages }}",
    "{{ m.content }}", "{% macro f(a) %}", "{% endmacro %}", "{{ f(f) }}", "{% set x = 'a' * 99999 %}",
    "{% set n = namespace(x=messages) %}", "{% set n.x = [n.x, n.x] %}", "{{ n.x }}", "{{ range(99999)|list }}",
    "{% for a in range(99999) %}", "{{ x ~ x ~ x }}", "{{ x|tojson }}", "{{ x.join(messages) }}",
    "{{ '%s' % x }}", "{{ '{}'.format(x) }}", "{% break %}", "{% call f(1) %}", "{% endcall %}",
    "{% generation %}", "{% endgeneration %}", "{{ lipsum(99) }}", "{{ 9 ** 9 ** 9 }}", "{# ", " #}", "{{",
    "}}", "{{ messages[0].content[0].text }}", "{{ ''.__class__ }}", "{{ x|attr('y') }}", "{{ tools|items }}",
    "text\n",
)  # fmt: skip


def values(chance: random.Random, depth: int = 0) -> Any:
    """A value of any kind, now and then a nested one."""
    plain = [
        lambda: None, lambda: chance.choice([True, False]), lambda: chance.randint(-9, 10**20),
        lambda: chance.random(), lambda: float("nan"), lambda: "",
        lambda: chance.choice(["user", "text", "image", "é\ud800", "<|im_end|>", "\0"]), lambda: b"bytes",
        lambda: object(), lambda: np.zeros((2, 2)), lambda: torch.zeros(2), lambda: Path("nothing.png"),
        lambda: "http://a/b.png", lambda: "data:image/png;base64,!!", lambda: range(3), lambda: {1, 2},
        lambda: print, lambda: chance.choice(KEYS),
    ]  # fmt: skip
    if depth > 3 or chance.random() < 0.6:
        return chance.choice(plain)()
    if chance.random() < 0.1:
        return deep(chance)
    entries = [values(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    if chance.random() < 0.5:
        return entries if chance.random() < 0.8 else tuple(entries)
    return {chance.choice(KEYS): entry for entry in entries}


def deep(chance: random.Random) -> Any:
    """Data nested thousands deep, shared, or holding itself."""
    items: Any = ["x"]
    kind = chance.randrange(3)
    if kind == 0:
        items.append(items)
    for _ in range(0 if kind == 0 else 3000 if kind == 1 else 40):
        items = [items] if kind == 1 else [items, items]
    return items


def messages(chance: random.Random) -> Any:
    """A conversation that is nearly right."""
    turns = []
    for _ in range(chance.randint(1, 4)):
        parts = [
            {"type": "text", "text": chance.choice(["a", "<|im_end|>", "\n"])} for _ in range(chance.randint(0, 3))
        ]
        content: Any = parts if chance.random() < 0.5 else "words"
        turn = {"role": chance.choice(["system", "user", "assistant", "tool"]), "content": content}
        for _ in range(chance.randint(0, 2)):
            turn[chance.choice(KEYS)] = values(chance)
        if isinstance(content, list) and content and chance.random() < 0.5:
            content[chance.randrange(len(content))] = values(chance)
        turns.append(turn if chance.random() < 0.95 else values(chance))
    return turns


def template(chance: random.Random) -> str:
    """A chat template of pieces, or a published one with characters changed."""
    if chance.random() < 0.6:
        return "".join(chance.choices(PIECES, k=chance.randint(1, 25)))
    text = list(PUBLISHED)
    for _ in range(chance.randint(1, 6)):
        position = chance.randrange(len(text))
        text[position : position + chance.randint(0, 8)] = chance.choice(PIECES) if chance.random() < 0.3 else ""
    return "".join(text)


def damaged_file(chance: random.Random, folder: Path) -> Path:
    """A copy of a checkpoint's folder with one of its text files damaged."""
    target = folder / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in FOLDER.iterdir():
        if path.suffix in (".json", ".txt", ".jinja"):
            shutil.copy(path, target / path.name)
    files = sorted(path for path in target.iterdir() if path.name != "config.json")
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    kind = chance.randrange(5)
    if kind == 0:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        data = bytearray(chance.choice([b"", b"[]", b"null", b"3", b'{"a":' * 5000, b"9" * 5000, b"\xff\xfe{}"]))
    else:
        try:
            content = json.loads(bytes(data))
        except ValueError:
            content = {}
        if isinstance(content, dict) and content:
            content[chance.choice(sorted(content))] = chance.choice(
                [None, -1, 0, 10**30, "x", [], {}, [1, [2]], {"a": 1}, True, 1e308]
            )
        data = bytearray(json.dumps(content).encode())
    path.write_bytes(bytes(data))
    return target


def cases(chance: random.Random, count: int, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield `count` conversations, calls with odd options, settings, templates and damaged folders."""
    config = read_config(FOLDER)
    processor = Processor.from_folder(FOLDER, config)
    published = Processor(config, processor.tokenizer, ChatTemplate(PUBLISHED), processor.image_settings)
    plain = read_messages([{"role": "user", "content": "q"}])
    for index in range(count):
        kind = ("messages", "tools", "options", "settings", "template", "folder", "batch")[index % 7]
        turns, value, other = messages(chance), values(chance), values(chance)
        name, text = chance.choice(NAMES), template(chance)
        if kind == "messages":
            yield f"{kind} {index}", lambda turns=turns: published.apply_chat_template(turns)
        elif kind == "tools":
            options = {chance.choice(["tools", "variables", "continue_final_message", "chat_template"]): value}
            yield f"{kind} {index} {list(options)}", lambda o=options: published.prompt("q", **o)
        elif kind == "options":
            yield f"{kind} {index} {name}", lambda n=name, v=value: processor("q", **{n: v})
        elif kind == "settings":
            raw = {
                chance.choice(["size", "patch_size", "min_pixels", "image_mean", "fps", "video_processor_type"]): value
            }
            raw |= {"patch_size": 16} if chance.random() < 0.5 else {}
            reader = chance.choice([ImageSettings.from_config, VideoSettings.from_config])
            yield f"{kind} {index} {list(raw)}", lambda r=reader, raw=raw: r(raw)
        elif kind == "template":
            yield f"{kind} {index} {text[:80]!r}", lambda t=text: ChatTemplate(t).render(plain)
        elif kind == "folder":
            path = damaged_file(chance, folder)
            yield f"{kind} {index}", lambda p=path, turns=turns: Processor.from_folder(p, config)(turns)
        else:
            batch = {chance.choice(["input_ids", "attention_mask", "position_ids", "mm_token_type_ids"]): value}
            batch = {"input_ids": [[5, 6]], **batch, chance.choice(["attention_mask", "image_grid_thw", "x"]): other}
            yield f"{kind} {index} {list(batch)}", lambda b=batch: processor.complete(b)
