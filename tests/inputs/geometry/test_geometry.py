"""Geometry: orders and back, places, selections, heat maps, drawings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cutaway.checkpoint.config_reader import read_config
from cutaway.errors import InputError
from cutaway.inputs.geometry.layout import block_order, to_blocks, to_raster, window_order, windows
from cutaway.inputs.geometry.overlay import colorize, upsample
from cutaway.inputs.processor import Processor

DATA = Path(__file__).parents[2] / "data" / "oracle" / "ckpt"
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"

side = st.integers(1, 6)
grids = st.tuples(st.integers(1, 3), side.map(lambda n: 2 * n), side.map(lambda n: 2 * n))


def of(line: str) -> Processor:
    return Processor.from_folder(DATA / line, read_config(DATA / line))


@pytest.fixture(scope="module")
def batch():
    """Row 0: text. Row 1: two images. Row 2: a video of four grids, then an image."""
    texts = ["no image", f"{PAD} and {PAD}", f"{VIDEO}{PAD}"]
    images = [Image.new("RGB", (131, 70)), Image.new("RGB", (60, 60)), Image.new("RGB", (90, 120))]
    video = np.zeros((8, 60, 90, 3), np.uint8)
    return of("qwen3_vl")(texts, images=images, videos=video, video_metadata={"fps": 4}, fps=4, layout="hwc")


@given(grids)
def test_block_order_and_back(grid) -> None:
    values = np.arange(np.prod(grid))
    raster = to_raster(values, grid, 2)
    assert raster.shape == grid
    assert (to_blocks(raster, 2) == values).all()
    assert (to_blocks(torch.from_numpy(raster), 2) == torch.from_numpy(values)).all()
    for row in range(0, len(values), 4):  # four rows are a 2 x 2 block: neighbours in raster order
        time, height, width = np.unravel_index(block_order(grid, 2)[row : row + 4], grid)
        assert len(set(time)) == 1
        assert (height - height[0]).tolist() == [0, 0, 1, 1]
        assert (width - width[0]).tolist() == [0, 1, 0, 1]


@given(st.tuples(st.integers(1, 3), st.integers(1, 11), st.integers(1, 11)), st.integers(1, 5))
def test_window_order_by_walking(grid, side: int) -> None:
    time, height, width = grid
    walked = []
    for t in range(time):
        for top in range(0, height, side):
            for left in range(0, width, side):
                inside = [
                    (y, x) for y in range(top, min(top + side, height)) for x in range(left, min(left + side, width))
                ]
                walked.append([(t * height + y) * width + x for y, x in inside])
    assert window_order(grid, side).tolist() == [token for window in walked for token in window]
    assert [np.flatnonzero(windows(grid, side) == n).tolist() for n in range(len(walked))] == walked
    rows = window_order(grid, side, 4).reshape(-1, 4)
    assert (rows // 4 == window_order(grid, side)[:, None]).all()


@pytest.mark.parametrize(
    ("grid", "ends"),
    [
        ((1, 2, 2), [4]),
        ((1, 4, 4), [16]),
        ((1, 8, 8), [16, 32, 48, 64]),
        ((1, 6, 4), [16, 24]),
        ((1, 10, 6), [16, 24, 40, 48, 56, 60]),
    ],
)
def test_small_and_exact_grids_have_no_empty_windows(grid, ends: list[int]) -> None:
    """Windows of four patches a side, two merged tokens."""
    counts = np.bincount(windows((grid[0], grid[1] // 2, grid[2] // 2), 2))
    assert (counts * 4).cumsum().tolist() == ends


def test_orders_refuse_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="16 patch rows"):
        to_raster(np.zeros(5), (1, 4, 4), 2)
    with pytest.raises(InputError, match="multiples of the merge size"):
        to_blocks(np.zeros((1, 3, 4)), 2)


def test_every_position_has_its_place(batch) -> None:
    table = batch.geometry.tokens
    assert (table.kind == "padding").tolist() == (batch.attention_mask == 0).tolist()
    assert (table.kind == "image").tolist() == (batch.mm_token_type_ids == 1).tolist()
    assert (table.kind == "video").tolist() == (batch.mm_token_type_ids == 2).tolist()
    assert (table.kind == "marker").sum() == 2 * 3 + 2 * 4  # a pair per image, a pair per temporal grid
    for kind in ("image", "video"):
        here = table.token[table.kind == kind]
        assert here.tolist() == list(range(len(here)))
    assert table.sample[:, 0].tolist() == [0, 1, 2]


def test_places_agree_with_positions(batch) -> None:
    """Rows and columns are the height and width positions less the block's start."""
    table, positions = batch.geometry.tokens, batch.position_ids
    for item in (*batch.geometry.images, *batch.geometry.videos):
        for frame in range(item.grid[0]):
            here = (table.kind == item.kind) & (table.item == item.index) & (table.frame == frame)
            time, height, width = positions[:, torch.from_numpy(here)]
            assert (height - time).tolist() == table.row[here].tolist()
            assert (width - time).tolist() == table.col[here].tolist()


def test_boxes_tile_the_original_image(batch) -> None:
    geometry = batch.geometry
    assert [item.size for item in geometry.images] == [(70, 131), (60, 60), (120, 90)]
    assert [item.sample for item in geometry.images] == [1, 1, 2]
    for item in geometry.images:
        for table in (geometry.tokens, geometry.image_patches):
            box = table.box[(table.kind == "image") & (table.item == item.index)]
            area = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).sum()
            assert area == pytest.approx(item.size[0] * item.size[1])
            assert box[:, 2].max() == pytest.approx(item.size[1])
            assert box[:, 3].max() == pytest.approx(item.size[0])


def test_videos_have_frames_and_seconds(batch) -> None:
    geometry = batch.geometry
    video = geometry.item(video=0)
    assert video.grid[0] == 4
    assert video.seconds == (0.125, 0.625, 1.125, 1.625)
    first = np.flatnonzero(geometry.tokens.kind[2] == "video")[0]
    position = geometry.at(int(first), sample=2)
    assert (position.kind, position.item, position.frame, position.seconds, position.row, position.col) == (
        "video",
        0,
        0,
        0.125,
        0,
        0,
    )
    marker = geometry.at(int(first) - 1, sample=2)
    assert (marker.kind, marker.item, marker.frame, marker.row) == ("marker", 0, 0, None)
    assert geometry.at(-1, sample=0).kind == "text"
    with pytest.raises(InputError, match="numbered from 0; got 10000"):
        geometry.at(10_000)


def test_one_token_stands_for_two_frames_and_four_patches() -> None:
    """A video of eight frames with 24 x 46 patches: 4 * 12 * 23 tokens, each with its own place."""
    line = of("qwen2_vl")
    inputs = line.complete(
        {
            "input_ids": [[line.config.video_token_id] * (4 * 12 * 23)],
            "pixel_values_videos": torch.zeros(4 * 24 * 46, 1176),
            "video_grid_thw": [[4, 24, 46]],
        }
    )
    values = torch.arange(4 * 12 * 23).float()
    assert inputs.geometry.cells(values, video=0, frame=3).shape == (12, 23)
    assert inputs.geometry.cells(values, video=0, frame=3)[1, 2] == 3 * 12 * 23 + 23 + 2
    assert inputs.geometry.video_patches.token[-1] == 4 * 12 * 23 - 1


def test_selection_by_box(batch) -> None:
    geometry = batch.geometry
    item = geometry.images[0]  # 70 x 131 pixels, 2 x 4 tokens
    selection = geometry.select(image=0, box=(0, 0, 40, 30))
    rows, cols = geometry.tokens.row[selection.mask], geometry.tokens.col[selection.mask]
    assert list(zip(rows.tolist(), cols.tolist(), strict=True)) == [(0, 0), (0, 1)]
    assert selection.image_tokens.tolist() == [0, 1]
    assert selection.image_patches.tolist() == list(range(8))
    assert len(selection) == 2
    assert len(selection.video_tokens) == len(selection.video_patches) == 0
    everything = geometry.select(image=0, box=(-5, -5, 999, 999))
    assert len(everything) == np.prod(item.grid) // 4


def test_selection_by_frame_sample_and_kind(batch) -> None:
    geometry = batch.geometry
    frame = geometry.select(video=0, frame=2)
    per_frame = len(geometry.select(video=0)) // 4
    assert frame.video_tokens.tolist() == list(range(2 * per_frame, 3 * per_frame))
    assert torch.equal(geometry.select(image=0, sample=2).mask, geometry.select(image=2).mask)
    assert geometry.select(sample=1).mask[[0, 2]].sum() == 0
    assert torch.equal(geometry.select().mask, batch.mm_token_type_ids != 0)
    patches = geometry.select(image=1).image_patches
    assert (geometry.image_patches.item[patches] == 1).all()


@given(st.data())
def test_selection_by_mask_finds_the_tokens_of_its_pixels(batch, data) -> None:
    geometry = batch.geometry
    index = data.draw(st.integers(0, 2))
    height, width = geometry.images[index].size
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    mask = np.zeros((height, width), bool)
    mask[y, x] = True
    selection = geometry.select(image=index, mask=mask).mask.numpy()
    touched = geometry.select(image=index, box=(x, y, x + 1, y + 1)).mask.numpy()
    assert (selection == touched).all()
    assert selection.any()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"image": 3}, "has 3 images"),
        ({"image": 0, "sample": 0}, "Sample 0 has 0 images"),
        ({"image": 0, "video": 0}, "Name one image or one video"),
        ({"sample": 9}, "got sample=9"),
        ({"video": 0, "frame": 4}, "No image or video selected here has a temporal grid 4"),
        ({"image": 0, "box": (3, 3, 3, 9)}, "left < right"),
        ({"image": 0, "box": 4}, "left < right"),
        ({"image": 0, "mask": np.ones((3, 3))}, r"\(70, 131\); got \(3, 3\)"),
        ({"mask": np.ones((3, 3))}, "Name one image or one video"),
        ({"image": 0, "mask": np.zeros((70, 131))}, "no true pixel"),
        ({"image": 0, "mask": [[1], [1, 2]]}, "`mask` must be an array of numbers, got a list"),
        ({"image": 0, "box": ("a", 0, 9, 9)}, "left < right"),
        ({"image": 0, "box": (float("nan"), 0, 9, 9)}, "left < right"),
        ({"image": 0, "box": (200, 0, 210, 10)}, r"No token lies in `box`.*image 0: \(70, 131\)\."),
        ({"box": (500, 500, 510, 510)}, r"image 0: .*image 1: .*image 2: .*video 0: "),
        ({"sample": 0, "box": (0, 0, 10, 10)}, "nothing is selected"),
        ({"video": 0, "frame": -1}, "temporal grid -1"),
        ({"video": 0, "frame": 1.0}, "`frame` must be a whole number, got 1.0"),
        ({"image": True}, "`image` must be a whole number, got True"),
        ({"image": "0"}, "`image` must be a whole number"),
        ({"image": 0, "sample": 9}, "got sample=9"),
        ({"sample": 0.5}, "`sample` must be a whole number"),
    ],
)
def test_selections_that_cannot_be(batch, how: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        batch.geometry.select(**how)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: g.at("3"), "`position` must be a whole number, got '3'"),
        (lambda g: g.at(0, sample=3), "got sample=3"),
        (lambda g: g.at(0, sample=-1), "got sample=-1"),
        (lambda g: g.item(video=1), "has 1 videos"),
        (lambda g: g.cells(torch.zeros(3, 2), image=0, frame=1.5), "`frame` must be a whole number"),
        (lambda g: g.cells("looks", image=0), "`values` must be an array of numbers, got a str"),
        (lambda g: g.raster([1.0, 2.0], image=0), "an entry per patch row"),
        (lambda g: g.raster(torch.tensor(1.0), image=0), "an entry per patch row"),
        (lambda g: g.window_order("images"), "no windows"),
        (lambda g: g.heat(torch.zeros(3, 2), background=0), "There is no argument 'background'"),
        (lambda g: g.draw(Image.new("RGB", (90, 60)), video=0, frame=4), "numbered from 0; got frame=4"),
        (lambda g: g.draw(Image.new("RGB", (90, 60)), video=0, frames=1), "There is no argument 'frames'"),
        (lambda g: g.draw(Image.new("RGB", (131, 70)), image=0, limits=(2, 1)), "`limits`"),
        (lambda g: g.draw(Image.new("RGB", (131, 70)), image=0, limits=3), "`limits`"),
        (lambda g: g.draw(Image.new("RGB", (131, 70)), image=0, opacity="half"), "`opacity`"),
    ],
)
def test_places_that_are_not_there(batch, ask, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(batch.geometry)


def test_a_selection_of_another_batch_is_not_drawn(batch) -> None:
    other = of("qwen3_vl")([PAD], images=[Image.new("RGB", (131, 70))]).geometry.select(image=0)
    with pytest.raises(InputError, match="one of this batch"):
        batch.geometry.draw(Image.new("RGB", (131, 70)), image=0, selection=other)


def test_numbers_of_numpy_and_torch_count(batch) -> None:
    geometry = batch.geometry
    assert geometry.at(np.int64(0), sample=torch.tensor(1)) == geometry.at(0, sample=1)
    assert geometry.item(image=np.int32(1)) is geometry.images[1]


def test_a_value_per_token_in_any_of_its_forms(batch) -> None:
    geometry = batch.geometry
    sequence = torch.arange(batch.input_ids.numel()).reshape(batch.input_ids.shape).float()
    for item in geometry.images:
        mine = (geometry.tokens.kind == "image") & (geometry.tokens.item == item.index)
        own = sequence[torch.from_numpy(mine)]
        every = sequence[batch.mm_token_type_ids == 1]
        forms = [geometry.cells(values, image=item.index) for values in (sequence, every, own, own.numpy())]
        assert all((form == forms[0]).all() for form in forms)
        assert forms[0].flatten().tolist() == own.tolist()
    with pytest.raises(InputError, match="one number for each token"):
        geometry.cells(torch.zeros(5), image=0)
    with pytest.raises(InputError, match="got frame=1"):
        geometry.cells(sequence, image=0, frame=1)


def test_heat_gives_each_pixel_its_tokens_value(batch) -> None:
    geometry = batch.geometry
    sequence = torch.rand(batch.input_ids.shape)
    heat = geometry.heat(sequence, image=0)
    assert heat.shape == (70, 131)
    table = geometry.tokens
    for sample, position in np.argwhere((table.kind == "image") & (table.item == 0)):
        left, top, right, bottom = table.box[sample, position]
        assert heat[int((top + bottom) / 2), int((left + right) / 2)] == sequence[sample, position]
    smooth = geometry.heat(sequence, image=0, smooth=True)
    assert smooth.shape == (70, 131)
    assert smooth.min() >= heat.min() - 1e-6
    assert smooth.max() <= heat.max() + 1e-6


def test_spreading_is_fair_for_sizes_that_do_not_divide() -> None:
    spread_out = upsample(np.arange(6).reshape(2, 3), (5, 7))
    assert spread_out[0].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert spread_out[:, 0].tolist() == [0, 0, 3, 3, 3]


def test_colours_rise_in_lightness_and_leave_limits_alone() -> None:
    shades = colorize(np.linspace(0, 1, 50)).astype(float) @ [0.299, 0.587, 0.114]
    assert (np.diff(shades) >= -0.5).all()
    assert (colorize(np.zeros(3)) == colorize(np.zeros(1))).all()
    assert (colorize(np.array([0.0, 9.0]), (0, 1))[1] == colorize(np.array([0.0, 1.0]))[1]).all()


def test_drawing(batch) -> None:
    geometry = batch.geometry
    image = Image.new("RGB", (131, 70), "white")
    values = torch.zeros(batch.input_ids.shape)
    selection = geometry.select(image=0, box=(0, 0, 20, 20))
    values[selection.mask] = 1
    plain = geometry.draw(image, image=0, grid=False)
    assert np.array_equal(np.asarray(plain), np.asarray(image))
    drawn = np.asarray(geometry.draw(image, values, image=0, grid=False, opacity=1.0))
    assert (drawn[5, 5] == (252, 255, 164)).all()
    assert (drawn[60, 120] == (12, 8, 38)).all()
    outlined = np.asarray(geometry.draw(image, image=0, selection=selection))
    assert (outlined[0, 0] == (0, 220, 255)).all()
    frame = Image.new("RGB", (90, 60))
    assert geometry.draw(frame, values, video=0, frame=1).size == (90, 60)
    with pytest.raises(InputError, match="the image that was prepared"):
        geometry.draw(Image.new("RGB", (9, 9)), image=0)
    with pytest.raises(InputError, match="`opacity`"):
        geometry.draw(image, image=0, opacity=2)
    nothing = values * float("nan")
    assert np.array_equal(np.asarray(geometry.draw(image, nothing, image=0, grid=False)), np.asarray(image))


def test_window_order_of_a_batch_and_back() -> None:
    line = of("qwen2_5_vl")
    images = [Image.new("RGB", (28 * 5, 28 * 3)), Image.new("RGB", (28 * 2, 28 * 4))]
    geometry = line(f"{PAD}{PAD}", images=images, max_pixels=10**6).geometry
    order = geometry.window_order()
    assert sorted(order.tolist()) == list(range(15 * 4 + 8 * 4))
    rows = torch.rand(len(order), 3)
    assert torch.equal(rows[order][order.argsort()], rows)
    table = geometry.image_patches
    numbers = list(zip(table.item[order].tolist(), table.window[order].tolist(), strict=True))
    assert numbers == sorted(numbers)
    tokens = geometry.window_order(patches=False)
    assert torch.equal(order[::4] // 4, tokens)
    here = geometry.tokens.window[0][geometry.tokens.kind[0] == "image"]
    assert (here == table.window[::4]).all()
    assert len(geometry.window_order("video")) == 0
    with pytest.raises(InputError, match='"image" or "video"; got \'images\''):
        geometry.window_order("images")
    with pytest.raises(InputError, match="no windows"):
        of("qwen2_vl")(PAD, images=images[0]).geometry.window_order()


def test_patch_rows_in_their_grid(batch) -> None:
    geometry = batch.geometry
    rows = batch.pixel_values
    for item in geometry.images:
        grid = geometry.raster(rows, image=item.index)
        assert grid.shape == (*item.grid, rows.shape[1])
        mine = geometry.image_patches.item == item.index
        positions = (geometry.image_patches.row[mine], geometry.image_patches.col[mine])
        assert torch.equal(grid[0][positions], rows[torch.from_numpy(mine)])
        assert torch.equal(geometry.raster(rows[None], image=item.index), grid)
    numbers = np.arange(len(rows))
    assert (geometry.cells(numbers, image=1, patches=True) == geometry.raster(numbers, image=1)[0]).all()
    assert geometry.heat(numbers, image=0, patches=True).shape == (70, 131)
    with pytest.raises(InputError, match="patch rows"):
        geometry.raster(numbers[1:], image=0)


def test_patch_rows_in_window_order() -> None:
    geometry = of("qwen2_5_vl")(PAD, images=Image.new("RGB", (28 * 5, 28 * 3)), max_pixels=10**6).geometry
    rows = torch.rand(60, 2)
    windowed = rows[geometry.window_order()]
    assert torch.equal(geometry.raster(windowed, image=0, windowed=True), geometry.raster(rows, image=0))
