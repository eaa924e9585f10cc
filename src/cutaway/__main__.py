"""`python -m cutaway` and the `cutaway` command: hands the arguments to the command line, and its exit code back."""

from __future__ import annotations

import sys

from cutaway.cli.app import run


def main() -> None:
    """Runs the command line with the process's arguments and ends the process."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
