"""The image regions on which an SAE's features fire most, and how much of a value the SAE keeps.

Use it to see what features respond to, over a set of images. Every image is run once and only each feature's largest
activation is kept of it; the images on which the chosen features fire most are run again for their maps. The strongest
regions of a feature are its extremes and do not show what it does at weak activations.

Sources: Bricken et al. 2023 (reading features by their strongest examples); Gao et al. 2024 (loss recovered).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.analysis.common.activations import PATCHES, Site, collect, plain_selection
from cutaway.analysis.common.arguments import check_count, check_model, describe
from cutaway.analysis.common.caption import caption_of_many
from cutaway.analysis.common.metrics import answer_logits, kl_divergence
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import OnProgress, digest, model_digest
from cutaway.analysis.common.token_selection import TokenSelection, geometry, select_tokens
from cutaway.analysis.sae.sae import SAE, check_sae
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class FeatureRegions(Result, technique="feature_regions"):
    """The regions on which features fire most, and how faithful the SAE is.

    - `value`, `where`: what was encoded. `about`: the model and the prompts. `sources`: names of the prompts' images.
    - `explained_variance`: the share of the value's variance about its mean that the reconstruction keeps.
    - `l0`: features that fire for an entry, on average. `alive`: the share of features that fire for any entry.
    - `loss_recovered`: 1 less the ratio of the next token's KL divergence with the reconstruction to that with zeros
      in its place; None where it was not asked for.
    - `largest`: "feature image", each feature's largest activation. `firing`: "feature", the share of entries.
    - `regions`: of each feature in falling order: `feature`, `rank`, `image`, `item`, `frame`, `row`, `column`, `box`
      in pixels, `activation`. `maps`: by ``"feature, rank"``, activations "row column".
    """

    value: str
    where: str
    about: str
    sources: tuple[str, ...]
    explained_variance: float
    l0: float
    alive: float
    loss_recovered: float | None
    largest: Array
    firing: Array
    regions: tuple[dict[str, Any], ...]
    maps: dict[str, Array]

    def summary(self) -> str:
        """Return how faithful the SAE is, and a table of each feature's strongest regions."""
        recovered = "" if self.loss_recovered is None else f", loss recovered {self.loss_recovered:.3f}"
        head = (
            f"{self.value} at {self.where}, {self.largest.shape[1]} images: explained variance "
            f"{self.explained_variance:.3f}, L0 {self.l0:.1f}, {self.alive:.1%} of features fire{recovered}"
        )
        rows = [
            (r["feature"], r["rank"], float(r["activation"]), self._name(r), f"r{r['row']} c{r['column']}", _box(r))
            for r in self.regions
        ]
        return f"{head}\n\n{table(('feature', 'rank', 'activation', 'image', 'cell', 'box'), rows)}"

    def _name(self, region: Mapping[str, Any]) -> str:
        name = Path(self.sources[region["image"]]).name if self.sources else str(region["image"])
        return f"{name} frame {region['frame']}" if region["item"].startswith("video") else name

    def figure(self, *, feature: int | None = None, backgrounds: Sequence[Any] | None = None) -> Any:
        """Draw the strongest images of every feature, or of one, with the strongest region outlined.

        `backgrounds`: an image for each prompt, where `sources` are not files; for a video a list with its frames.
        """
        if feature is not None and not any(region["feature"] == feature for region in self.regions):
            kept = ", ".join(self.largest.names("feature"))
            raise InputError(f"`feature` must be one that has regions, of {kept}; got {describe(feature)}.")
        if backgrounds is not None and len(backgrounds) != self.largest.shape[1]:
            raise InputError(
                f"`backgrounds` must have one image for each of {self.largest.shape[1]} prompts; got "
                f"{len(backgrounds)}."
            )
        return self._draw("draw_feature_regions", feature, backgrounds)


def _box(region: Mapping[str, Any]) -> str:
    return ", ".join(f"{side:.0f}" for side in region["box"])


def feature_regions(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    sae: str | Path | SAE,
    value: str,
    where: TokenSelection = "image",
    features: Sequence[int] | None = None,
    count: int = 4,
    top: int = 4,
    loss: bool = False,
    sources: Sequence[str] = (),
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> FeatureRegions:
    """Return the regions on which features fire most, at most one for each image, and how faithful the SAE is.

    - `prompts`: batches of one sample. `sae`: an `SAE`, or the folder of one. `value`: the address that it reads.
    - `where`: a token selection; of it the image tokens are read.
    - `features`: which; default the `count` whose largest activation is farthest above their mean.
    - `top`: regions for each feature. - `loss`: whether to measure the loss recovered, three more runs for each prompt.
    - `sources`: names or files of the prompts' images. - `store`: a folder that keeps what was read.

    Raises `InputError` for wrong arguments.
    """
    check_model(model, "Feature regions")
    check_prompts(prompts)
    check_count("top", top)
    check_count("count", count)
    if isinstance(sources, str) or (sources and len(sources) != len(prompts)):
        raise InputError(
            f"`sources` must have one name for each of the {len(prompts)} prompts; got {describe(sources)}."
        )
    sae = SAE.load(sae, device=model.device) if isinstance(sae, str | Path) else sae
    check_sae(sae)
    if features is not None:
        if isinstance(features, str) or not isinstance(features, Sequence) or not features:
            raise InputError(f"`features` must be a list of at least one feature; got {describe(features)}.")
        sae.check_features(features)
    site = Site.one(model, value)

    def compute(n: int) -> dict[str, Tensor]:
        statistics = _statistics(sae, _entries(model, prompts[n], site, where))
        return {**statistics, **(_losses(model, prompts[n], sae, site, where) if loss else {})}

    settings = {
        "model": model_digest(model), "value": site.address, "where": plain_selection(where), "loss": loss, "sae":
        sae.digest,
    }  # fmt: skip
    keys = [digest(inputs) for inputs in prompts] if store is not None else [""] * len(prompts)
    read = collect(len(prompts), compute, settings=settings, keys=keys, store=store, on_progress=on_progress)
    selection = list(features) if features is not None else _standing_out(read, count)
    regions, maps = _strongest(model, prompts, sae, site, where, read["largest"][:, selection], selection, top)
    return FeatureRegions(
        value=site.address,
        where=str(plain_selection(where)),
        about=caption_of_many(model, prompts),
        sources=tuple(map(str, sources)),
        **_faithfulness(read, loss),
        largest=Array.of(read["largest"][:, selection].T, "feature image", {"feature": selection}, "activation"),
        firing=Array.of(read["fired"].sum(0)[selection] / read["entries"].sum(), "feature", {"feature": selection}),
        regions=tuple(regions),
        maps=maps,
    )


def _entries(model: Model, inputs: Inputs, site: Site, where: TokenSelection) -> Tensor:
    """[entries d_in]: the value at the image tokens of the selection."""
    positions = site.with_rows(inputs, select_tokens(model, inputs, where).positions)

    def select(value: Tensor) -> Tensor:
        return site.matrix(value)[site.rows(value, inputs, positions)]

    return model.run(inputs, read=[site.address], reduce={site.address: select})[site.address]


def _statistics(sae: SAE, entries: Tensor) -> dict[str, Tensor]:
    """What is kept of a prompt's entries [entries d_in].

    Squares are summed in float64 about this prompt's own mean: sums of raw squares would lose the variance of a value
    whose mean is far from zero.
    """
    active, x = sae.encode(entries), entries.double()
    error = x - sae.decode(active, entries).double()
    mean = x.mean(0)
    return {
        "largest": active.amax(0), "fired": (active > 0).float().sum(0), "active": active.sum(0),
        "entries": x.new_tensor(len(x)), "mean": mean, "within": (x - mean).square().sum(),
        "error": error.square().sum(),
    }  # fmt: skip


def _faithfulness(read: dict[str, Tensor], loss: bool) -> dict[str, Any]:
    """Explained variance, L0, live features and loss recovered over all prompts, in float64."""
    read = {name: tensor.double() for name, tensor in read.items()}
    entries, fired = read["entries"], read["fired"].sum(0)
    overall = (read["mean"] * entries[:, None]).sum(0) / entries.sum()
    between = (entries[:, None] * (read["mean"] - overall).square()).sum()
    variance = float(read["within"].sum() + between)
    recovered = None
    if loss:
        zero = float(read["zero"].sum())
        recovered = 1 - float(read["rebuilt"].sum()) / zero if zero > 0 else float("nan")
    return {
        "explained_variance": 1 - float(read["error"].sum()) / variance if variance > 0 else float("nan"),
        "l0": float(fired.sum() / entries.sum()),
        "alive": float((fired > 0).double().mean()),
        "loss_recovered": recovered,
    }


def _losses(model: Model, inputs: Inputs, sae: SAE, site: Site, where: TokenSelection) -> dict[str, Tensor]:
    """KL divergence of the next token with the entries reconstructed, and with zeros in their place."""
    plain, metric = answer_logits(model, inputs), kl_divergence()
    positions = site.with_rows(inputs, select_tokens(model, inputs, where).positions)
    ways = {"rebuilt": sae.reconstruct, "zero": torch.zeros_like}
    return {
        name: metric(answer_logits(model, inputs, edit={site.address: site.change(inputs, positions, way)}), plain)[0]
        for name, way in ways.items()
    }


def _standing_out(read: dict[str, Tensor], count: int) -> list[int]:
    """The features whose largest activation is farthest above their mean over all entries."""
    ahead = read["largest"].amax(0) - read["active"].sum(0) / read["entries"].sum()
    order = torch.argsort(ahead, descending=True, stable=True)
    return sorted(order[: min(count, int((ahead > 0).sum()) or 1)].tolist())


def _strongest(
    model: Model, prompts: Sequence[Inputs], sae: SAE, site: Site, where: TokenSelection, largest: Tensor, selection:
    list[int], top: int,
) -> tuple[list[dict[str, Any]], dict[str, Array]]:  # fmt: skip
    """The regions and maps of each chosen feature on the images where it is strongest; `largest` [images chosen]."""
    order = torch.argsort(largest, dim=0, descending=True, stable=True)[:top]
    wanted = [
        (feature, rank, int(order[rank, n]))
        for n, feature in enumerate(selection)
        for rank in range(len(order))
        if largest[order[rank, n], n] > 0
    ]
    by_image = {}
    for image in sorted({image for *_, image in wanted}):
        active = sae.encode(_entries(model, prompts[image], site, where))[:, selection].cpu().numpy()
        by_image[image] = dict(zip(selection, active.T, strict=True)), _locations(model, prompts[image], site, where)
    regions, maps = [], {}
    for feature, rank, image in wanted:
        active, locations = by_image[image]
        region, cells = _region(active[feature], locations, prompts[image])
        regions.append({"feature": feature, "rank": rank, "image": image, **region})
        maps[f"{feature}, {rank}"] = Array.of(cells, "row column", unit="activation")
    return regions, maps


def _locations(model: Model, inputs: Inputs, site: Site, where: TokenSelection) -> dict[str, np.ndarray]:
    """Kind, item, frame, row, column and box of each of the entries that `_entries` returns."""
    positions = site.with_rows(inputs, select_tokens(model, inputs, where).positions).numpy()
    known, tokens = geometry(inputs), geometry(inputs).tokens
    names = ("kind", "item", "frame", "row", "col", "box")
    value = model.run(inputs, read=[site.address])[site.address]
    if site.kind(value, inputs) != PATCHES:
        return {"patches": np.array(False), **{name: getattr(tokens, name)[0, positions] for name in names}}
    fold, parts = known.merge**2, []
    for position in positions:
        patches = known.image_patches if tokens.kind[0, position] == "image" else known.video_patches
        at = slice(tokens.token[0, position] * fold, (tokens.token[0, position] + 1) * fold)
        parts.append({name: getattr(patches, name)[at] for name in names})
    return {"patches": np.array(True), **{name: np.concatenate([part[name] for part in parts]) for name in names}}


def _region(values: np.ndarray, locations: dict[str, np.ndarray], inputs: Inputs) -> tuple[dict[str, Any], np.ndarray]:
    """The strongest entry of one image, and the activations of its image or frame [rows columns]."""
    known, best = geometry(inputs), int(values.argmax())
    kind, number, frame = str(locations["kind"][best]), int(locations["item"][best]), int(locations["frame"][best])
    item = (known.images if kind == "image" else known.videos)[number]
    side = 1 if locations["patches"] else known.merge
    cells = np.full((item.grid[1] // side, item.grid[2] // side), np.nan)
    here = (locations["kind"] == kind) & (locations["item"] == number) & (locations["frame"] == frame)
    cells[locations["row"][here], locations["col"][here]] = values[here]
    region = {
        "item": f"{kind} {number}", "frame": frame, "row": int(locations["row"][best]),
        "column": int(locations["col"][best]), "box": tuple(map(float, locations["box"][best])),
        "activation": float(values[best]),
    }  # fmt: skip
    return region, cells
