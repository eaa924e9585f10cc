"""Memory that attention maps take above the forward: 36 blocks, 32 heads, a picture of 4,096 tokens, on the CPU.

    python benchmarks/attention_memory.py [--blocks 36] [--side 2048]

Each way runs in a process of its own, and its peak resident memory is compared with that of a forward that stops at the
same value. Heads are narrow (16 numbers) so that a CPU does it in minutes; patterns are [heads seq seq] whatever their
width, 2.2 GB a block, so a way that makes one shows.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "image_token_id": 292,
    "video_token_id": 293,
    "vision_start_token_id": 289,
    "vision_end_token_id": 290,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": 306,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "rope_theta": 5000000.0,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0],
    },
}
"""The sizes that do not change; the tokenizer splits into bytes."""

WAYS = ("forward", "attention", "rollout")


def measure(way: str, blocks: int, side: int) -> None:
    """Runs one way and prints the tokens and the peak resident memory in MB."""
    import numpy as np
    import torch

    from cutaway.analysis import pairs
    from cutaway.analysis.attention import attention
    from cutaway.analysis.rollout import rollout
    from cutaway.subject import random
    from cutaway.trace.values import run_values

    torch.set_num_threads(1)
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "num_hidden_layers": blocks}}
    subject = random(config, dtype="float32")
    picture = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    inputs = pairs.question(subject, "Where?", [picture])
    if way == "forward":
        last = f"layers.{blocks - 1}.self_attn.attention_keys"
        run_values(subject.root, lambda: subject.root(inputs), read=last)
    elif way == "attention":
        attention(subject, inputs, tokens="question")
    else:
        rollout(subject, inputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(inputs.input_ids.shape[1], round(peak))


def main() -> None:
    """Measures every way and prints what each takes above the forward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=36)
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--way", choices=WAYS)
    given = parser.parse_args()
    if given.way:
        measure(given.way, given.blocks, given.side)
        return
    found = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, "--blocks", str(given.blocks), "--side", str(given.side)]
        tokens, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        found[way] = peak
        print(
            f"{way:10} {tokens} tokens  peak {peak:6} MB  above the forward {peak - found['forward']:6} MB", flush=True
        )


if __name__ == "__main__":
    main()
