"""`python -m cutaway` and the `cutaway` command: pass the arguments to the command line, and its exit code back.

Ctrl-C while the command line is still being imported ends the process quietly, with exit code 130 as later on.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line with the process's arguments and end the process."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where a shell has set the process to ignore Ctrl-C
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from cutaway.cli.app import run

    signal.signal(signal.SIGINT, handler)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
