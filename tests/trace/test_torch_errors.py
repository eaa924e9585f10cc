"""No torch error inside a traced forward ends the process, whatever the depth of the C stack it is met at.

A share of the programs of `torch_errors`; all of them: ``python -m tests.trace.torch_errors 0 288``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest

from tests.repo.source import ROOT
from tests.trace.torch_errors import KINDS, MODES, PROGRAMS
from tests.trace.toy import Toy, opened


def run(first: int, last: int, **variables: str) -> list[int]:
    """The programs that ran to their end in a process of their own."""
    command = [sys.executable, "-m", "tests.trace.torch_errors", str(first), str(last)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.split()]


def test_the_programs_cover_every_kind_of_error_and_run() -> None:
    assert {program[1:] for program in PROGRAMS[:12]} == {(kind, mode) for kind in KINDS for mode in MODES}
    assert len(PROGRAMS) == 24 * 12


@pytest.mark.parametrize("variables", [{}, {"TORCH_SHOW_CPP_STACKTRACES": "1"}], ids=["plain", "with C++ stacks"])
def test_the_process_survives(variables) -> None:
    first = 36 if variables else 96
    last = first + (12 if variables else 36)
    assert run(first, last, **variables) == list(range(first, last))


def test_the_frames_below_the_forward_are_not_in_tracebacks() -> None:
    toy = Toy()
    toy.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught, opened(toy):
        _ = toy.logits
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert "_cushioned" not in names
    assert names[-1] == "<lambda>"
