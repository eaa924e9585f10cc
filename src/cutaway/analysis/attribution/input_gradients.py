"""Which patches of an image the answer's metric hangs on, by gradients through the whole model down to the pixels.

Gradient times input is one forward and one backward, and exact for a linear model alone. Integrated gradients follow
the image from a baseline to itself; their sum is the metric's rise over the baseline (completeness), and `gap` says
how far the finite number of steps is from that. A mixture's router switches experts on the way, where the metric jumps
and completeness does not hold. Both answer "compared with which image": another baseline is another question. A patch
that is lit need not be looked at by any head.

Sources: Simonyan et al. 2014; Shrikumar et al. 2016; Sundararajan et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.metrics import Metric, answer_logits
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import check_sample, geometry, one_medium
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.inputs.geometry.layout import to_raster

METHODS = ("integrated", "gradient")
METHOD_NAMES = {"integrated": "integrated gradients", "gradient": "gradient × input"}
TOLERATED = 0.1
"""The part of the rise by which the sum of integrated gradients may miss it before a summary warns."""

BASELINES = {"grey": 0.5, "black": 0.0, "white": 1.0}
"""Plain images to compare with, and their level in every channel."""

PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True, eq=False)
class InputAttribution(Result, technique="input_attribution"):
    """The share of each patch in a metric.

    - `patches`: by image and video, ``"image 0"``: "frame row column" in the patch grid, in the metric's unit.
    - `value`: the metric on this image; `start`: on the baseline.
    - `gap`: (value - start) less the sum of all patches; small for integrated gradients with enough steps.
    """

    method: str
    metric: str
    baseline: str
    steps: int
    patches: dict[str, Array]
    value: float
    start: float
    gap: float

    def map(self, item: str | None = None, *, merge: int = 1) -> Array:
        """The shares on an image or video, "frame row column"; `merge` 2 sums the four patches of each token."""
        found = self.patches[one_medium(self.patches, item)]
        time, rows, columns = found.shape
        if rows % merge or columns % merge:
            raise InputError(f"A grid of {rows} × {columns} patches cannot be summed by {merge} × {merge}.")
        summed = found.values.reshape(time, rows // merge, merge, columns // merge, merge).sum((2, 4))
        return Array.of(summed, "frame row column", unit=found.unit)

    def peak(self, item: str | None = None, *, merge: int = 1) -> tuple[int, int, int]:
        """Frame, row and column of the largest share."""
        found = self.map(item, merge=merge)
        frame, row, column = np.unravel_index(int(found.values.argmax()), found.shape)
        return int(frame), int(row), int(column)

    def summary(self) -> str:
        """The metric, its baseline, how complete the sum is, and the largest patch of each image."""
        rows = []
        for item, found in self.patches.items():
            frame, row, column = self.peak(item)
            rows.append((item, f"f{frame} r{row} c{column}", float(found.values.max()), float(found.values.sum())))
        rise = self.value - self.start
        off = abs(self.gap) / max(abs(rise), 1e-12)
        warned = "" if self.method != METHOD_NAMES["integrated"] or off < TOLERATED else (
            f"\nThat is {off:.0%} of the rise off, so the shares are not to be trusted: take more steps."
        )  # fmt: skip
        return (
            f"{self.method}: {self.metric} is {self.value:.4f}, on the {self.baseline} baseline {self.start:.4f}\n"
            f"{table(('image', 'largest patch', 'its share', 'sum'), rows)}\n"
            f"The rise is {rise:.4f}; all patches add up to {rise - self.gap:.4f} in {self.steps} steps."
            f"{warned}"
        )

    def figure(self, background: Any = None, *, item: str | None = None, merge: int = 1) -> Any:
        """The shares over the image; zero is the middle of the colours."""
        from cutaway.analysis.plots import maps

        return maps.frames_figure(self.map(item, merge=merge), background, f"{self.metric}, {self.method}", signed=True)


def input_attribution(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    *,
    method: str = "integrated",
    baseline: str | Inputs = "grey",
    steps: int = 32,
    reference: Tensor | None = None,
    row: int = 0,
    edit: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> InputAttribution:
    """The patches' shares in a row's metric, through vision encoder and DeepStack down to the pixels.

    - `method`: ``"integrated"`` over `steps` points (midpoints), or ``"gradient"``, gradient times input, at one point.
    - `baseline`: one of `BASELINES`, or another prepared batch with images of the same grids.

    Memory: a forward with its graph. Raises `InputError` for what cannot be compared.
    """
    model.require_weights("Patch attribution")
    check_sample(inputs, row)
    if method not in METHODS or steps < 1:
        raise InputError(f"`method` is {' or '.join(METHODS)}, and `steps` at least 1; got {method!r} and {steps}.")
    if metric.needs_reference and reference is None:
        raise InputError(f"The metric {metric.name} compares with a reference run: pass its logits as `reference`.")
    extended = metric.extend(inputs)
    ends = {name: (_baseline(model, inputs, name, baseline), pixels) for name, pixels in _pixels(inputs).items()}
    if not ends:
        raise InputError("This prompt has no image and no video, so there are no patches.")

    def measured(pixels: Mapping[str, Tensor], grad: bool) -> Tensor:
        logits = answer_logits(model, replace(extended, **pixels), metric.answer_length, edit=edit, grad=grad)
        with torch.set_grad_enabled(grad):
            return metric(logits, reference)[row]

    points = [1.0] if method == "gradient" else [(n + 0.5) / steps for n in range(steps)]
    total = {name: torch.zeros_like(end, dtype=torch.float64) for name, (_, end) in ends.items()}
    for done, point in enumerate(points, 1):
        here = {name: (start + point * (end - start)).requires_grad_() for name, (start, end) in ends.items()}
        slopes = torch.autograd.grad(measured(here, True), list(here.values()))
        for name, slope in zip(here, slopes, strict=True):
            total[name] += slope.double() / len(points)
        if on_progress is not None:
            on_progress(done, len(points))
    shares = {name: (total[name] * (end - start).double()).sum(-1).cpu() for name, (start, end) in ends.items()}
    value, start = (float(measured({name: both[n] for name, both in ends.items()}, False)) for n in (1, 0))
    patches = _by_item(inputs, shares, row, metric.unit)
    return InputAttribution(
        method=METHOD_NAMES[method],
        metric=metric.name,
        baseline=baseline if isinstance(baseline, str) else "given",
        steps=len(points),
        patches=patches,
        value=value,
        start=start,
        gap=value - start - sum(float(found.values.sum()) for found in patches.values()),
    )


def _pixels(inputs: Inputs) -> dict[str, Tensor]:
    """The pixel tensors that a batch has, by the name of their field."""
    found = {name: getattr(inputs, name) for name, _ in PIXELS.values()}
    return {name: pixels.detach() for name, pixels in found.items() if pixels is not None}


def _baseline(model: Model, inputs: Inputs, name: str, baseline: str | Inputs) -> Tensor:
    """The patches to compare with, in the shape of the field `name`."""
    pixels: Tensor = getattr(inputs, name)
    if isinstance(baseline, Inputs):
        grid = next(grid for field, grid in PIXELS.values() if field == name)
        given, mine, theirs = getattr(baseline, name), getattr(inputs, grid), getattr(baseline, grid)
        if given is None or not torch.equal(mine, theirs):
            raise InputError("A baseline has images and videos of the same grids as the prompt; this one has others.")
        return given.detach()
    if baseline not in BASELINES:
        raise InputError(f"A baseline is {', '.join(BASELINES)} or a prepared batch; got {baseline!r}.")
    processor = model.processor
    settings = processor.image_settings if name == "pixel_values" else processor.video_settings
    if settings is None:
        raise InputError(f"The model's files do not say how colours are normalised, so {baseline} is unknown here.")
    levels = [(BASELINES[baseline] - mean) / std for mean, std in zip(settings.mean, settings.std, strict=True)]
    channels = torch.tensor(levels, device=pixels.device, dtype=pixels.dtype)
    return channels.repeat_interleave(pixels.shape[1] // 3).expand_as(pixels)


def _by_item(inputs: Inputs, shares: Mapping[str, Tensor], row: int, unit: str) -> dict[str, Array]:
    """The shares of each image and video of a row, in raster order."""
    where, found = geometry(inputs), {}
    for item in (*where.images, *where.videos):
        if item.sample == row:
            patches = where.image_patches if item.kind == "image" else where.video_patches
            mine = torch.from_numpy(np.flatnonzero(patches.item == item.index))
            raster = to_raster(shares[PIXELS[item.kind][0]][mine], item.grid, where.merge)
            found[f"{item.kind} {item.index}"] = Array.of(raster, "frame row column", unit=unit)
    return found
