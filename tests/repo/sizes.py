"""Print what may be worth splitting or merging: long files and functions, and short files that one file alone imports.

Sizes are guides, so this is a list of questions and never an error. `make check` prints it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.repo.source import imports, module_name, python_files, shown, tree

LONG_FILE, SHORT_FILE = 400, 40
LONG_FUNCTION, LONG_FORWARD = 40, 30


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without signature and docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function of a file, methods and inner ones included."""
    return [n for n in ast.walk(module) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def questions() -> Iterator[str]:
    """Yield one line for each long file, long function, and short file with a single importer."""
    files = python_files("src/cutaway")
    importers: dict[str, set[str]] = defaultdict(set)
    for path in files:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    importers[f"{node.module}.{alias.name}"].add(shown(path))
        for _, name in imports(path):
            importers[name].add(shown(path))
    for path in files:
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > LONG_FILE:
            yield f"{shown(path)}: {count} lines; should it be split?"
        users = importers[module_name(path)] - {shown(path)}
        if count < SHORT_FILE and len(users) == 1 and not path.name.startswith("__"):
            yield f"{shown(path)}: {count} lines, imported by {next(iter(users))} alone; should the two be one?"
        for function in functions(tree(path)):
            most = LONG_FORWARD if function.name == "forward" else LONG_FUNCTION
            if (count := code_lines(function)) > most:
                yield f"{shown(path)}:{function.lineno}: {function.name} has {count} lines; should it be split?"


if __name__ == "__main__":
    for question in questions():
        print(question)
