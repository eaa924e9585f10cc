"""Puts a finished run's averaged weights, rounded to bfloat16, into the package with all files beside them::

    python -m training.nano.bundle runs/nano/checkpoint.pt

Do so only when `evaluate` finds the run better; then write RESULTS.md again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.write import save_weights
from cutaway.model.build import build
from training.nano import files


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, averaged over the last steps, by name."""
    mean = torch.load(checkpoint)["mean"]
    return {name.removeprefix("module."): weight for name, weight in mean.items() if name != "n_averaged"}


def bundle(checkpoint: Path, folder: Path, kind: str = "plain") -> None:
    """Writes a whole model folder."""
    tokenizer = files.write(folder, kind)
    config = files.config(tokenizer, kind)
    model = build(read_config(config))
    model.load_state_dict(weights(checkpoint))
    save_weights(model.bfloat16(), folder, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Puts trained weights into a model folder.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--to", type=Path, default=files.BUNDLE)
    parser.add_argument("--kind", choices=files.KINDS, default="plain", help="which model the checkpoint is of")
    options = parser.parse_args()
    bundle(options.checkpoint, options.to, options.kind)
