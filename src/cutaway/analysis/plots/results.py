"""The figure of each result of an analysis: which numbers are drawn, how, under which title.

`Result.figure` calls these functions; call them through it. They read a result's fields and know no models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.analysis.common.result import Array
from cutaway.analysis.common.token_selection import one_medium
from cutaway.analysis.plots import figures, images
from cutaway.analysis.plots.images import Panel

if TYPE_CHECKING:
    from cutaway.analysis.attention.rollout import AttentionRollout
    from cutaway.analysis.attention.text import AttentionMap
    from cutaway.analysis.attention.vision import VisionAttention
    from cutaway.analysis.attribution.direct_logit import LogitAttribution
    from cutaway.analysis.attribution.input_gradients import InputAttribution
    from cutaway.analysis.lens.logit_lens import LogitLens
    from cutaway.analysis.lens.nearest_tokens import NearestTokens
    from cutaway.analysis.probing.probes import Probing
    from cutaway.analysis.sae.regions import FeatureRegions
    from cutaway.analysis.steering.sweep import Steering

LAST_TOKENS = 24
"""Columns of a lens table, for the last tokens that were read."""


def draw_logit_lens(
    result: LogitLens, background: Any, layer: int | str | None, item: str | None, frame: int, rank: int
) -> Any:
    """A table of layers and tokens, or with `layer` the words on an image's cells."""
    result.check_rank(rank)
    order = "likeliest" if rank == 0 else f"rank {rank}"
    if layer is not None:
        n = result.layer_index(layer)
        cells = result.on_image(result.probabilities.values[n, :, rank], item, frame)
        numbers = result.on_image(np.arange(len(result.positions)), item, frame)
        words = [["" if np.isnan(m) else result.words[n][int(m)][rank] for m in row] for row in numbers]
        name = "at what enters layer 0" if layer == "embeddings" else f"after layer {layer}"
        title = (
            f"{result.kind.capitalize()} lens {name}: {order} word at each token of {one_medium(result.media, item)}"
        )
        return images.words_on_cells(
            cells, words, background, title=title, about=result.about, unit="probability", limits=(0, 1)
        )
    shown = slice(-LAST_TOKENS, None)
    names = {"layer": result.probabilities.names("layer"), "token": result.probabilities.names("token")[shown]}
    values = Array.of(result.probabilities.values[:, shown, rank], "layer token", names, "probability")
    words = [[ranked[rank] for ranked in row[shown]] for row in result.words]
    title = f"{result.kind.capitalize()} lens: {order} word after each layer"
    if len(result.positions) > LAST_TOKENS:
        title += f", last {LAST_TOKENS} of {len(result.positions)} tokens"
    return images.words_table(values, words, title=title, about=result.about, limits=(0, 1))


def draw_nearest_tokens(result: NearestTokens, background: Any, frame: int) -> Any:
    """The nearest word on each cell, its cosine as colour."""
    cells = result.similarity.values[:, 0].reshape(result.grid)[frame]
    words = np.array([ranked[0] for ranked in result.words], object).reshape(result.grid)[frame].tolist()
    title = f"Nearest words among the {result.vocabulary} at each token of {result.item} (chance {result.chance:.2f})"
    return images.words_on_cells(cells, words, background, title=title, about=result.about, unit="cosine")


def draw_attention_map(
    result: AttentionMap, background: Any, item: str | None, frame: int | None, which: dict[str, Any]
) -> Any:
    """The mean and every layer, or the heads of a layer, or one head, of an image or of one frame or all of a video."""
    name = f" to {one_medium(result.media, item)}" if len(result.media) > 1 else ""
    title = f"Attention from {result.source}{name}"
    layer, head = which.get("layer"), which.get("head")
    whole = result.map(item, **which)
    if (layer is not None and head is not None) or (frame is None and whole.shape[0] > 1):
        named = "".join(f", {axis} {n}" for axis, n in (("layer", layer), ("head", head)) if n is not None)
        title += named or ", mean over layers and heads"
        return images.frame_maps(whole, background, title, result.about, signed=False)
    image = images.frame_images(background, whole.shape[0])[frame or 0]
    axis = "layer" if layer is None else "head"
    mean = whole.values[frame or 0]
    panels = [] if image is None else [images.image_panel(image, mean)]
    panels.append(Panel(mean, "mean" if layer is None else f"layer {layer}, mean", image))
    for entry in images.spread(result.weights.names(axis), images.MOST_PANELS - 2):
        cells = result.map(item, **{**which, axis: entry}).values[frame or 0]
        panels.append(Panel(cells, f"{axis} {entry}", image))
    title += ", mean over the heads" if layer is None else f", heads of layer {layer}"
    return images.maps(panels, title=title, about=result.about, unit="attention", signed=False)


def draw_attention_rollout(result: AttentionRollout, background: Any, item: str | None) -> Any:
    """The map of one image or video."""
    name = f" to {one_medium(result.media, item)}" if len(result.media) > 1 else ""
    title = f"Attention rollout from {result.source}{name}"
    return images.frame_maps(result.map(item), background, title, result.about, signed=False)


def draw_vision_attention(result: VisionAttention, background: Any, layer: int | str | None, frame: int) -> Any:
    """The layers' maps, or with `layer` its heads', of one frame."""
    axis = "layer" if layer is None else "head"
    mean = result.map(layer).values[frame]
    panels = [] if background is None else [images.image_panel(background, mean)]
    for name in images.spread(result.weights.names(axis), images.MOST_PANELS - 1):
        results = result.map(name) if layer is None else result.map(layer, name)
        panels.append(Panel(results.values[frame], f"{axis} {name}", background))
    title = f"Vision encoder, {result.item}: attention from {result.source}"
    title += ", mean over the heads" if layer is None else f", layer {layer}"
    return images.maps(panels, title=title, about=result.about, unit="attention", signed=False)


def draw_direct_logit_attribution(
    result: LogitAttribution, background: Any, kind: str, item: str | None, count: int
) -> Any:
    """The largest terms as bars, a table of heads, or what heads read from an image."""
    target = f"{result.target} at {result.position}"
    if kind == "terms":
        names, values = zip(*result.top(count), strict=True)
        title = f"Direct logit attribution of {target}: {len(names)} largest of {len(result.kinds)} terms"
        return figures.bars(names, values, title=title, about=result.about, unit="logits")
    if kind == "heads":
        title = f"Heads' direct shares of {target}"
        return figures.heat_table(result.heads(), title=title, about=result.about, signed=True)
    title = f"Read by heads from the image, shares of {target}"
    return images.frame_maps(result.map(item), background, title, result.about, signed=True)


def draw_input_attribution(result: InputAttribution, background: Any, item: str | None, merge: int) -> Any:
    """The patches' shares of one image or video."""
    title = f"{result.metric}: {result.method} over the {result.baseline} baseline, {result.steps} steps"
    return images.frame_maps(result.map(item, merge=merge), background, title, result.about, signed=True)


def draw_steer(result: Steering) -> Any:
    """Of one value a line for each direction, of several a table of strengths, beside the first control."""
    prompts = result.baseline.shape[0]
    title = f"Steering at {result.at}: change of {result.metric}, mean over n = {prompts} prompts"
    values, strengths = result.effect.names("value"), result.effect.names("strength")
    if len(values) == 1:
        low, high = (array.at(value=0) for array in (result.low, result.high))
        return figures.lines(
            result.effect.at(value=0), title=f"{title}, {values[0]}", about=result.about, low=low, high=high
        )
    shown = np.concatenate([result.effect.values[0], result.effect.values[1]], 1)  # [values 2*strengths]
    labels = {
        "value": tuple(name.removesuffix(".layer_output") for name in values),
        "direction and strength": tuple(f"{kind} {s}" for kind in ("steered", "random") for s in strengths),
    }
    array = Array(shown, tuple(labels), labels, result.effect.unit)
    return figures.heat_table(array, title=title, about=result.about, signed=True)


def draw_probe(result: Probing, confusion: bool) -> Any:
    """Held-out scores beside control and chance, or the best value's confusions."""
    if confusion and result.confusion is not None:
        title = f"Held-out predictions from {result.best} at {result.where}, n = {result.examples}"
        return figures.heat_table(result.confusion, title=title, about=result.about, signed=False)
    names = result.score.names("value")
    chance = np.full(len(names), result.chance)
    series = ("held out", "labels shuffled", "chance")
    means = np.stack([result.score.values, result.shuffled.values.mean(0), chance])
    lows = np.stack([result.low.values, result.shuffled.values.min(0), chance])
    highs = np.stack([result.high.values, result.shuffled.values.max(0), chance])
    labels = {"probe": series, "value": [name.removesuffix(".layer_output") for name in names]}
    curve, low, high = (Array.of(results, "probe value", labels, result.score.unit) for results in (means, lows, highs))
    title = f"Linear probes at {result.where}, n = {result.examples}"
    return figures.lines(curve, title=title, about=result.about, low=low, high=high)


def draw_feature_regions(result: FeatureRegions, feature: int | None, background: Any) -> Any:
    """The strongest images of every feature, or of one, each beside its activations, the strongest region outlined."""
    shown = [region for region in result.regions if feature is None or region["feature"] == feature]
    panels = []
    for region in shown:
        image = _image_of(result, region, background)
        title = f"feature {region['feature']}: {region['activation']:.2f}"
        if image is not None:
            panels.append(Panel(None, title, image, box=region["box"]))
        cells = result.maps[f"{region['feature']}, {region['rank']}"].values
        panels.append(Panel(cells, "activation" if image is not None else title, image))
    first = sum(region["feature"] == shown[0]["feature"] for region in shown)
    each = len(panels) // len(shown)
    title = f"Strongest regions of features of {result.value}, n = {result.largest.shape[1]} images"
    columns = max(2, first * each)
    return images.maps(panels, title=title, about=result.about, unit="activation", signed=False, columns=columns)


def _image_of(result: FeatureRegions, region: dict[str, Any], background: Any) -> Any:
    if region["item"].startswith("video"):
        return None if background is None else background[region["image"]][region["frame"]]
    if background is not None:
        return background[region["image"]]
    return result.sources[region["image"]] if result.sources else None
