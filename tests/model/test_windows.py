"""Qwen2.5-VL's windows: against a slow derivation, and what may and may not see what."""

from __future__ import annotations

import families
import parity
import pytest
import torch

from cutaway.config import VisionConfig
from cutaway.inputs.geometry.layout import window_order
from cutaway.model.vision.qwen2_5 import VisionEncoder, Windows


def slow(grids, merge: int, side: int) -> tuple[list[int], list[int]]:
    """Merged tokens in window order and the windows' lengths in patches, found by walking over every window."""
    order, lengths, start = [], [], 0
    for time, height, width in grids:
        rows, columns = height // merge, width // merge
        for frame in range(time):
            for top in range(0, rows, side):
                for left in range(0, columns, side):
                    window = [
                        start + (frame * rows + row) * columns + column
                        for row in range(top, min(top + side, rows))
                        for column in range(left, min(left + side, columns))
                    ]
                    order += window
                    lengths.append(len(window) * merge**2)
        start += time * rows * columns
    return order, lengths


def test_windows_of_random_grids() -> None:
    generator = torch.Generator().manual_seed(5)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for _ in range(200):
        merge, side = number(1, 4), number(1, 6)
        grids = [(number(1, 4), merge * number(1, 14), merge * number(1, 14)) for _ in range(number(1, 4))]
        order, lengths = slow(grids, merge, side)
        windows = Windows.of(grids, merge, side, torch.device("cpu"))
        assert windows.tokens.tolist() == order
        assert windows.cu_seqlens.diff().tolist() == lengths
        assert windows.cu_seqlens[0] == 0
        assert windows.cu_seqlens.dtype == torch.int32
        fold = merge**2
        assert windows.patches.tolist() == [fold * token + i for token in order for i in range(fold)]


@pytest.mark.parametrize(
    ("grid", "ends"),
    [
        ((1, 2, 2), [0, 4]),
        ((1, 4, 4), [0, 16]),
        ((1, 8, 8), [0, 16, 32, 48, 64]),
        ((1, 6, 4), [0, 16, 24]),
        ((1, 10, 6), [0, 16, 24, 40, 48, 56, 60]),
    ],
)
def test_windows_that_fit_exactly_leave_none_empty(grid, ends) -> None:
    assert Windows.of([grid], 2, 2, torch.device("cpu")).cu_seqlens.tolist() == ends


def test_the_geometry_has_the_same_order() -> None:
    for grid in ((1, 12, 20), (3, 10, 6)):
        time, height, width = grid
        windows = Windows.of([grid], 2, 4, torch.device("cpu"))
        assert windows.tokens.tolist() == window_order((time, height // 2, width // 2), 4).tolist()


def encoder(full: tuple[int, ...]) -> VisionEncoder:
    config = VisionConfig(
        "qwen2_5",
        3,
        16,
        24,
        2,
        16,
        14,
        hidden_act="silu",
        window_size=56,
        full_attention_indexes=full,
        tokens_per_second=2,
    )
    return VisionEncoder(config, "sdpa").eval()


@torch.no_grad()
def changed(visual: VisionEncoder, grids, patch: int) -> torch.Tensor:
    """[tokens] bool: which tokens differ when one patch of the input does."""
    patches = torch.randn(sum(t * h * w for t, h, w in grids), 1176)
    before = visual(patches, grids=grids, images=len(grids)).images
    other = patches.clone()
    other[patch] = torch.randn(1176)
    after = visual(other, grids=grids, images=len(grids)).images
    return (before != after).any(-1)


def test_a_window_does_not_see_another_one() -> None:
    moved = changed(encoder(()), [[1, 4, 8]], 0).view(2, 4)
    assert moved[:, :2].all()
    assert not moved[:, 2:].any()


def test_a_block_with_full_attention_sees_its_frame_and_no_other() -> None:
    moved = changed(encoder((1,)), [[2, 4, 8], [1, 4, 4]], 0)
    assert moved[:8].all()
    assert not moved[8:].any()


@torch.no_grad()
def test_items_together_equal_items_alone() -> None:
    visual, grids = encoder((1,)), [[1, 8, 12], [1, 2, 2], [2, 6, 4], [1, 10, 4]]
    patches = [torch.randn(t * h * w, 1176) for t, h, w in grids]
    together = visual(torch.cat(patches), grids=grids, images=len(grids)).images
    alone = [visual(p, grids=[g], images=1).images for p, g in zip(patches, grids, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)


def test_each_block_is_given_its_own_segments_and_patterns() -> None:
    model = parity.tiny("qwen2_5_vl")
    inputs, _ = families.case("qwen2_5_vl", "batch")
    grids = inputs.image_grid_thw.tolist()
    options = {}
    hooks = [
        block.attn.register_forward_pre_hook(
            lambda module, args, kwargs, i=i: options.__setitem__(i, kwargs["cu_seqlens"].tolist()), with_kwargs=True
        )
        for i, block in enumerate(model.vision.blocks)
    ]
    eager = parity.tiny("qwen2_5_vl", attn_implementation="eager")
    with torch.no_grad():
        model(inputs)
    _, seen = parity.record(eager, inputs)
    for hook in hooks:
        hook.remove()
    frames = torch.tensor([0, *(h * w for _, h, w in grids)]).cumsum(0).tolist()
    windows = Windows.of(grids, 2, 2, torch.device("cpu")).cu_seqlens.tolist()
    assert len(windows) > len(frames)
    assert options == {0: windows, 1: frames, 2: windows, 3: frames}
    for index, block in enumerate(eager.vision.blocks):
        patterns = seen(block.attn, "attention_patterns")
        assert [len(p[0]) for p in patterns] == torch.tensor(options[index]).diff().tolist()
        values, heads = seen(block.attn, "attention_values"), seen(block.attn, "attention_head_outputs")
        for pattern, start in zip(patterns, options[index], strict=False):
            part = slice(start, start + pattern.shape[-1])
            torch.testing.assert_close(pattern @ values[0, :, part], heads[0, part].transpose(0, 1))
