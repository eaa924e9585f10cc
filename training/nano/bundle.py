"""Puts a trained checkpoint's averaged weights, rounded to bfloat16, into the package with all files beside them::

python -m training.nano.bundle runs/nano/checkpoint.pt

Of several runs that were trained on from one checkpoint, with other draws, it takes the mean of their weights, which
can err less than any of them (Wortsman et al. 2022, "model soups").
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.write import save_weights
from cutaway.model.build import build
from training.nano import files


def weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean over checkpoints, as `training.nano.train` saves them, of each one's averaged weights, by name."""
    runs = [torch.load(path)["mean"] for path in checkpoints]
    names = [name for name in runs[0] if name != "n_averaged"]
    return {name.removeprefix("module."): torch.stack([run[name] for run in runs]).mean(0) for name in names}


def bundle(checkpoints: Sequence[Path], folder: Path) -> None:
    """Writes a whole model folder."""
    tokenizer = files.write(folder)
    config = files.config(tokenizer)
    model = build(read_config(config))
    model.load_state_dict(weights(checkpoints))
    save_weights(model.bfloat16(), folder, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Puts trained weights into the package.")
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, default=files.BUNDLE)
    options = parser.parse_args()
    bundle(options.checkpoints, options.to)
