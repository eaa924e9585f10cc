"""The loop of `patch_grid.py` in nnsight on transformers; started by it, with the folder that it wrote.

One traced forward a cell, the block's output changed at the region's tokens, the head at the last token alone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import nnsight  # type: ignore[import-not-found]
import torch
from transformers import Qwen3VLForConditionalGeneration


def main() -> None:
    """Prints seconds a cell and every result as JSON."""
    folder = Path(sys.argv[1])
    work = torch.load(folder / "work.pt")
    torch.set_num_threads(work["threads"])
    loaded = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model = nnsight.NNsight(loaded.eval())
    inputs, (right, wrong), results = work["inputs"], work["ids"], []
    clock = time.process_time if work["threads"] == 1 else time.perf_counter
    begin = 0.0
    with torch.no_grad():
        for number, (block, positions, new) in enumerate([work["cells"][0], *work["cells"]]):
            if number == 1:  # the first one warms up
                begin = clock()
            with model.trace(**inputs, logits_to_keep=1):
                model.model.language_model.layers[block].output[0, positions] = new
                logits = model.lm_head.output.save()
            results.append(float(logits[0, -1, right] - logits[0, -1, wrong]))
    seconds = (clock() - begin) / len(work["cells"])
    print(json.dumps({"seconds": seconds, "results": results[1:], "version": nnsight.__version__}))


if __name__ == "__main__":
    main()
