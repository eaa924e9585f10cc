"""The command line as a whole: help, exit codes, one line for an error, silence when nobody reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutaway.cli.app import FAULT, INTERNAL, INTERRUPTED, PIPE_CLOSED, USAGE, app, run
from cutaway.errors import CheckpointError

COMMANDS = sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback)


def failing(monkeypatch, fault: BaseException) -> None:
    """Makes `cutaway inspect` fail with `fault`."""

    def fail(*_, **__):
        raise fault

    monkeypatch.setattr("cutaway.tasks.inspect.inspect", fail)


def test_no_arguments_show_the_help(capsys) -> None:
    assert run([]) == 0
    shown = capsys.readouterr().out
    assert {"ask", "inspect", "models", "tokens"} <= set(COMMANDS)
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example: cutaway {command}" in shown
    assert "--json" in shown


def test_the_version_is_the_package_s(capsys) -> None:
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"cutaway {version('cutaway')}\n"


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["inspect"], ["models", "--loud"], ["ask", "x", "--max-new-tokens", "0"]]
)
def test_wrong_arguments_are_the_user_s(arguments, capsys) -> None:
    assert run(arguments) == USAGE
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert "--help" in message


def test_a_fault_is_one_line(monkeypatch, capsys) -> None:
    failing(monkeypatch, CheckpointError("There is no folder 'x'.\nGive one that exists."))
    assert run(["inspect", "x"]) == FAULT
    assert capsys.readouterr().err == "error: There is no folder 'x'. Give one that exists.\n"


def test_debug_shows_the_traceback(monkeypatch, capsys) -> None:
    failing(monkeypatch, CheckpointError("no"))
    assert run(["--debug", "inspect", "x"]) == FAULT
    message = capsys.readouterr().err
    assert "Traceback" in message
    assert message.endswith("error: no\n")


def test_our_own_error_says_how_to_see_more(monkeypatch, capsys) -> None:
    failing(monkeypatch, ZeroDivisionError("division by zero"))
    assert run(["inspect", "x"]) == INTERNAL
    message = capsys.readouterr().err
    assert message.startswith("internal error: ZeroDivisionError: division by zero")
    assert "--debug" in message


def test_ctrl_c_is_quiet(monkeypatch, capsys) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run(["inspect", "x"]) == INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_warning_is_one_line(monkeypatch, capsys) -> None:
    import warnings

    def warn(*_, **__):
        warnings.simplefilter("always")
        warnings.warn("config.json has keys\nthat are not known", stacklevel=1)
        raise CheckpointError("no")

    monkeypatch.setattr("cutaway.tasks.inspect.inspect", warn)
    run(["inspect", "x"])
    assert capsys.readouterr().err.splitlines()[0] == "warning: config.json has keys that are not known"


def test_a_pipe_closed_while_printing_is_quiet() -> None:
    code = (
        "import sys; import cutaway.cli.app as a, cutaway.cli.show as s\n"
        "a.app.command('flood')(lambda: [print('x' * 1000) for _ in range(5000)] and None)\n"
        "sys.exit(a.run(['flood']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        message = process.stderr.read().decode()
    assert message == ""
    assert process.returncode == PIPE_CLOSED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.png"], "'missing.png', the name of a file. Put the question after it"),
        (["video.mp4"], "the name of a file"),
        (["."], "the name of a file"),
        ([""], "got an empty one"),
        (["  "], "got an empty one"),
        (["photo.jpg", ""], "got an empty one"),
        (["photo.jpg", "What", "color", "is", "it?"], "Put quotes around the question: 'What color is it?'"),
        (["What", "is", "this?"], "Put quotes around the question: 'What is this?'"),
        (["https://example.org/a.jpg", "What?"], "got the URL https://example.org/a.jpg"),
        (["http://example.org/a", "What?"], "got the URL http://example.org/a"),
        (["s3://bucket/a.png", "What?"], "got the URL s3://bucket/a.png"),
    ],
)
@pytest.mark.parametrize("command", ["ask", "ablate", "attend", "attribute", "lens", "steer"])
def test_a_question_that_is_missing_or_in_pieces_is_a_usage_error(command, words, message, capsys) -> None:
    assert run([command, *words]) == USAGE
    assert message in capsys.readouterr().err
