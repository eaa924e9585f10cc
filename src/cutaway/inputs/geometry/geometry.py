"""Locate tokens and patches: from sequence positions and patch rows to pixels, frames and seconds, and back.

Boxes are (left, top, right, bottom) in pixels of the image as it came, upright. A *frame* here is a temporal grid:
two frames of a video, and one for an image. Rows and columns of tokens count in the merged grid, those of patches in
the patch grid. A geometry is built from a batch without opening an image again; it knows no values of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cutaway.batch import IMAGE, TEXT, VIDEO
from cutaway.config import Config
from cutaway.errors import InputError
from cutaway.inputs.batch.mrope import TokenRun, grid_cells, token_runs
from cutaway.inputs.geometry.layout import (
    Array,
    MediaInfo,
    MediaItem,
    Selection,
    TokenLocation,
    TokenTable,
    block_order,
    empty_table,
    to_raster,
    window_order,
    windows,
)
from cutaway.inputs.geometry.overlay import draw_overlay, upsample
from cutaway.inputs.validation import array, box_sides, integer

_KIND = {IMAGE: "image", VIDEO: "video"}
_WHICH = ("image", "video", "sample", "frame", "patches", "windowed")


class Geometry:
    """The geometry of one batch. Each table is computed when it is first read.

    - `images`, `videos`: the `MediaItem`s in order.
    - `tokens`: a `TokenTable` of arrays [batch seq].
    - `image_patches`, `video_patches`: `TokenTable`s of arrays [patches], rows in merge-block order.
    """

    def __init__(
        self,
        ids: Tensor,
        types: Tensor,
        mask: Tensor,
        image_grids: Tensor | None,
        video_grids: Tensor | None,
        config: Config,
        sources: tuple[Sequence[MediaInfo], Sequence[MediaInfo]] = ((), ()),
    ) -> None:
        """Tensors as in `Inputs`. Without `sources` an image is taken to have come in the size of its grid."""
        self._ids, self._types, self._mask = ids, types, mask
        self._grids = {IMAGE: _tuples(image_grids), VIDEO: _tuples(video_grids)}
        self._sources = {IMAGE: list(sources[0]), VIDEO: list(sources[1])}
        self._config, self.merge = config, config.vision.spatial_merge_size
        window = config.vision.window_size
        self.window_side = window // config.vision.patch_size // self.merge if window else None

    @cached_property
    def _runs(self) -> list[list[TokenRun]]:
        return token_runs(
            self._types.cpu(),
            self._mask.cpu(),
            self._grids[IMAGE],
            self._grids[VIDEO],
            merge=self.merge,
            timestamps=self._config.timestamps,
        )

    @cached_property
    def images(self) -> tuple[MediaItem, ...]:
        """The images of the batch, in order."""
        return self._items(IMAGE)

    @cached_property
    def videos(self) -> tuple[MediaItem, ...]:
        """The videos of the batch, in order."""
        return self._items(VIDEO)

    def _items(self, kind: int) -> tuple[MediaItem, ...]:
        sample = {run.item: row for row, result in enumerate(self._runs) for run in result if run.kind == kind}
        patch = self._config.vision.patch_size
        result = []
        for index, grid in enumerate(self._grids[kind]):
            known = self._sources[kind][index] if self._sources[kind] else MediaInfo((grid[1] * patch, grid[2] * patch))
            result.append(MediaItem(_KIND[kind], index, sample[index], grid, known.size, known.seconds))
        return tuple(result)

    def item(self, image: int | None = None, video: int | None = None, sample: int | None = None) -> MediaItem:
        """Return an image or video by its number in the batch, or, with `sample`, in that sample."""
        if (image is None) == (video is None):
            raise InputError(
                f"Name one image or one video; got image={image!r} and video={video!r}. Give `image=0` or `video=0`."
            )
        kind, index = ("image", image) if image is not None else ("video", video)
        index, sample = integer(index, f"`{kind}`", InputError), None if sample is None else self._sample(sample)
        items = [i for i in (self.images if kind == "image" else self.videos) if sample in (None, i.sample)]
        if not 0 <= index < len(items):
            where = "This batch" if sample is None else f"Sample {sample}"
            raise InputError(
                f"{where} has {len(items)} {kind}s, numbered from 0; got {kind}={index}. Give one of those."
            )
        return items[index]

    def _sample(self, sample: Any) -> int:
        """The number of a sample of this batch. Raises `InputError` for any other."""
        count, row = self._types.shape[0], integer(sample, "`sample`", InputError)
        if not 0 <= row < count:
            raise InputError(
                f"This batch has {count} samples, numbered from 0; got sample={sample}. Give one of those."
            )
        return row

    @cached_property
    def tokens(self) -> TokenTable:
        """The location of every sequence position, [batch seq]."""
        table = empty_table((self._types.shape[0], self._types.shape[1]), self._types.shape[0])
        kept, counts = self._mask.cpu().numpy() != 0, {IMAGE: 0, VIDEO: 0}
        ids = self._ids.cpu().numpy()
        markers = (self._config.vision_start_token_id, self._config.vision_end_token_id)
        for sample, result in enumerate(self._runs):
            columns = np.flatnonzero(kept[sample])
            table.kind[sample, columns] = np.where(np.isin(ids[sample, columns], markers), "marker", "text")
            cell = grid_cells(result) if result else None
            for run in result:
                if run.kind == TEXT or cell is None:
                    continue
                at = columns[run.start : run.start + run.length]
                inside = slice(run.start, run.start + run.length)
                item = (self.images if run.kind == IMAGE else self.videos)[run.item]
                position = (run.frame + cell.time[inside], cell.height[inside], cell.width[inside])
                self._write(table, (sample, at), item, position, self.merge)
                table.token[sample, at] = counts[run.kind] + np.arange(run.length)
                counts[run.kind] += run.length
            self._mark(table, sample, columns, ids[sample])
        return table

    def _mark(self, table: TokenTable, sample: int, columns: np.ndarray, ids: np.ndarray) -> None:
        """Gives a vision start the item and frame of the token after it, a vision end those of the one before."""
        for token, step in ((self._config.vision_start_token_id, 1), (self._config.vision_end_token_id, -1)):
            result = np.flatnonzero(ids[columns] == token)
            result = result[(result + step >= 0) & (result + step < len(columns))]
            near, here = columns[result + step], columns[result]
            for values in (table.item, table.frame, table.seconds):
                values[sample, here] = values[sample, near]

    def _write(self, table: TokenTable, at: Any, item: MediaItem, position: tuple[np.ndarray, ...], side: int) -> None:
        """Writes frame, row, column and what follows from them; `side` is the cell's side in patches."""
        frame, row, col = position
        table.kind[at], table.sample[at], table.item[at] = item.kind, item.sample, item.index
        table.frame[at], table.row[at], table.col[at] = frame, row, col
        if item.seconds:
            table.seconds[at] = np.array(item.seconds)[frame]
        high, wide = item.size[0] / (item.grid[1] // side), item.size[1] / (item.grid[2] // side)
        table.box[at] = np.stack([col * wide, row * high, (col + 1) * wide, (row + 1) * high], -1)
        if self.window_side is not None:
            merged = self._token_grid(item)
            token = np.ravel_multi_index((frame, row * side // self.merge, col * side // self.merge), merged)
            table.window[at] = windows(merged, self.window_side)[token]

    def _token_grid(self, item: MediaItem) -> tuple[int, int, int]:
        return item.grid[0], item.grid[1] // self.merge, item.grid[2] // self.merge

    @cached_property
    def image_patches(self) -> TokenTable:
        """The location of every patch row of `pixel_values`; `token` is the image token that it is merged into."""
        return self._patches(self.images)

    @cached_property
    def video_patches(self) -> TokenTable:
        """The location of every patch row of `pixel_values_videos`; `token` is the video token it is merged into."""
        return self._patches(self.videos)

    def _patches(self, items: Sequence[MediaItem]) -> TokenTable:
        sizes = [int(np.prod(item.grid)) for item in items]
        table, start = empty_table((sum(sizes),)), 0
        for item, size in zip(items, sizes, strict=True):
            at = np.arange(start, start + size)
            position = np.unravel_index(block_order(item.grid, self.merge), item.grid)
            self._write(table, at, item, position, 1)
            table.token[at] = at // self.merge**2
            start += size
        return table

    def at(self, position: int, sample: int = 0) -> TokenLocation:
        """Describe one sequence position; negative positions count from the end. Raises `InputError`."""
        length = self._types.shape[1]
        sample, position = self._sample(sample), integer(position, "`position`", InputError)
        if not -length <= position < length:
            raise InputError(
                f"A sample of this batch has {length} positions, numbered from 0; got {position}. Give one of those."
            )
        position, table = position % length, self.tokens
        here = (sample, position)
        kind, item = str(table.kind[here]), int(table.item[here])
        if item < 0:
            return TokenLocation(sample, position, kind)
        seconds = float(table.seconds[here])
        location = TokenLocation(
            sample, position, kind, item, int(table.frame[here]), None if np.isnan(seconds) else seconds
        )
        if table.row[here] < 0:
            return location
        left, top, right, bottom = map(float, table.box[here])
        known = {"row": int(table.row[here]), "col": int(table.col[here]), "box": (left, top, right, bottom)}
        return TokenLocation(**{**vars(location), **known})

    def select(
        self,
        *,
        image: int | None = None,
        video: int | None = None,
        sample: int | None = None,
        frame: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        mask: Any = None,
    ) -> Selection:
        """Select image and video tokens that meet every condition, and all patches of those tokens.

        - `image`, `video`: numbers as in `item`; without either, all images and videos (of `sample`).
        - `frame`: a temporal grid. - `box`: (left, top, right, bottom) in original pixels; tokens that it overlaps.
        - `mask`: [height width] in original pixels; tokens with a true pixel in them.
        """
        table = self.tokens
        selected = table.token >= 0
        if image is not None or video is not None:
            item = self.item(image, video, sample)
            selected &= (table.kind == item.kind) & (table.item == item.index)
        elif sample is not None:
            selected &= table.sample == self._sample(sample)
        if frame is not None:
            selected &= table.frame == integer(frame, "`frame`", InputError)
            if not selected.any():
                raise InputError(
                    f"No image or video selected here has a temporal grid {frame}; they count from 0. Lower `frame`."
                )
        if box is not None:
            selected = self._inside(box, selected)
        if mask is not None:
            selected &= self._under(mask, self.item(image, video, sample), selected)
        return self._selection(selected)

    def _inside(self, box: Any, selected: np.ndarray) -> np.ndarray:
        """[batch seq]: which of the selected tokens the box overlaps."""
        (left, top, right, bottom), at = box_sides(box, "`box`", InputError), self.tokens.box
        result = selected & (at[..., 0] < right) & (at[..., 2] > left) & (at[..., 1] < bottom) & (at[..., 3] > top)
        if not result.any():
            kinds, items = self.tokens.kind[selected], self.tokens.item[selected]
            media = [i for i in (*self.images, *self.videos) if ((kinds == i.kind) & (items == i.index)).any()]
            sizes = ", ".join(f"{i.kind} {i.index}: {i.size}" for i in media) or "nothing is selected"
            raise InputError(
                f"No token lies in `box` {box}. A box is in pixels of the image or frame as it came; (height, width) "
                f"of those selected: {sizes}."
            )
        return result

    def _under(self, mask: Any, item: MediaItem, selected: np.ndarray) -> np.ndarray:
        """[batch seq]: which of the selected tokens, all of one item, have a true pixel."""
        pixels = array(mask, "`mask`", InputError) != 0
        if pixels.shape != item.size:
            raise InputError(f"`mask` is [height width] of the image, {item.size}; got {pixels.shape}.")
        if not pixels.any():
            raise InputError(f"`mask` has no true pixel, so no token of {item.kind} {item.index} lies under it.")
        total = np.pad(pixels, ((1, 0), (1, 0))).astype(np.int64).cumsum(0).cumsum(1)
        box = np.where(selected[..., None], self.tokens.box, 0)
        left, top = (np.floor(box[..., n] + 1e-9).astype(int) for n in (0, 1))
        right = np.minimum(np.ceil(box[..., 2] - 1e-9).astype(int), item.size[1])
        bottom = np.minimum(np.ceil(box[..., 3] - 1e-9).astype(int), item.size[0])
        return total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left] > 0

    def _selection(self, selected: np.ndarray) -> Selection:
        table, rows = self.tokens, {}
        for kind in ("image", "video"):
            rows[kind] = torch.from_numpy(table.token[selected & (table.kind == kind)])
        group = torch.arange(self.merge**2, device="cpu")
        patches = {kind: (result[:, None] * self.merge**2 + group).flatten() for kind, result in rows.items()}
        return Selection(torch.from_numpy(selected), rows["image"], rows["video"], patches["image"], patches["video"])

    def window_order(self, kind: str = "image", patches: bool = True) -> Tensor:
        """Return the order of Qwen2.5-VL's encoder: ``rows[order]`` puts the rows of all items in window order.

        Rows are the patch rows of all images (or videos), or with ``patches=False`` merged tokens. ``order.argsort()``
        undoes it. Raises `InputError` for a model without windows.
        """
        if self.window_side is None:
            raise InputError(
                "This model's vision encoder has no windows: its patches stay in merge-block order. Leave this out."
            )
        if kind not in _KIND.values():
            raise InputError(f'`kind` is "image" or "video"; got {kind!r}.')
        group, parts, start = self.merge**2 if patches else 1, [], 0
        for item in self.images if kind == "image" else self.videos:
            order = window_order(self._token_grid(item), self.window_side, group)
            parts.append(torch.from_numpy(order) + start)
            start += len(order)
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device="cpu")

    def cells(
        self,
        values: Any,
        *,
        image: int | None = None,
        video: int | None = None,
        sample: int | None = None,
        frame: int = 0,
        patches: bool = False,
        windowed: bool = False,
    ) -> np.ndarray:
        """Return [rows columns] float32 of an image or frame in the merged grid, from one value for each token.

        `values`: [batch seq], [seq] of a batch of one, [tokens] of all images (or videos) as `image_features` has
        them, or [tokens] of this one. With `patches` one value for each patch row, in the patch grid; see `raster`.
        """
        item = self.item(image, video, sample)
        grid, frame = self._token_grid(item), item.validate_frame(frame)
        result = array(values, "`values`", InputError).astype(np.float32)
        if patches:
            return self.raster(result, image=image, video=video, sample=sample, windowed=windowed)[frame]
        return self._of_tokens(result, item).reshape(grid)[frame]

    def _of_tokens(self, array: np.ndarray, item: MediaItem) -> np.ndarray:
        """[tokens of `item`], picked from any of the forms that `cells` takes."""
        kind = self.tokens.kind == item.kind
        mine = kind & (self.tokens.item == item.index)
        total, shape = int(kind.sum()), int(mine.sum())
        if array.shape == mine.shape:
            return array[mine]
        if len(mine) == 1 and array.shape == mine.shape[1:]:
            return array[mine[0]]
        if array.shape == (shape,):
            return array
        if array.shape == (total,):
            return array[self.tokens.token[mine]]
        raise InputError(
            f"`values` has one number for each token: {mine.shape} for the sequence, ({total},) for all "
            f"{item.kind}s or ({shape},) for "
            f"{item.kind} {item.index}; got {array.shape}. Reduce other axes first, or say `patches=True`."
        )

    def raster(
        self,
        values: Array,
        *,
        image: int | None = None,
        video: int | None = None,
        sample: int | None = None,
        windowed: bool = False,
    ) -> Array:
        """Return [time height width …] of one image or video in its patch grid, from the packed patch rows of all.

        `values`: [patches …] or [1 patches …] in merge-block order; with `windowed` in window order, as Qwen2.5-VL's
        encoder has them between its entry and its merger.
        """
        item = self.item(image, video, sample)
        table = self.image_patches if item.kind == "image" else self.video_patches
        if not isinstance(values, Tensor | np.ndarray) or not values.ndim:
            raise InputError(f"`values` is a tensor or an array with an entry per patch row; got {values!r}.")
        rows: Any = values[0] if values.ndim > 1 and values.shape[0] == 1 else values
        if rows.shape[0] != len(table.item):
            raise InputError(
                f"The {item.kind}s of this batch have {len(table.item)} patch rows; `values` has the shape "
                f"{tuple(values.shape)}. Give all rows, as `pixel_values` has them."
            )
        mine = np.flatnonzero(table.item == item.index)
        if windowed:
            mine = self.window_order(item.kind).argsort().numpy()[mine]
        return to_raster(rows[mine], item.grid, self.merge)

    def heat(self, values: Any, *, smooth: bool = False, **which: Any) -> np.ndarray:
        """Return [height width] float32 in original pixels, each with its token's value, interpolated with `smooth`.

        `values` and `which` as in `cells`.
        """
        size = self._item_to_draw(which).size
        return upsample(self.cells(values, **which), size, smooth)

    def draw(
        self,
        background: Any,
        values: Any = None,
        *,
        selection: Selection | None = None,
        grid: bool = True,
        smooth: bool = False,
        opacity: float = 0.6,
        limits: tuple[float, float] | None = None,
        **which: Any,
    ) -> Image.Image:
        """Draw a value for each token as colour over the image (or a frame of the video), and the token grid.

        - `background`: the image that was prepared, anything that `read_image` opens; `which` as in `cells`.
        - `limits`: values of the darkest and brightest colour; default the smallest and largest. NaN stays clear.
        - `selection`: tokens to outline.
        """
        item = self._item_to_draw(which)
        boxes = None
        if selection is not None:
            if (mask_shape := selection.mask.shape) != (shape := self._types.shape):
                raise InputError(
                    f"`selection` must be one of this batch, {list(shape)}; got {list(mask_shape)}. Select again."
                )
            frame = self.tokens.frame == which.get("frame", 0)
            mine = (self.tokens.kind == item.kind) & (self.tokens.item == item.index) & frame
            boxes = self.tokens.box[mine & selection.mask.cpu().numpy()]
        heat = None if values is None else self.heat(values, smooth=smooth, **which)
        lines = self._token_grid(item)[1:] if grid else None
        return draw_overlay(background, item.size, heat, lines=lines, boxes=boxes, opacity=opacity, limits=limits)

    def _item_to_draw(self, which: dict[str, Any]) -> MediaItem:
        """The item that `which` names. Raises `InputError` for unknown names and a frame that it lacks."""
        if unknown := sorted(which.keys() - set(_WHICH)):
            raise InputError(f"There is no argument {unknown[0]!r}. What is drawn is named by {', '.join(_WHICH)}.")
        item = self.item(which.get("image"), which.get("video"), which.get("sample"))
        item.validate_frame(which.get("frame", 0))
        return item


def _tuples(grids: Tensor | None) -> list[tuple[int, int, int]]:
    return [] if grids is None else [(int(t), int(h), int(w)) for t, h, w in grids.tolist()]
