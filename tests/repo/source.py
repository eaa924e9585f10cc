"""The repository as the rules in this folder see it: its files, their parts and their syntax trees."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "cutaway"


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is, or would be, in the repository (ignored files left out)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(sorted(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()))


def python_files(*folders: str) -> list[Path]:
    """The Python files under these folders of the repository."""
    return [f for f in tracked() if f.suffix == ".py" and any((ROOT / top) in f.parents for top in folders)]


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    """A path as messages show it: from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """The part of the package that a file belongs to: `model`, `checkpoint`, `errors` …"""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    """The dotted name under which a file of the package is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[int, str]]:
    """Every import of a file, wherever it stands, as (line, dotted name); a relative one begins with a dot."""
    results = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            results += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            results.append((node.lineno, "." * node.level + (node.module or "")))
    return results
