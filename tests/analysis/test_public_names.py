"""`cutaway.analysis` lists its public names, loads them lazily, and has each from one module."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

from cutaway import analysis
from tests.repo.source import ROOT

PUBLIC = {name: getattr(analysis, name) for name in analysis.__all__}


def test_every_public_name_is_listed_and_found() -> None:
    assert set(PUBLIC) <= set(dir(analysis))
    assert all(result is getattr(analysis, name) for name, result in PUBLIC.items())
    assert len(PUBLIC) == sum(len(names) for modules in analysis.GROUPS.values() for names in modules.values())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'patchh'; `dir\(\)` lists"):
        _ = analysis.patchh
    assert not hasattr(analysis, "patchh")


def test_a_name_is_no_module_of_the_package() -> None:
    modules = {path.stem for path in (ROOT / "src/cutaway/analysis").iterdir()}
    assert not modules & set(PUBLIC)


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse((ROOT / "src/cutaway/analysis/__init__.py").read_text(encoding="utf-8"))
    imported: dict[str, list[str]] = {}
    for node in (n for branch in tree.body if isinstance(branch, ast.If) for n in branch.body):
        assert isinstance(node, ast.ImportFrom)
        names = imported.setdefault((node.module or "").removeprefix("cutaway.analysis."), [])
        names += [alias.name for alias in node.names]
    listed = {m: tuple(sorted(names)) for modules in analysis.GROUPS.values() for m, names in modules.items()}
    assert {module: tuple(sorted(names)) for module, names in imported.items()} == listed


@pytest.mark.parametrize(
    "name", [n for n, result in PUBLIC.items() if inspect.isfunction(result) or inspect.isclass(result)]
)
def test_a_public_name_says_what_it_is_in_one_sentence(name) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text.split("\n\n")[0].rstrip().endswith((".", ":", "…")), f"{name}: {text[:80]}"


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, cutaway.analysis as a; dir(a); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
