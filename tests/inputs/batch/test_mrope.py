"""M-RoPE positions: the published faults of others, and a slow derivation that shares no code with ours."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.inputs.batch.mrope import grid_cells, mrope_positions, token_runs

T, P, V = 0, 1, 2


def placed(*rows, images=None, videos=None, mask=None, timestamps=False, tps=None, spg=None):
    types = torch.tensor(rows)
    mask = torch.ones_like(types) if mask is None else torch.tensor(mask)
    return mrope_positions(
        types, mask, images, videos, timestamps=timestamps, tokens_per_second=tps, second_per_grid=spg
    )


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.0, [0, 2, 4, 6]),
        (2.0, [0, 4, 8, 12]),
        (1.5, [0, 3, 6, 9]),
        (0.5, [0, 1, 2, 3]),
        (0.4, [0, 0, 1, 2]),
        (2 / 24, [0, 0, 0, 0]),
    ],
)
def test_seconds_are_truncated_once(seconds: float, expected: list[int]) -> None:
    positions, _ = placed([T] + [V] * 4, videos=[(4, 2, 2)], tps=2, spg=[seconds])
    assert (positions[0, 0, 1:] - 1).tolist() == expected


def test_the_product_is_float32() -> None:
    # 10 * float32(0.7) is 6.9999999 in float64 and 7 in float32
    positions, _ = placed([V] * 11, videos=[(11, 2, 2)], tps=2, spg=[0.35])
    assert positions[0, 0, 10] == 7


def test_an_image_is_not_scaled_by_the_clock() -> None:
    row = [T] * 4 + [P] * 2 + [V] * 2
    positions, _ = placed(row, images=[(1, 2, 4)], videos=[(2, 2, 2)], tps=2, spg=[1.0])
    assert positions[0, 0].tolist() == [0, 1, 2, 3, 4, 4, 6, 8]


def test_the_start_is_added_after_scaling() -> None:
    positions, _ = placed([T] * 15 + [V] * 12, videos=[(3, 4, 4)], tps=2, spg=[1.0])
    assert positions[0, 0, 15:].tolist() == [15] * 4 + [17] * 4 + [19] * 4


def test_stamped_frames_are_placed_one_by_one() -> None:
    frame = [T, T, T, V, V, V, V, T]
    positions, following = placed([T] + frame * 3 + [T, T], videos=[(3, 4, 4)], timestamps=True)
    time_row = positions[0, 0].tolist()
    assert [time_row[n] for n in (4, 12, 20)] == [4, 10, 16]
    assert time_row[20:24] == [16] * 4
    assert (following - (1 + 24 + 2)).tolist() == [-6]


def test_rows_of_a_batch_take_their_own_grids() -> None:
    first, second = [T, V, V, T, V, V], [T, *[V] * 6, T, *[V] * 6, T, *[V] * 6]
    grids = [(2, 2, 4), (3, 4, 6)]
    pad = len(second) - len(first)
    both, _ = placed(
        [T] * pad + first, second, mask=[[0] * pad + [1] * 6, [1] * len(second)], videos=grids, timestamps=True
    )
    alone = [placed(row, videos=[grid], timestamps=True)[0] for row, grid in zip((first, second), grids, strict=True)]
    assert torch.equal(both[:, :1, pad:], alone[0])
    assert torch.equal(both[:, 1:], alone[1])


@pytest.mark.parametrize("left", [True, False])
def test_each_row_has_its_own_next_position(left: bool) -> None:
    seen, text = [T, P, P, P, P, T, T, T], [T] * 3
    pad = [T] * 5
    mask = [[1] * 8, [0] * 5 + [1] * 3 if left else [1] * 3 + [0] * 5]
    positions, following = placed(seen, pad + text if left else text + pad, mask=mask, images=[(1, 4, 4)])
    assert following.tolist() == [6, 3]
    assert positions[:, 1].tolist() == [([0] * 5 + [0, 1, 2]) if left else ([0, 1, 2] + [0] * 5)] * 3


def test_an_image_costs_its_longer_side() -> None:
    positions, following = placed([T] * 3 + [P] * 6 + [T] * 3, images=[(1, 4, 6)])
    assert positions[0, 0].tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8]
    assert positions[1, 0, 3:9].tolist() == [3, 3, 3, 4, 4, 4]
    assert positions[2, 0, 3:9].tolist() == [3, 4, 5, 3, 4, 5]
    assert (following - 12).tolist() == [-3]


def test_a_long_video_is_followed_by_its_largest_position() -> None:
    positions, following = placed([V] * 8 + [T], videos=[(8, 2, 2)])
    assert positions[0, 0].tolist() == list(range(9))
    assert following.tolist() == [9]


def test_images_may_touch() -> None:
    positions, following = placed([T, *[P] * 8, T], images=[(1, 4, 4), (1, 4, 4)])
    assert positions[0, 0].tolist() == [0, 1, 1, 1, 1, 3, 3, 3, 3, 5]
    assert following.tolist() == [6]


@pytest.mark.parametrize(
    ("types", "images", "message"),
    [
        ([T, P, P], [(1, 4, 4)], "by sample \\[2\\].*4 tokens"),
        ([T, P, P, P, P], None, "4 placeholders.*describe 0"),
        ([T, T], [(1, 2, 2)], "0 placeholders.*describe 1"),
        ([P, P, T, P, P, P], [(1, 2, 6), (1, 2, 4)], "needs 3 placeholders in one run; got 2"),
        ([P], [(0, 2, 2)], "positive sides"),
        ([P], [(1, 3, 2)], "merge size 2"),
        ([3], None, "got 3 in sample 0"),
    ],
)
def test_what_does_not_match_is_refused(types, images, message: str) -> None:
    with pytest.raises(InputError, match=message):
        placed(types, images=images)


def test_bad_shapes_and_clocks_are_refused() -> None:
    with pytest.raises(InputError, match="both \\[batch seq\\]"):
        mrope_positions(torch.zeros(1, 3), torch.ones(1, 2), timestamps=True)
    with pytest.raises(InputError, match="\\[items 3\\]"):
        placed([P], images=[(1, 2, 2, 2)])
    with pytest.raises(InputError, match="second_per_grid_ts"):
        placed([V], videos=[(1, 2, 2)], tps=2)
    with pytest.raises(InputError, match="got 2 for 1 videos"):
        placed([V], videos=[(1, 2, 2)], tps=2, spg=[1.0, 1.0])
    with pytest.raises(InputError, match="finite"):
        placed([V], videos=[(1, 2, 2)], tps=2, spg=[float("nan")])


def test_a_fully_masked_row_is_empty() -> None:
    positions, following = placed([T, T], mask=[[0, 0]])
    assert positions.sum() == 0
    assert following.tolist() == [0]


def test_sixteen_thousand_tokens_are_quick() -> None:
    types = torch.zeros(1, 17_000, dtype=torch.int64)
    types[0, 100 : 100 + 128 * 128] = P
    begin = time.perf_counter()
    mrope_positions(types, torch.ones_like(types), [(1, 256, 256)], timestamps=True)
    assert time.perf_counter() - begin < 1


def slow(pieces, steps, split):
    """Positions of one row, token by token, from pieces (kind, grid or count)."""
    out, cursor, video = [], 0, 0
    for kind, what in pieces:
        if kind == T:
            for _ in range(what):
                out.append((cursor, cursor, cursor))
                cursor += 1
            continue
        time_, height, width = what
        step = 1.0 if kind == P else steps[video]
        video += kind == V
        parts = [(1, height, width)] * time_ if kind == V and split else [what]
        for part_time, rows, columns in parts:
            block = []
            for t in range(part_time):
                at = int((torch.tensor(float(t)) * torch.tensor(step, dtype=torch.float32)).item())
                where = [(y, x) for y in range(rows // 2) for x in range(columns // 2)]
                block += [(cursor + at, cursor + y, cursor + x) for y, x in where]
            out += block
            cursor = max(max(p) for p in block) + 1
    return out, cursor


grid = st.tuples(st.just(1), st.integers(1, 4).map(lambda n: 2 * n), st.integers(1, 4).map(lambda n: 2 * n))
noise_video = st.tuples(
    st.integers(1, 5), st.integers(1, 3).map(lambda n: 2 * n), st.integers(1, 3).map(lambda n: 2 * n)
)
piece = st.one_of(
    st.tuples(st.just(T), st.integers(1, 5)), st.tuples(st.just(P), grid), st.tuples(st.just(V), noise_video)
)


@given(
    st.lists(st.lists(piece, min_size=1, max_size=6), min_size=1, max_size=3), st.booleans(), st.booleans(), st.data()
)
def test_positions_equal_a_slow_derivation(rows, split: bool, left: bool, data) -> None:
    images = [what for row in rows for kind, what in row if kind == P]
    videos = [what for row in rows for kind, what in row if kind == V]
    seconds = data.draw(st.lists(st.floats(0, 4, width=32), min_size=len(videos), max_size=len(videos)))
    clock = None if split else 2
    kinds = [[kind for kind, what in row for _ in range(what if kind == T else _tokens(what))] for row in rows]
    length = max(map(len, kinds)) + data.draw(st.integers(0, 3))
    padded = [([T] * (length - len(k)) + k) if left else (k + [T] * (length - len(k))) for k in kinds]
    mask = [[0] * (length - len(k)) + [1] * len(k) if left else [1] * len(k) + [0] * (length - len(k)) for k in kinds]
    positions, following = placed(
        *padded, images=images, videos=videos, mask=mask, timestamps=split, tps=clock, spg=seconds
    )
    steps = [2 * s for s in seconds] if clock else [1.0] * len(videos)
    for index, row in enumerate(rows):
        videos = sum(kind == V for kind, _ in row)
        expected, cursor = slow(row, steps[:videos], split)
        steps = steps[videos:]
        kept = torch.tensor(mask[index]) != 0
        assert positions[:, index, kept].T.tolist() == [list(p) for p in expected]
        assert following[index] == cursor
        assert positions[:, index, ~kept].sum() == 0


def _tokens(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2] // 4


@given(st.lists(st.one_of(grid, noise_video), min_size=1, max_size=4))
def test_cells_number_each_block_in_raster_order(grids) -> None:
    types = torch.tensor([[T] + [V] * sum(map(_tokens, grids))])
    result = token_runs(types, torch.ones_like(types), None, grids, timestamps=False)[0]
    cell = grid_cells(result)
    for run in result[1:]:
        at = slice(run.start, run.start + run.length)
        flat = (cell.time[at] * run.height + cell.height[at]) * run.width + cell.width[at]
        assert flat.tolist() == list(range(run.length))
