"""Who may import whom. The table in ARCHITECTURE.md is the rule; these tests hold the code to it."""

from __future__ import annotations

import re
import sys

import pytest

from tests.repo.source import PACKAGE, ROOT, imports, part_of, python_files, shown

ONLY_IN = {
    "safetensors": {"checkpoint"},
    "huggingface_hub": {"checkpoint"},
    "tokenizers": {"inputs"},
    "jinja2": {"inputs"},
    "PIL": {"inputs"},
    "av": {"inputs"},
    "greenlet": {"trace"},
    "matplotlib": {"analysis"},
    "transformers": {"tasks"},
    "typer": {"cli", "__main__"},
    "rich": {"cli"},
    "torchvision": set(),
}
"""The parts of the package where a library may be named at all."""

WITHOUT_TORCH = {"__init__", "__main__", "cli", "config", "errors", "storage", "web"}
"""Parts that must start without torch."""


def table() -> dict[str, set[str]]:
    """The rows of ARCHITECTURE.md's import table: part -> parts that it may import."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text.split("Who may import whom")[1], re.M)
    assert rows, "ARCHITECTURE.md has no import table under 'Who may import whom'"
    return {part: set(re.findall(r"`(\w+)`", allowed)) for part, allowed in rows}


def test_every_part_has_a_row() -> None:
    parts = {part_of(f) for f in python_files("src/cutaway")}
    assert parts <= set(table()), f"no row in ARCHITECTURE.md for {sorted(parts - set(table()))}"


def test_the_table_has_no_cycle() -> None:
    rows, done = table(), set()
    while left := set(rows) - done:
        free = {part for part in left if not (rows[part] & left) - {part}}
        assert free, f"ARCHITECTURE.md's import table runs in a circle among {sorted(left)}"
        done |= free


@pytest.mark.parametrize("path", python_files("src/cutaway"), ids=shown)
def test_imports_follow_the_table(path) -> None:
    part = part_of(path)
    allowed = table()[part] | {part}
    for line, name in imports(path):
        where = f"{shown(path)}:{line}"
        assert not name.startswith("."), f"{where}: imports are written in full, not relative"
        assert name != "cutaway", f"{where}: nothing inside imports from the package root"
        if name.startswith("cutaway."):
            other = name.split(".")[1]
            assert other in allowed, f"{where}: {part} may not import {other} (ARCHITECTURE.md)"


@pytest.mark.parametrize("path", python_files("src/cutaway"), ids=shown)
def test_libraries_stay_where_they_belong(path) -> None:
    part = part_of(path)
    for line, name in imports(path):
        library = name.split(".")[0]
        where = f"{shown(path)}:{line}"
        assert part in ONLY_IN.get(library, {part}), f"{where}: {library} belongs to {ONLY_IN[library]}, not to {part}"
        assert library != "torch" or part not in WITHOUT_TORCH, f"{where}: {part} must start without torch"


def test_only_declared_libraries_are_imported() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8").lower()
    spelled = {"PIL": "pillow"}
    for path in python_files("src/cutaway"):
        for line, name in imports(path):
            library = name.split(".")[0]
            if library in sys.stdlib_module_names or library == "cutaway":
                continue
            wanted = spelled.get(library, library).lower()
            assert f'"{wanted}' in declared, f"{shown(path)}:{line}: {library} is not a dependency in pyproject.toml"


def test_transformers_stays_with_the_comparisons() -> None:
    for path in python_files("tests", "examples", "training", "docs"):
        if (ROOT / "tests" / "reference") in path.parents:
            continue
        named = [line for line, name in imports(path) if name.split(".")[0] == "transformers"]
        assert not named, f"{shown(path)}:{named}: only tests/reference and benchmarks compare with transformers"


def test_the_package_was_found() -> None:
    assert len(python_files("src/cutaway")) > 10
    assert PACKAGE.is_dir()
