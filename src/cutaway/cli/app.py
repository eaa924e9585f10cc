"""The commands put together, and what a failure looks like: one readable line, and an exit code that says whose fault.

It does not know what the commands do, and starts without torch: each command loads what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import typer

from cutaway.cli.ablate import ablate
from cutaway.cli.ask import ask
from cutaway.cli.attend import attend
from cutaway.cli.attribute import attribute
from cutaway.cli.chat import chat
from cutaway.cli.inspect import inspect
from cutaway.cli.lens import lens
from cutaway.cli.models import models
from cutaway.cli.patch import patch
from cutaway.cli.pathways import pathways
from cutaway.cli.probe import probe
from cutaway.cli.run import run as run_experiment
from cutaway.cli.sae import sae
from cutaway.cli.show import complain
from cutaway.cli.steer import steer
from cutaway.cli.tokens import tokens
from cutaway.cli.verify import verify
from cutaway.errors import CutawayError

USAGE, FAULT, INTERNAL, INTERRUPTED, PIPE_CLOSED = 2, 3, 70, 130, 141
"""Exit codes: wrong arguments; an input, config or checkpoint that cannot be used; our own error; Ctrl-C; no reader."""


@dataclass
class Options:
    """What is given before the command and holds for all of them."""

    debug: bool = False


app = typer.Typer(
    name="cutaway",
    help="The Qwen-VL models with the insides showing.",
    epilog="Example: cutaway ask seven.png 'What digit is this?'",
    rich_markup_mode=None,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cutaway {version('cutaway')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The Qwen-VL models with the insides showing."""
    context.obj.debug = debug


for command, example in (
    (ask, "cutaway ask seven.png 'What digit is this?'"),
    (chat, "cutaway chat seven.png --system 'Answer in one word.'"),
    (inspect, "cutaway inspect Qwen3-VL-32B"),
    (tokens, "cutaway tokens photo.jpg video.mp4 --draw grid.png"),
    (models, "cutaway models"),
    (verify, "cutaway verify ./my-finetune"),
    (pathways, "cutaway pathways red.png 'What color is the square?' --figure routes.png"),
    (lens, "cutaway lens red.png 'What color is the square?' --layer 3 --figure words.png"),
    (attend, "cutaway attend red.png 'What color is the square?' --from last --figure map.png"),
    (attribute, "cutaway attribute red.png 'What color is the square?' --answer red --foil blue"),
    (patch, "cutaway patch red.png blue.png 'What color is the square?' --figure grid.png"),
    (ablate, "cutaway ablate red.png 'What color is the square?' --component head"),
    (steer, "cutaway steer red.png 'What color is the square?' --toward blue.png --away red.png --figure sweep.png"),
    (probe, "cutaway probe images/ 'What color is it?' --figure curve.png"),
    (sae, "cutaway sae my-dictionary/ images/ --value vision.image_features --figure regions.png"),
    (run_experiment, "cutaway run experiment.json --out result.json"),
):
    app.command(epilog=f"Example: {example}")(command)


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns the exit code. Whatever fails is said in one line on the error stream."""
    options = Options()
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain("warning", message)
            code = command.main(list(arguments) or ["--help"], "cutaway", standalone_mode=False, obj=options)
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Exception as fault:
        if options.debug and not isinstance(fault, typer.TyperException):
            traceback.print_exc()
        return explain(fault)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:  # no command calls it: typer does, with quieted streams, when the reader of our output has gone
        return PIPE_CLOSED


def explain(fault: Exception) -> int:
    """Says what went wrong and returns the exit code for it."""
    if isinstance(fault, typer.TyperException):
        path = getattr(getattr(fault, "ctx", None), "command_path", "cutaway")
        complain("error", f"{fault.format_message()} See `{path} --help`.")
        return USAGE
    if isinstance(fault, typer.Abort):
        return INTERRUPTED
    if isinstance(fault, OSError) and fault.errno == errno.EPIPE:
        # The reader has gone after the last line: point stdout elsewhere, or the interpreter complains as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if isinstance(fault, CutawayError):
        complain("error", fault)
        return FAULT
    complain("internal error", f"{type(fault).__name__}: {fault} (cutaway --debug … shows the traceback)")
    return INTERNAL
