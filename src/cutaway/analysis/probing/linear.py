"""Linear maps from features to classes or numbers: fitted with a penalty on the weights, and scored with intervals.

Logistic regression minimises the mean cross-entropy plus ``penalty / (2 n)`` times the squared weights; ridge
regression the squared error plus `penalty` times the squared weights. Features are scaled to zero
mean and unit variance of the examples that are fitted, and intercepts carry no penalty. It knows numbers alone.
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
    """A fitted map. - `weights` [width outputs] and `bias` [outputs], float64, on features as they came.

    - `classes`: one an output; empty where the one output is a number.
    """

    weights: Tensor
    bias: Tensor
    classes: tuple[str, ...] = ()

    def __call__(self, features: Tensor) -> Tensor:
        """[… outputs] of features [… width]: scores of the classes, or numbers."""
        return features.double() @ self.weights + self.bias

    def direction(self, name: str | None = None) -> Tensor:
        """[width] of unit length: where the score of a class, against the mean of all, or the number rises."""
        if self.classes and name not in self.classes:
            raise InputError(f"Say for which class: {', '.join(self.classes)}; got {name!r}.")
        column = self.weights[:, self.classes.index(str(name))] if self.classes else self.weights[:, 0]
        column = column - self.weights.mean(1) if self.classes else column
        return (column / column.norm()).float()


def fit(features: Tensor, targets: Tensor, classes: tuple[str, ...], penalty: float) -> LinearProbe:
    """A map from features [examples width] to class numbers, or without `classes` to numbers [examples]."""
    x = features.double()
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-12, spread, torch.ones_like(spread))
    scaled = (x - mean) / spread
    turned, back = _turned(scaled)
    weights, bias = _logistic(turned, targets, len(classes), penalty) if classes else _ridge(turned, targets, penalty)
    weights = back(weights) / spread[:, None]
    return LinearProbe(weights, bias - mean @ weights, classes)


def _turned(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The examples in as many dimensions as they span, and the way back for weights.

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


def predictions(model: LinearProbe, features: Tensor) -> Tensor:
    """[examples] class numbers, or numbers."""
    found = model(features)
    return found.argmax(-1) if model.classes else found[:, 0]


def scores(targets: Tensor, predicted: Tensor, classed: bool) -> tuple[float, float, float]:
    """Accuracy with Wilson's interval, or R² with a bootstrap interval, at 95 %."""
    true, said = targets.double().cpu().numpy(), predicted.double().cpu().numpy()
    if classed:
        right = int((true == said).sum())
        return right / len(true), *wilson(right, len(true))
    draws = np.random.default_rng(0).integers(0, len(true), (1000, len(true)))
    low, high = np.quantile([_r2(true[d], said[d]) for d in draws], [0.025, 0.975])
    return _r2(true, said), float(low), float(high)


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); unlike the bootstrap's it has a width when all or none are right."""
    z, share = 1.959964, right / count
    middle, spread = share + z**2 / (2 * count), z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low, high = (float((middle + sign * spread) / (1 + z**2 / count)) for sign in (-1, 1))
    return 0.0 if right == 0 else low, 1.0 if right == count else high


def _r2(true: np.ndarray, said: np.ndarray) -> float:
    spread = ((true - true.mean()) ** 2).sum()
    return float(1 - ((true - said) ** 2).sum() / spread) if spread > 0 else float("nan")
