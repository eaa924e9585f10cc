"""Runs the Python blocks of a page as one program, and checks the values that the page claims.

A block is run unless it is opened with ```` ```python no-run: reason ````. An expression whose line ends in a comment
that is a Python literal (``x.shape  # (1, 2)``, ``torch.equal(a, b)  # True``) must have that value.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```python([^\n]*)\n(.*?)^```\s*$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A Python block: where its first line stands, what follows ``python`` on its fence, its text."""

    line: int
    mark: str
    code: str


def blocks(path: Path) -> list[Block]:
    """The Python blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [Block(text[: m.start(2)].count("\n") + 1, m.group(1).strip(), m.group(2)) for m in FENCE.finditer(text)]


def claimed(code: str, statement: ast.stmt) -> tuple[bool, Any]:
    """Whether the line on which an expression ends claims a value in a comment, and which."""
    line = code.splitlines()[(statement.end_lineno or 1) - 1]
    _, mark, comment = line[statement.end_col_offset or 0 :].partition("#")
    try:
        return bool(mark), ast.literal_eval(comment.strip())
    except (ValueError, SyntaxError):
        return False, None


def run(path: Path, names: dict[str, Any]) -> int:
    """Runs a page's blocks in one namespace that begins with `names`; returns how many ran."""
    count = 0
    for block in blocks(path):
        if block.mark.startswith("no-run"):
            continue
        count += 1
        for statement in ast.parse(block.code).body:
            has, value = claimed(block.code, statement) if isinstance(statement, ast.Expr) else (False, None)
            where = f"{path.name}:{block.line + statement.lineno - 1}"
            if has and isinstance(statement, ast.Expr):
                got = eval(compile(ast.Expression(statement.value), where, "eval"), names)
                got = got.item() if hasattr(got, "item") and isinstance(value, int | float | bool) else got
                assert got == value, f"{where}: the page says {value!r}, it is {got!r}"
            else:
                exec(compile(ast.Module([statement], []), where, "exec"), names)
    return count
