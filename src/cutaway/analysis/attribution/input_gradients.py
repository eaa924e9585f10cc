"""Input attribution: how much each patch of an image contributes to a metric, by gradients down to the pixels.

Use it to see which patches an answer depends on, through the whole model. Gradient times input takes one forward and
backward and is exact for a linear model alone. Integrated gradients follow the image from a baseline to itself; their
sum is the metric's rise over the baseline (completeness), and `gap` says how far the finite number of steps is from
that. A mixture of experts switches experts on the way, where the metric jumps and completeness fails. Both compare with
a baseline image, and another baseline is another question. A patch with a large share need not be attended to.

Sources: Simonyan et al. 2014; Shrikumar et al. 2016; Sundararajan et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_choice, check_count, check_model, describe, sample_index
from cutaway.analysis.common.caption import caption
from cutaway.analysis.common.metrics import Metric, answer_logits
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.token_selection import geometry, one_medium
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.inputs.geometry.layout import to_raster

METHODS = ("integrated", "gradient")
METHOD_NAMES = {"integrated": "integrated gradients", "gradient": "gradient × input"}

TOLERANCE = 0.05
"""How far the sum of integrated gradients may be from the metric's rise, as a share of the rise, without a warning."""

FIRST_STEPS, MOST_STEPS = 32, 512
"""Without `steps`, the number is doubled from the first to the last until the sum is within the tolerance."""

BASELINES = {"grey": 0.5, "black": 0.0, "white": 1.0}
"""Plain images to compare with, and the level of their channels."""

PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True, eq=False)
class InputAttribution(Result, technique="input_attribution"):
    """The share of each patch in a metric.

    - `method`, `metric`, `baseline`, `steps`: how it was computed. `about`: the model and the prompt, in words.
    - `patches`: by image and video, ``"image 0"``: "frame row column" in the patch grid, in the metric's unit.
    - `value`: the metric on this image; `start`: on the baseline.
    - `gap`: (value - start) less the sum of all patches; near 0 for integrated gradients with enough steps.
    """

    method: str
    metric: str
    baseline: str
    steps: int
    about: str
    patches: dict[str, Array]
    value: float
    start: float
    gap: float

    def map(self, item: str | None = None, *, merge: int = 1) -> Array:
        """Return the shares on an image or video, "frame row column"; `merge` 2 sums the four patches of a token."""
        check_count("merge", merge)
        result = self.patches[one_medium(self.patches, item)]
        frames, rows, columns = result.shape
        if rows % merge or columns % merge:
            raise InputError(f"`merge` must divide the grid of {rows} × {columns} patches; got {merge}.")
        summed = result.values.reshape(frames, rows // merge, merge, columns // merge, merge).sum((2, 4))
        return Array.of(summed, "frame row column", unit=result.unit)

    def peak(self, item: str | None = None, *, merge: int = 1) -> tuple[int, ...]:
        """Return frame, row and column of the largest share."""
        return self.map(item, merge=merge).peak()

    @property
    def missed(self) -> float:
        """The distance of the patches' sum from the metric's rise, as a share of the rise."""
        return abs(self.gap) / max(abs(self.value - self.start), 1e-12)

    def summary(self) -> str:
        """Return the metric beside its baseline, the largest patch of each image, and how complete the sum is."""
        rows = []
        for item, result in self.patches.items():
            frame, row, column = self.peak(item)
            rows.append((item, f"f{frame} r{row} c{column}", float(result.values.max()), float(result.values.sum())))
        rise = self.value - self.start
        lines = [
            f"{self.method}: {self.metric} is {self.value:.4f}, on the {self.baseline} baseline {self.start:.4f}",
            table(("image", "largest patch", "its share", "sum"), rows),
            f"The rise is {rise:.4f}; all patches add up to {rise - self.gap:.4f} in {self.steps} steps.",
        ]
        if self.method == METHOD_NAMES["integrated"] and self.missed >= TOLERANCE:
            lines.append(f"The sum misses the rise by {self.missed:.0%}: do not rely on the shares, take more steps.")
        return "\n".join(lines)

    def figure(self, background: Any = None, *, item: str | None = None, merge: int = 1) -> Any:
        """Draw the shares beside the image, with zero in the middle of the colours."""
        return self._draw("draw_input_attribution", background, item, merge)


def input_attribution(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    *,
    method: str = "integrated",
    baseline: str | Inputs = "grey",
    steps: int | None = None,
    reference: Tensor | None = None,
    sample: int | None = None,
    edit: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> InputAttribution:
    """Return the patches' shares in a sample's metric, through the vision encoder and DeepStack down to the pixels.

    - `method`: ``"integrated"`` over the midpoints of `steps`, or ``"gradient"``, gradient times input in one step.
    - `baseline`: one of `BASELINES`, or another prepared batch with images of the same grids.
    - `steps`: default 32, doubled up to 512 until the shares add up to the rise within 5 %.
    - `reference`: logits of a reference run, for a metric that compares. - `sample`: which sample of a batch.
    - `edit`: changes by address made in the run. - `on_progress`: called with steps done and in all.

    Memory: a forward with its graph. Raises `InputError` for wrong arguments.
    """
    check_model(model, "Input attribution")
    sample = sample_index(inputs, sample)
    check_choice("method", method, METHODS)
    if steps is not None:
        check_count("steps", steps)
    if not isinstance(metric, Metric):
        raise InputError(
            f"`metric` must be a metric such as `probability(model.tokenizer, answer)`; got {describe(metric)}."
        )
    if metric.needs_reference and reference is None:
        raise InputError(f"The metric {metric.name} compares with a reference run: pass its logits as `reference`.")
    ends = {name: (_baseline(model, inputs, name, baseline), pixels) for name, pixels in _pixels(inputs).items()}
    if not ends:
        raise InputError("This prompt has no image and no video, so there are no patches. Give it an image.")
    path = _Path(model, metric, metric.extend(inputs), ends, reference, sample, edit)
    value, start = path.measure(1), path.measure(0)
    count = 1 if method == "gradient" else steps or FIRST_STEPS
    while True:
        points = [1.0] if method == "gradient" else [(n + 0.5) / count for n in range(count)]
        patches = _by_item(inputs, path.shares(points, on_progress), sample, metric.unit)
        gap = value - start - sum(float(result.values.sum()) for result in patches.values())
        enough = method == "gradient" or steps is not None or abs(gap) < TOLERANCE * abs(value - start)
        if enough or count >= MOST_STEPS:
            break
        count *= 2
    return InputAttribution(
        method=METHOD_NAMES[method],
        metric=metric.name,
        baseline=baseline if isinstance(baseline, str) else "other images'",
        steps=count,
        about=caption(model, inputs, sample),
        patches=patches,
        value=value,
        start=start,
        gap=gap,
    )


@dataclass(frozen=True)
class _Path:
    """The straight way from the baseline's pixels to the image's; `ends` has both by the name of the inputs' field."""

    model: Model
    metric: Metric
    inputs: Inputs
    ends: Mapping[str, tuple[Tensor, Tensor]]
    reference: Tensor | None
    sample: int
    edit: Mapping[str, Any] | None

    def _metric(self, pixels: Mapping[str, Tensor], *, grad: bool) -> Tensor:
        inputs = replace(self.inputs, **pixels)
        logits = answer_logits(self.model, inputs, self.metric.answer_length, edit=self.edit, grad=grad)
        with torch.set_grad_enabled(grad):
            return self.metric(logits, self.reference)[self.sample]

    def measure(self, end: int) -> float:
        """The metric at an end of the way: 0 the baseline, 1 the image."""
        return float(self._metric({name: both[end] for name, both in self.ends.items()}, grad=False))

    def shares(self, points: list[float], on_progress: Callable[[int, int], None] | None) -> dict[str, Tensor]:
        """The mean gradient over the points times the way, summed over each patch's pixels: [patches] by field."""
        total = {name: torch.zeros_like(end, dtype=torch.float64) for name, (_, end) in self.ends.items()}
        for done, point in enumerate(points, 1):
            pixels = {n: (start + point * (end - start)).requires_grad_() for n, (start, end) in self.ends.items()}
            slopes = torch.autograd.grad(self._metric(pixels, grad=True), list(pixels.values()))
            for name, slope in zip(pixels, slopes, strict=True):
                total[name] += slope.double() / len(points)
            if on_progress is not None:
                on_progress(done, len(points))
        return {n: (total[n] * (end - start).double()).sum(-1).cpu() for n, (start, end) in self.ends.items()}


def _pixels(inputs: Inputs) -> dict[str, Tensor]:
    """The pixel tensors that a batch has, by the name of their field."""
    tensors = {name: getattr(inputs, name) for name, _ in PIXELS.values()}
    return {name: pixels.detach() for name, pixels in tensors.items() if pixels is not None}


def _baseline(model: Model, inputs: Inputs, name: str, baseline: str | Inputs) -> Tensor:
    """The patches to compare with, in the shape of the field `name`."""
    pixels: Tensor = getattr(inputs, name)
    if isinstance(baseline, Inputs):
        grid = next(grid for field, grid in PIXELS.values() if field == name)
        other, mine, theirs = getattr(baseline, name), getattr(inputs, grid), getattr(baseline, grid)
        if other is None or not torch.equal(mine, theirs):
            raise InputError(
                "`baseline` must have images and videos of the same grids as the prompt; this one has others. Prepare "
                "it from images of the same sizes."
            )
        return other.detach()
    if not isinstance(baseline, str) or baseline not in BASELINES:
        raise InputError(f"`baseline` must be {', '.join(BASELINES)} or prepared inputs; got {describe(baseline)}.")
    processor = model.processor
    settings = processor.image_settings if name == "pixel_values" else processor.video_settings
    if settings is None:
        raise InputError(
            f"The model's files do not say how colours are normalised, so {baseline} is unknown: give prepared inputs "
            f"as `baseline`."
        )
    levels = [(BASELINES[baseline] - mean) / std for mean, std in zip(settings.mean, settings.std, strict=True)]
    channels = torch.tensor(levels, device=pixels.device, dtype=pixels.dtype)
    return channels.repeat_interleave(pixels.shape[1] // 3).expand_as(pixels)  # [patches channels*time*height*width]


def _by_item(inputs: Inputs, shares: Mapping[str, Tensor], sample: int, unit: str) -> dict[str, Array]:
    """The shares of each image and video of a sample, in raster order."""
    where, result = geometry(inputs), {}
    for item in (*where.images, *where.videos):
        if item.sample == sample:
            patches = where.image_patches if item.kind == "image" else where.video_patches
            mine = torch.from_numpy(np.flatnonzero(patches.item == item.index))
            raster = to_raster(shares[PIXELS[item.kind][0]][mine], item.grid, where.merge)
            result[f"{item.kind} {item.index}"] = Array.of(raster, "frame row column", unit=unit)
    return result
