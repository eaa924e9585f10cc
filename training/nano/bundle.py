"""Puts a trained checkpoint's averaged weights, rounded to bfloat16, into the package with all files beside them::

python -m training.nano.bundle runs/nano/checkpoint.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from cutaway.checkpoint.configs import read_config
from cutaway.checkpoint.write import save_weights
from cutaway.model.build import build
from training.nano import files


def bundle(checkpoint: Path, folder: Path) -> None:
    """Writes a whole model folder. `checkpoint` is what `training.nano.train` saves."""
    tokenizer = files.write(folder)
    config = files.config(tokenizer)
    model = build(read_config(config))
    averaged = torch.load(checkpoint)["mean"]
    model.load_state_dict({name.removeprefix("module."): w for name, w in averaged.items() if name != "n_averaged"})
    save_weights(model.bfloat16(), folder, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Puts trained weights into the package.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--to", type=Path, default=files.BUNDLE)
    options = parser.parse_args()
    bundle(options.checkpoint, options.to)
