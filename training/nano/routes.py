"""Cuts the routes from the image into the text model: the image features and each DeepStack term."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cutaway.observe import Observer

FEATURES, TERM = ("image_features", "video_features"), "deepstack_output"


class Cut(Observer):
    """Zeroes the values of these names wherever a forward passes them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """The value, or zeros in its place."""
        return value * 0 if name in self.names else value


class Routes(Cut):
    """Keeps what enters the text model by each route (`values`, in the forward's order), and cuts a route of some
    samples.
    """

    def __init__(self, keep: Tensor | None) -> None:
        """`keep` [routes batch]: 0 where a route is cut; None cuts nothing. Samples have equally many image tokens."""
        super().__init__((*FEATURES, TERM))
        self.keep = keep
        self.values: list[Tensor] = []

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """The value, with zeros for the samples whose route is cut."""
        if name not in self.names:
            return value
        route = len(self.values)
        self.values.append(value)
        if self.keep is None:
            return value
        samples = self.keep[route]
        return (value.unflatten(0, (len(samples), -1)) * samples[:, None, None].to(value.dtype)).flatten(0, 1)
