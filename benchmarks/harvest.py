"""Block 10 of 28 alone over many images in batches, the values to disk: the forward ends behind what was asked."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import OURS, Work
from benchmarks.models import decoder, keys, noise, pair

VISION = {"depth": 4, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "num_position_embeddings": 64}
BLOCK = 10


class Stop(Exception):  # noqa: N818 - it ends a forward, and is no error
    """Ends a hooked forward behind the block."""


def sides(images: int, batch: int, hidden: int) -> dict[str, Callable[[], Any]]:
    """Reads the block's output for all images, batch by batch, and keeps it in files."""
    ours, theirs = pair(decoder(hidden, 28, 32, **VISION))
    text = ours.prompt("What is shown?", images=1)
    batches = [
        ours.processor(text=[text] * batch, images=[noise(96, 96, start + n) for n in range(batch)])
        for start in range(0, images, batch)
    ]
    position = Path(tempfile.mkdtemp(prefix="cutaway-harvest-"))
    address = f"layers.{BLOCK}.layer_output"
    block = theirs.model.language_model.layers[BLOCK]

    def over(read: Callable[[Any], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            values = torch.empty(0)
            for number, inputs in enumerate(batches):
                values = read(inputs)
                torch.save(values, position / f"{number}.pt")
            return values

        return run

    @torch.no_grad()
    def hooked(inputs: Any) -> Tensor:
        kept = []

        def keep(module: Any, args: Any, output: Any) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)
            raise Stop

        handle = block.register_forward_hook(keep)
        try:
            theirs(**keys(inputs), use_cache=False)
        except Stop:
            pass
        finally:
            handle.remove()
        return kept[0]

    results = {OURS: over(lambda inputs: ours.run(inputs, read=address)[address]), "hooks with a stop": over(hooked)}
    return {OURS: results[OURS], **nnsighted(theirs, over), "hooks with a stop": results["hooks with a stop"]}


def nnsighted(theirs: Any, over: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """The same in nnsight, which stops too; nothing where it is not installed."""
    if importlib.util.find_spec("nnsight") is None:
        return {}
    import nnsight  # type: ignore[import-not-found]

    model = nnsight.NNsight(theirs)

    @torch.no_grad()
    def read(inputs: Any) -> Tensor:
        with model.trace(**keys(inputs), use_cache=False) as tracer:
            values = model.model.language_model.layers[BLOCK].output.save()
            tracer.stop()
        return values[0] if isinstance(values, tuple) else values

    return {"nnsight with a stop": over(read)}


def works(quick: bool) -> Sequence[Work]:
    sizes = (4, 2, 64) if quick else (256, 32, 256)
    return [Work("layer 10 of 28, 256 images in batches, to disk", partial(sides, *sizes), target=0.9)]
