"""A dictionary over many images: on which regions its features fire most, and how much of the value it keeps.

Every image is run once; only each feature's largest activation is kept of it. The images on which the chosen
features fire most are run again for their maps. A feature's strongest regions are its extremes: what it does at weak
activations they do not show.

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
from cutaway.analysis.common.metrics import answer_logits, kl
from cutaway.analysis.common.prompts import check_prompts
from cutaway.analysis.common.result import Array, Result, table
from cutaway.analysis.common.sweep import OnProgress, digest, model_digest
from cutaway.analysis.common.token_selection import TokenSelection, geometry, select_tokens
from cutaway.analysis.sae.sae import SAE
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError


@dataclass(frozen=True, eq=False)
class FeatureRegions(Result, technique="feature_regions"):
    """What a dictionary's features fire on.

    - `value`, `where`: what was encoded. `sources`: what the prompts' images are called.
    - `explained_variance`: the part of the rows' variance that the reconstruction has. `l0`: features that fire on a
      row, on average. `alive`: the share of features that fire on any row. `loss_recovered`: 1 less the ratio of the
      next token's KL divergence with the reconstruction to that with zeros in its place; None where it was not asked.
    - `most`: [feature image], each chosen feature's largest activation. `share`: [feature], of rows on which it
      fires.
    - `places`: the strongest regions, of each feature in falling order: `feature`, `rank`, `image`, `item`, `frame`,
      `row`, `column`, `box` in pixels, `activation`. `maps`: by ``"feature, rank"``, [row column] of activations.
    """

    value: str
    where: str
    sources: tuple[str, ...]
    explained_variance: float
    l0: float
    alive: float
    loss_recovered: float | None
    most: Array
    share: Array
    places: tuple[dict[str, Any], ...]
    maps: dict[str, Array]

    def summary(self) -> str:
        """How good the dictionary is, and each feature's strongest regions."""
        recovered = "" if self.loss_recovered is None else f", loss recovered {self.loss_recovered:.3f}"
        head = (
            f"{self.value} at {self.where}, {self.most.shape[1]} images: explained variance "
            f"{self.explained_variance:.3f}, L0 {self.l0:.1f}, {self.alive:.1%} of features fire{recovered}"
        )
        rows = [
            (p["feature"], p["rank"], float(p["activation"]), self._name(p), f"r{p['row']} c{p['column']}", _box(p))
            for p in self.places
        ]
        return f"{head}\n\n{table(('feature', 'rank', 'activation', 'image', 'cell', 'box'), rows)}"

    def _name(self, place: Mapping[str, Any]) -> str:
        name = Path(self.sources[place["image"]]).name if self.sources else str(place["image"])
        return f"{name} frame {place['frame']}" if place["item"].startswith("video") else name

    def figure(self, *, feature: int | None = None, backgrounds: Sequence[Any] | None = None) -> Any:
        """The strongest images of every feature, or of one, with the feature's activation over them.

        `images`: one a prompt, where `sources` are not files to open; a video's frames cannot be found from a file.
        """
        from cutaway.analysis.plots.spotlight import Spot, spotlights

        shown = [p for p in self.places if feature is None or p["feature"] == feature]
        if not shown:
            kept = ", ".join(self.most.names("feature"))
            raise InputError(f"No region of feature {feature} was kept; kept are {kept}.")
        spots = [
            Spot(
                self._image(place, backgrounds),
                self.maps[f"{place['feature']}, {place['rank']}"].values,
                place["box"],
                f"feature {place['feature']}: {place['activation']:.2f}",
            )
            for place in shown
        ]
        columns = max(sum(p["feature"] == shown[0]["feature"] for p in shown), 2)
        return spotlights(spots, title=f"Features of {self.value}", columns=columns)

    def _image(self, place: Mapping[str, Any], backgrounds: Sequence[Any] | None) -> Any:
        if place["item"].startswith("video"):
            return None if backgrounds is None else backgrounds[place["image"]][place["frame"]]
        if backgrounds is not None:
            return backgrounds[place["image"]]
        return self.sources[place["image"]] if self.sources else None


def _box(place: Mapping[str, Any]) -> str:
    return ", ".join(f"{side:.0f}" for side in place["box"])


def feature_regions(
    model: Model,
    prompts: Sequence[Inputs],
    *,
    dictionary: str | Path | SAE,
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
    """The regions on which features fire most, at most one an image, and how much the dictionary keeps.

    - `dictionary`: one, or the folder of one. - `value`: what it reads: the stream, the projector's, the tower's.
    - `features`: which; default the `count` whose largest activation is farthest above their mean.
    - `top`: regions of each. - `loss`: whether to measure the loss recovered, three more runs a prompt.
    - `sources`: names or files of the prompts' images. - `store`: a folder that keeps what was read.
    """
    check_prompts(prompts)
    if top < 1 or count < 1 or (sources and len(sources) != len(prompts)):
        raise InputError(f"At least one feature and region, and a source a prompt; got {count}, {top}, {len(sources)}.")
    found = dictionary if isinstance(dictionary, SAE) else SAE.load(dictionary, device=model.device)
    wrong = [f for f in features or () if not 0 <= f < found.count]
    if wrong:
        raise InputError(f"This dictionary has {found.count} features, numbered from 0; there is no {wrong[0]}.")
    site = Site.one(model, value)

    def compute(n: int) -> dict[str, Tensor]:
        rows = _rows(model, prompts[n], site, where)
        read = _statistics(found, rows)
        return {**read, **(_losses(model, prompts[n], found, site, where) if loss else {})}

    settings = {
        "model": model_digest(model), "value": site.address, "where": plain_selection(where), "loss": loss,
        "dictionary": found.digest,
    }  # fmt: skip
    keys = [digest(inputs) for inputs in prompts] if store is not None else [""] * len(prompts)
    read = collect(len(prompts), compute, settings=settings, keys=keys, store=store, on_progress=on_progress)
    chosen = list(features) if features is not None else _outstanding(read, count)
    places, maps = _strongest(model, prompts, found, site, where, read["most"][:, chosen], chosen, top)
    return _result(
        read, chosen, places, maps, (site.address, str(plain_selection(where)), tuple(map(str, sources)), loss)
    )


def _rows(model: Model, inputs: Inputs, site: Site, where: TokenSelection) -> Tensor:
    """[rows width] of the image tokens that `where` means."""
    positions = site.with_rows(inputs, select_tokens(model, inputs, where).positions)

    def taken(value: Tensor) -> Tensor:
        return site.matrix(value)[site.rows(value, inputs, positions)]

    return model.run(inputs, read=[site.address], reduce={site.address: taken})[site.address]


def _statistics(dictionary: SAE, rows: Tensor) -> dict[str, Tensor]:
    active, x = dictionary.encode(rows), rows.float()
    rest = x - dictionary.decode(active, x)
    return {
        "most": active.amax(0), "fired": (active > 0).float().sum(0), "active": active.sum(0),
        "rows": x.new_tensor(len(x)), "sum": x.sum(0), "squares": x.square().sum(), "rest": rest.square().sum(),
    }  # fmt: skip


def _losses(model: Model, inputs: Inputs, dictionary: SAE, site: Site, where: TokenSelection) -> dict[str, Tensor]:
    """KL divergence of the next token with the rows reconstructed, and with zeros in their place."""
    plain, metric = answer_logits(model, inputs), kl()
    positions = site.with_rows(inputs, select_tokens(model, inputs, where).positions)
    ways = {"rebuilt": dictionary.reconstruct, "zero": torch.zeros_like}
    return {
        name: metric(answer_logits(model, inputs, edit={site.address: site.change(inputs, positions, way)}), plain)[0]
        for name, way in ways.items()
    }


def _outstanding(read: dict[str, Tensor], count: int) -> list[int]:
    """Features whose largest activation is farthest above their mean over all rows."""
    ahead = read["most"].amax(0) - read["active"].sum(0) / read["rows"].sum()
    return sorted(
        torch.argsort(ahead, descending=True, stable=True)[: min(count, int((ahead > 0).sum()) or 1)].tolist()
    )


def _strongest(
    model: Model, prompts: Sequence[Inputs], dictionary: SAE, site: Site, where: TokenSelection, most: Tensor,
    chosen: list[int], top: int,
) -> tuple[list[dict[str, Any]], dict[str, Array]]:  # fmt: skip
    """The places and maps of each chosen feature on the images where it is strongest."""
    order = torch.argsort(most, dim=0, descending=True, stable=True)[:top]
    wanted = [
        (feature, rank, int(order[rank, f]))
        for f, feature in enumerate(chosen)
        for rank in range(len(order))
        if most[order[rank, f], f] > 0
    ]
    active = {}
    for image in sorted({image for *_, image in wanted}):
        rows = dictionary.encode(_rows(model, prompts[image], site, where))[:, chosen].cpu().numpy()
        active[image] = dict(zip(chosen, rows.T, strict=True)), _where_rows(model, prompts[image], site, where)
    places, maps = [], {}
    for feature, rank, image in wanted:
        values, at = active[image][0][feature], active[image][1]
        place, cells = _place(values, at, prompts[image])
        places.append({"feature": feature, "rank": rank, "image": image, **place})
        maps[f"{feature}, {rank}"] = Array.of(cells, "row column", unit="activation")
    return places, maps


def _where_rows(model: Model, inputs: Inputs, site: Site, where: TokenSelection) -> dict[str, np.ndarray]:
    """Kind, item, frame, row, column and box of each of the rows that `_rows` gives."""
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


def _place(values: np.ndarray, at: dict[str, np.ndarray], inputs: Inputs) -> tuple[dict[str, Any], np.ndarray]:
    """The strongest row of one image, and the activations of its image or frame [rows columns]."""
    known, best = geometry(inputs), int(values.argmax())
    kind, number, frame = str(at["kind"][best]), int(at["item"][best]), int(at["frame"][best])
    item = (known.images if kind == "image" else known.videos)[number]
    side = 1 if at["patches"] else known.merge
    cells = np.full((item.grid[1] // side, item.grid[2] // side), np.nan)
    mine = (at["kind"] == kind) & (at["item"] == number) & (at["frame"] == frame)
    cells[at["row"][mine], at["col"][mine]] = values[mine]
    place = {
        "item": f"{kind} {number}", "frame": frame, "row": int(at["row"][best]), "column": int(at["col"][best]),
        "box": tuple(map(float, at["box"][best])), "activation": float(values[best]),
    }  # fmt: skip
    return place, cells


def _result(
    read: dict[str, Tensor], chosen: list[int], places: list[dict[str, Any]], maps: dict[str, Array],
    said: tuple[str, str, tuple[str, ...], bool],
) -> FeatureRegions:  # fmt: skip
    value, where, sources, loss = said
    rows = float(read["rows"].sum())
    spread = float(read["squares"].double().sum() - read["sum"].double().sum(0).square().sum() / rows)
    fired = read["fired"].sum(0)
    recovered = None
    if loss:
        zero = float(read["zero"].double().sum())
        recovered = 1 - float(read["rebuilt"].double().sum()) / zero if zero > 0 else float("nan")
    features = {"feature": chosen}
    return FeatureRegions(
        value=value,
        where=where,
        sources=sources,
        explained_variance=1 - float(read["rest"].double().sum()) / spread if spread > 0 else float("nan"),
        l0=float(fired.sum()) / rows,
        alive=float((fired > 0).float().mean()),
        loss_recovered=recovered,
        most=Array.of(read["most"][:, chosen].T, "feature image", features, "activation"),
        share=Array.of(fired[chosen] / rows, "feature", features),
        places=tuple(places),
        maps=maps,
    )
