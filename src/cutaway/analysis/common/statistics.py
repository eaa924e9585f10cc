"""The statistics that several techniques report: bootstrap intervals and correlation. It knows numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutaway.errors import InputError


def bootstrap(
    values: Any, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean over the first axis and its percentile interval, [pairs …] to three arrays […].

    Pairs are drawn with replacement (Efron 1979). One pair has no interval: low and high are NaN.
    """
    table = np.asarray(values, np.float64)
    if table.ndim == 0 or len(table) == 0 or not 0 < level < 1 or samples < 1:
        raise InputError(
            f"A bootstrap takes [pairs …], at least one pair, a level between 0 and 1 and samples of 1 or more; got "
            f"{table.shape}, level={level}, samples={samples}."
        )
    mean = table.mean(0)
    if len(table) == 1:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    draws = np.random.default_rng(seed).integers(0, len(table), (samples, len(table)))
    means = np.stack([table[draw].mean(0) for draw in draws])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return mean, low, high


def correlation(a: Any, b: Any) -> float:
    """Pearson's correlation of two arrays of one shape, entries with NaN left out; NaN where one does not vary."""
    left, right = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if left.shape != right.shape:
        raise InputError(f"A correlation takes two arrays of one size; got {left.size} and {right.size} numbers.")
    kept = np.isfinite(left) & np.isfinite(right)
    left, right = left[kept], right[kept]
    if len(left) < 2 or left.std() == 0 or right.std() == 0:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])
