"""Programs in which torch raises an error inside a traced forward, at many depths of the C stack.

`python -m tests.trace.torch_errors FIRST LAST` runs programs in this process and prints the number of each that has
run: a walk over a stack that is gone would end the process.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from cutaway.trace.steps import Steps
from tests.trace.toy import IDS, ROWS, Toy, opened

SMALL = torch.ones(2, 3)
KINDS: dict[str, Callable[[], Any]] = {
    "index": lambda: torch.nn.functional.embedding(torch.tensor([99]), SMALL),
    "shape": lambda: SMALL @ SMALL,
    "memory": lambda: torch.empty(1 << 60),
    "dtype": lambda: torch.nn.functional.conv1d(SMALL[None].long(), SMALL[None]),
}
MODES = ("traced", "generated", "grad")
PROGRAMS = [(depth, kind, mode) for depth in range(24) for kind, mode in itertools.product(KINDS, MODES)]


class Twice:
    """The forwards of a generation of two steps."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.steps = toy, 2

    def next_forward(self) -> Callable[[], torch.Tensor] | None:
        self.steps -= 1
        return (lambda: self.toy(IDS, ROWS)) if self.steps >= 0 else None

    def accept(self, result: torch.Tensor) -> torch.Tensor:
        return result


def deeper(levels: int, work: Callable[[], None]) -> None:
    """`work`, so many calls of C and Python further down the stack."""
    if levels:
        next(map(lambda _: deeper(levels - 1, work), [0]))  # noqa: C417 - a call from C
    else:
        work()


def program(seed: int, kind: str, mode: str) -> None:
    """Open traces at random depths; in some of them torch raises an error at a random layer."""
    chance, toy = random.Random(seed), Toy()

    def hook(*_: Any) -> None:
        if chance.random() < 0.7:
            deeper(chance.randrange(4), lambda: KINDS[kind]() and None)

    toy.layers[chance.randrange(3)].register_forward_hook(hook)

    def body() -> None:
        with suppress(RuntimeError, IndexError, MemoryError):
            if mode == "generated":
                with Steps(toy, Twice(toy)) as run:
                    for _ in run:
                        deeper(chance.randrange(6), lambda: toy.layers[0].layer_output)
                        deeper(chance.randrange(30), lambda: toy.logits)
            else:
                with opened(toy, grad=mode == "grad"):
                    deeper(chance.randrange(6), lambda: toy.layers[0].layer_output)
                    deeper(chance.randrange(30), lambda: toy.logits)

    for _ in range(6):
        deeper(chance.randrange(40), body)


def main(first: int, last: int) -> None:
    for seed, (depth, kind, mode) in enumerate(PROGRAMS[first:last], first):
        program(seed + depth, kind, mode)
        print(seed, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
