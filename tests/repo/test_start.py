"""What a fresh interpreter does: starts quickly, loads only what is used, and can import any module first."""

from __future__ import annotations

import subprocess
import sys

from tests.repo.source import module_name, python_files

HEAVY = ("torch", "transformers", "matplotlib", "sklearn", "skimage", "av", "PIL", "tokenizers", "numpy")


def fresh(code: str) -> str:
    """What `code` prints in a new interpreter; its error output on failure."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert fresh(f"import sys, cutaway; print([m for m in {HEAVY} if m in sys.modules])") == "[]"


def test_the_command_line_shows_help_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['cutaway', '--help']\n"
        "import cutaway.__main__ as start\n"
        "try: start.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print('loaded', [m for m in {HEAVY} if m in sys.modules])"
    )
    assert fresh(code).endswith("loaded []")


def test_loading_a_model_loads_no_figures_and_no_reference() -> None:
    code = "import sys, cutaway.api; print([m for m in ('transformers', 'matplotlib', 'sklearn') if m in sys.modules])"
    assert fresh(code) == "[]"


def test_any_module_can_be_imported_first() -> None:
    """An import circle shows only from some starting points, so each module is the first one once.

    One interpreter does: the package is forgotten before each import, the libraries stay.
    """
    names = [module_name(f) for f in python_files("src/cutaway")]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    for known in [m for m in sys.modules if m.split('.')[0] == 'cutaway']: del sys.modules[known]\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as fault: sys.exit(f'{name} cannot be imported first: {fault}')\n"
        "print('all')"
    )
    assert fresh(code) == "all"
