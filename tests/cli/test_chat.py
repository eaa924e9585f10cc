"""`cutaway chat`, the real command: piped questions, commands, JSON, and a terminal with Ctrl-C and Ctrl-D."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

CUTAWAY = [sys.executable, "-m", "cutaway"]


@pytest.fixture
def files(red, wide, tmp_path) -> dict[str, str]:
    red.save(tmp_path / "red.png"), wide.save(tmp_path / "the wide one.png")
    return {"red": str(tmp_path / "red.png"), "wide": str(tmp_path / "the wide one.png")}


def chat(lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CUTAWAY, "chat", *arguments], input=lines, capture_output=True, text=True, check=False, timeout=120
    )


def test_every_line_is_a_question_of_one_conversation(files, nano, red) -> None:
    done = chat("What shape is this?\n\nWhat color is the square?\n", files["red"])
    conversation = nano.chat()
    answers = [conversation.ask("What shape is this?", images=[red]), conversation.ask("What color is the square?")]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, answers, "")


def test_files_are_added_and_turns_taken_back(files, nano, red, wide) -> None:
    lines = f"What shape is this?\n/undo\n/add {files['red']} '{files['wide']}'\nAre they the same?\n"
    done = chat(lines, files["wide"])
    expected = [nano.ask("What shape is this?", [wide]), nano.ask("Are they the same?", [red, wide])]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)


def test_json_is_a_line_for_each_turn(files, nano, red) -> None:
    done = chat("What color is the square?\n", files["red"], "--json", "--system", "Be brief.", "--max-new-tokens", "3")
    answer = nano.ask("What color is the square?", [red], system="Be brief.", max_new_tokens=3)
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(turn["question"], turn["answer"]) for turn in turns] == [("What color is the square?", answer)]
    assert turns[0]["finish_reason"] in ("eos", "length")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("/nothing\n", "begins with / is one of /add FILE…, /undo; got '/nothing'"),
        ("/undo\n", "no turn to undo"),
        ("/add nowhere.png\n", "nowhere.png does not exist"),
        ("/add 'half\n", "written as in a shell"),
    ],
)
def test_a_line_that_cannot_be_followed_ends_a_piped_conversation(lines, message) -> None:
    done = chat(lines)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_a_file_that_is_none_is_said_before_the_first_question() -> None:
    done = chat("What is this?\n", "nowhere.png")
    assert (done.returncode, done.stdout) == (3, "")
    assert "nowhere.png" in done.stderr


def test_no_question_is_no_answer() -> None:
    assert (chat("").returncode, chat("").stdout) == (0, "")


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [*CUTAWAY, "chat", *arguments], stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(follower)
        self.seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self.leader, keys)

    def end_by(self, key: bytes) -> int:
        """Type a key until the command has ended, and return its exit code.

        A signal that arrives between the prompt and the read behind it is noticed at the next key, as in any program
        that calls Python's `input`.
        """
        try:
            for _ in range(30):
                self.type(key)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return self.process.wait(2)
            raise AssertionError(f"The command goes on: {self.seen}")
        finally:
            self.process.kill()
            self.process.wait(60)

    def wait_for(self, text: str, after: int = 0) -> int:
        """Read until the terminal shows `text` behind what was shown before; the length of all that is shown."""
        end = time.monotonic() + 100
        while text not in self.seen[after:] and time.monotonic() < end:
            if select.select([self.leader], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.leader, 4096).decode(errors="replace")
                except OSError:
                    break
        assert text in self.seen[after:], self.seen
        return len(self.seen)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals")
def test_a_terminal_has_a_prompt_and_ctrl_d_ends_it(files) -> None:
    terminal = Terminal(files["red"])
    at = terminal.wait_for("> ")
    terminal.type(b"What color is the square?\n")
    at = terminal.wait_for("red\r\n> ", at)
    terminal.type(b"/nothing\n")
    at = terminal.wait_for("> ", terminal.wait_for("error: ", at) - 2)
    assert terminal.end_by(b"\x04") == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals")
def test_ctrl_c_stops_an_answer_and_at_the_prompt_the_command(tmp_path: Path) -> None:
    terminal = Terminal("--max-new-tokens", "900", "--temperature", "30", "--seed", "1")
    at = terminal.wait_for("> ")
    terminal.type(b"Say much\n")
    at = terminal.wait_for("\n", at)
    time.sleep(0.5)
    terminal.type(b"\x03")
    at = terminal.wait_for("> ", terminal.wait_for("stopped: the turn is taken back", at) - 2)
    terminal.type(b"/undo\n")
    at = terminal.wait_for("> ", terminal.wait_for("no turn to undo", at) - 2)
    assert terminal.end_by(b"\x03") == 130
    assert "Traceback" not in terminal.seen
