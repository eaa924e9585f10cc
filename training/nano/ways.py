"""Watchers that cut the ways from the picture into the text model: the picture features and each DeepStack term."""

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


class Ways(Cut):
    """Keeps what enters the text model by each way (`seen`, in the forward's order), and cuts a way of some samples."""

    def __init__(self, keep: Tensor | None) -> None:
        """`keep` [ways batch]: 0 where a way is cut; None cuts nothing. Samples have equally many picture tokens."""
        super().__init__((*FEATURES, TERM))
        self.keep = keep
        self.seen: list[Tensor] = []

    def on_value(self, module: nn.Module, name: str, value: Any) -> Any:
        """The value, with zeros for the samples whose way is cut."""
        if name not in self.names:
            return value
        way = len(self.seen)
        self.seen.append(value)
        if self.keep is None:
            return value
        samples = self.keep[way]
        return (value.unflatten(0, (len(samples), -1)) * samples[:, None, None].to(value.dtype)).flatten(0, 1)
