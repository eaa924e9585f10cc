"""Ctrl-C at any moment: exit code 130 and no traceback, while the command is being imported too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m cutaway`, with the modules in `folder` in front of the installed ones."""
    path = os.pathsep.join((str(folder), *sys.path))
    return subprocess.run(
        [sys.executable, "-m", "cutaway", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("module", ["typer", "rich", "torch"])
def test_ctrl_c_while_something_is_imported_ends_with_130_and_without_a_word(module, tmp_path) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPT)
    done = run_command(tmp_path, "inspect", "nano")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_a_command_runs_ends_with_130_and_without_a_word(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, os, signal\nbuiltins.input = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = run_command(tmp_path, "chat")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    code = "import sys, os, signal\nimport cutaway.__main__ as m\nsys.argv = ['cutaway', '--version']\n"
    code += (
        "try: m.main()\nexcept SystemExit as end: print(end.code, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.splitlines()[-1] == "0 True"


def test_importing_the_package_leaves_the_signal_handlers_alone() -> None:
    code = "import signal; before = signal.getsignal(signal.SIGINT); import cutaway.__main__; cutaway.load; "
    code += "print(signal.getsignal(signal.SIGINT) is before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
