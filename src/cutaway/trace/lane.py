"""`Lane`: a stack on which forwards run, one after another, beside the code that steps them.

A greenlet's stack is memory that is asked of the system and given back, which for a small model is a hundredth of its
forward: a lane whose forward is over waits for the next one of its thread. It knows nothing of runs and values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Ended(GreenletExit):
    """Thrown into a forward to end it. A plain `GreenletExit` is thrown into a lane that nobody has, and ends that."""


class Work:
    """What a lane is at: a forward not yet begun; whether the last one is over, and what it returned."""

    __slots__ = ("forward", "over", "result")

    def __init__(self) -> None:
        self.forward: Callable[[], Any] | None = None
        self.over, self.result = False, None


class Lane(greenlet):
    """A greenlet that runs a forward, then waits for another. An error of a forward goes to its parent and ends it."""

    def __init__(self) -> None:
        self.work = Work()
        super().__init__(partial(_serve, self.work))  # which does not know the lane: a lane nobody has goes at once

    def release(self) -> None:
        """Keeps the lane, whose forward is over, for the next forward of this thread.

        Not when another greenlet than the thread's own asks: what a lane waits in holds on to that one.
        """
        self.work.result = self.gr_context = None
        if getcurrent().parent is None:
            _waiting.lane = self


def _serve(work: Work) -> None:
    while True:
        forward, work.forward = work.forward, None
        assert forward is not None
        try:
            work.result = forward()
        except Ended:
            work.result = None
        work.over = True
        del forward  # a lane that waits holds on to nothing
        getcurrent().parent.switch()  # type: ignore[union-attr]


class _Waiting(threading.local):
    lane: Lane | None = None


_waiting = _Waiting()


def lane(forward: Callable[[], Any], context: Context | None) -> Lane:
    """A lane for a forward, which the first switch to it starts in `context`."""
    found, _waiting.lane = _waiting.lane, None
    if found is None:
        found = Lane()
    found.work.forward, found.work.over, found.gr_context = forward, False, context
    return found
