"""Linear maps from features to classes or numbers: fitted with a penalty on the weights, scored with intervals.

Logistic regression minimises the mean cross-entropy plus ``penalty / (2 n)`` times the squared weights; ridge
regression the squared error plus `penalty` times the squared weights. Features are scaled to zero mean and unit
variance over the examples that are fitted, and intercepts carry no penalty. Which model value the features come from
is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A fitted linear map from features to scores of classes, or to a number.

    - `weights` [width outputs] and `bias` [outputs], float64, for features as they came.
    - `classes`: the name of each output; empty where the one output is a number.
    """

    weights: Tensor
    bias: Tensor
    classes: tuple[str, ...] = ()

    def __call__(self, features: Tensor) -> Tensor:
        """Return [… outputs] of features [… width]: scores of the classes, or the number."""
        width = len(self.weights)
        if not isinstance(features, Tensor) or features.shape[-1:] != (width,):
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InputError(f"This probe reads features [… {width}], a tensor; got {got}.")
        return features.double() @ self.weights + self.bias

    def direction(self, name: str | None = None) -> Tensor:
        """Return [width] of unit length: where the score of a class over the mean of all classes, or the number, rises.

        Raises `InputError` for a class that there is not, or where the score does not depend on the features.
        """
        if self.classes and name not in self.classes:
            raise InputError(f"`name` must be one of the classes {', '.join(self.classes)}; got {name!r}.")
        column = self.weights[:, self.classes.index(str(name))] if self.classes else self.weights[:, 0]
        column = column - self.weights.mean(1) if self.classes else column
        if not float(column.norm()):
            raise InputError("The probe's weights are all zero, so there is no direction: its features do not vary.")
        return (column / column.norm()).float()


def fit(features: Tensor, targets: Tensor, classes: tuple[str, ...], penalty: float) -> LinearProbe:
    """Return a map fitted on features [examples width] and class numbers, or without `classes` numbers, [examples]."""
    x = features.double()
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-12, spread, torch.ones_like(spread))
    scaled = (x - mean) / spread
    rotated, back = _rotated(scaled)
    weights, bias = _logistic(rotated, targets, len(classes), penalty) if classes else _ridge(rotated, targets, penalty)
    weights = back(weights) / spread[:, None]
    return LinearProbe(weights, bias - mean @ weights, classes)


def _rotated(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The examples rotated into the dimensions that they span, and the function that rotates weights back.

    The penalty does not change under rotation, so the fit is the same and no wider than there are examples.
    """
    if len(x) >= x.shape[1]:
        return x, lambda weights: weights
    left, lengths, right = torch.linalg.svd(x, full_matrices=False)
    return left * lengths, lambda weights: right.T @ weights


def _logistic(x: Tensor, y: Tensor, count: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression, [width count] and [count]; convex, so L-BFGS from zero finds its one minimum."""
    weights = torch.zeros(x.shape[1], count, dtype=x.dtype, device=x.device, requires_grad=True)
    bias = torch.zeros(count, dtype=x.dtype, device=x.device, requires_grad=True)
    steps = torch.optim.LBFGS(
        [weights, bias], max_iter=100, history_size=10, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights + bias, y)
        loss = loss + penalty / (2 * len(x)) * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        steps.step(closure)  # type: ignore[arg-type]  # torch says float; a tensor is what it takes
    return weights.detach(), bias.detach()


def _ridge(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Closed form; `x` has mean zero, so the intercept is the targets' mean."""
    centred = (y.double() - y.double().mean())[:, None]
    inner = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return torch.linalg.solve(inner, x.T @ centred), y.double().mean().reshape(1)


def predictions(probe: LinearProbe, features: Tensor) -> Tensor:
    """Return [examples] class numbers, or numbers, predicted from features [examples width]."""
    outputs = probe(features)
    return outputs.argmax(-1) if probe.classes else outputs[:, 0]


def scores(targets: Tensor, predicted: Tensor, are_classes: bool) -> tuple[float, float, float]:
    """Return accuracy with Wilson's interval, or R² with a bootstrap interval over examples, at 95 %."""
    true, guesses = targets.double().cpu().numpy(), predicted.double().cpu().numpy()
    if are_classes:
        right = int((true == guesses).sum())
        return right / len(true), *wilson(right, len(true))
    draws = np.random.default_rng(0).integers(0, len(true), (1000, len(true)))
    low, high = np.quantile([_r2(true[d], guesses[d]) for d in draws], [0.025, 0.975])
    return _r2(true, guesses), float(low), float(high)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); unlike a bootstrap's it has a width when all are right."""
    z, share = 1.959964, right / count
    middle, spread = share + z**2 / (2 * count), z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low, high = (float((middle + sign * spread) / (1 + z**2 / count)) for sign in (-1, 1))
    return 0.0 if right == 0 else low, 1.0 if right == count else high


def _r2(true: np.ndarray, predicted: np.ndarray) -> float:
    spread = ((true - true.mean()) ** 2).sum()
    return float(1 - ((true - predicted) ** 2).sum() / spread) if spread > 0 else float("nan")
