"""The rules of the code base that no linter knows: docstrings, what may not be written, what may not change."""

from __future__ import annotations

import ast
import re

import pytest

from tests.repo.sizes import functions, questions
from tests.repo.source import PACKAGE, ROOT, python_files, shown, tracked, tree

LARGEST = 1024 * 1024

OWN_FILES = python_files("src", "training", "benchmarks", "examples", "docs")
MODEL_FILES = [f for f in python_files("src/cutaway/model") if f.name != "cache.py"]

MAY_BE_NAMED_SO = {"requires_grad_"}
"""Methods with a trailing underscore that alter no tensor's numbers."""

MAKES_A_BUFFER = {"new_empty", "new_zeros", "new_ones", "new_full", "empty", "zeros", "ones", "full", "empty_like"}
"""What makes a tensor that nobody else can hold yet; the function that made it may fill it."""


@pytest.mark.parametrize("path", OWN_FILES + python_files("tests"), ids=shown)
def test_every_module_says_what_it_is(path) -> None:
    empty = not tree(path).body
    assert empty or ast.get_docstring(tree(path)), f"{shown(path)} has no docstring"


@pytest.mark.parametrize("path", MODEL_FILES, ids=shown)
def test_the_model_changes_nothing_in_place(path) -> None:
    """A value that was read must not be altered by what runs after it."""
    results = [f"{shown(path)}:{line}: {what}" for line, what in changes_in_place(tree(path))]
    assert not results, "a tensor is changed in place outside cache.py: " + "; ".join(results)


def changes_in_place(module: ast.Module) -> list[tuple[int, str]]:
    """Every place of a file that alters a tensor which the function did not make itself, as (line, text)."""
    results = []
    for function in functions(module):
        own = made_here(function)
        for node in ast.walk(function):
            targets = written(node)
            results += [(node.lineno, ast.unparse(node)) for t in targets if root(t) not in own]  # type: ignore[attr-defined]
    return sorted(set(results))


def written(node: ast.AST) -> list[ast.expr]:
    """What a statement or call writes into: `x[…] = `, `x += `, `x.add_(…)`, `out=x`, `inplace=`."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [t for t in targets if isinstance(t, ast.Subscript)]
    if not isinstance(node, ast.Call):
        return []
    into = [k.value for k in node.keywords if k.arg in ("out", "inplace")]
    if isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        fills_weights = ast.unparse(owner).split(".")[-1] == "init"  # torch.nn.init, before any forward has run
        if name.endswith("_") and not name.endswith("__") and name not in MAY_BE_NAMED_SO and not fills_weights:
            into.append(owner)
    return into


def root(target: ast.expr) -> str:
    """The variable at the bottom of `x[…]`, `x` or `x.part`; of an attribute the whole text."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return ast.unparse(target)


def made_here(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names that a function binds to numbers, lists, dicts or fresh buffers, and to nothing else."""
    own: set[str] = set()
    other: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                (own if is_fresh(value) else other).add(ast.unparse(name))
    return own - other


def is_fresh(value: ast.expr) -> bool:
    """Whether an expression makes something that nobody else can hold yet."""
    if isinstance(value, ast.BinOp):
        return is_fresh(value.left)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in MAKES_A_BUFFER
    return isinstance(value, ast.Constant | ast.List | ast.Dict | ast.DictComp | ast.ListComp)


def test_the_check_of_in_place_changes_sees_them() -> None:
    wrong = ("x.add_(1)", "torch.add(a, b, out=c)", "F.relu(x, inplace=True)", "x[0] = 1", "x += 1", "self.y[0] = 1")
    right = (
        "x.add(1)",
        "nn.init.zeros_(w)",
        "x.__len__()",
        "n = 0; n += 1",
        "o = x.new_empty(2); o[0] = 1",
        "x = x + 1",
    )
    for line in wrong:
        assert changes_in_place(ast.parse(f"def f(x): {line}")), line
    for line in right:
        assert not changes_in_place(ast.parse(f"def f(x): {line}")), line


FORBIDDEN = {
    "a path of one machine": re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm|" + "tmp)/", re.M),
    "a folder beside the repository": re.compile(r"\.\./" + "shared"),
    "a registry's address": re.compile("pypi" + r"\.org/simple|deb\.debian" + r"\.org|registry\.npm" + "js"),
    "an unfinished place": re.compile(r"\b(TO" + "DO|FIX" + "ME|XX" + "X)\b"),
    "an unwritten place": re.compile(r"raise NotImplemented" + "Error"),
}


def test_no_forbidden_words() -> None:
    for path in tracked():
        raw = path.read_bytes()
        if b"\0" in raw[:4096] or (ROOT / "tests" / "data") in path.parents or path.name == ".gitignore":
            continue
        text = raw.decode("utf-8", errors="replace")
        for what, pattern in FORBIDDEN.items():
            hit = pattern.search(text)
            assert hit is None, f"{shown(path)} names {what}: {hit and hit.group(0)!r}"


def test_no_large_files() -> None:
    for path in tracked():
        measured = (PACKAGE / "nano") in path.parents or (ROOT / "tests" / "data" / "oracle") in path.parents
        assert measured or path.stat().st_size <= LARGEST, f"{shown(path)} is larger than 1 MiB"


def test_sizes_are_asked_about_and_never_refused() -> None:
    """The list that `make check` prints names files and lines."""
    assert all(re.match(r"src/cutaway/[\w/]+\.py:(\d+:)? .*\?$", question) for question in questions())


DEFINED_ONCE = {
    "Place",
    "Row",
    "Table",
    "Values",
    "Run",
    "Source",
    "LINES",
    "Cells",
    "Change",
    "Layout",
    "Part",
    "Edit",
    "Forwards",
    "Grid",
    "Experts",
    "ValueRef",
    "TokenLocation",
    "TokenTable",
}
"""Public names of which the package had several, and their successors."""


def test_a_public_name_is_defined_once() -> None:
    homes: dict[str, set[str]] = {}
    for path in python_files("src/cutaway"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                homes.setdefault(node.name, set()).add(shown(path))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    homes.setdefault(ast.unparse(target), set()).add(shown(path))
    twice = {name: sorted(files) for name, files in homes.items() if name in DEFINED_ONCE and len(files) > 1}
    assert not twice, f"A public name is defined in one module; got {twice}. Rename all but one."
