"""Dense Qwen3-VL against the reference's stored values, stage by stage, and what must hold of any input."""

from __future__ import annotations

from dataclasses import replace

import parity
import pytest
import torch

from cutaway.batch import IMAGE, Inputs
from cutaway.errors import ConfigError, InputError
from cutaway.model.build import build
from cutaway.model.vision.parts import PatchLayout
from cutaway.observe import observer

FAMILY = "qwen3_vl"
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model():
    return parity.tiny(FAMILY)


@pytest.mark.parametrize("name", parity.cases(FAMILY))
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_stage_equals_the_reference(name: str, implementation: str) -> None:
    model = parity.tiny(FAMILY, attn_implementation=implementation)
    inputs, expected = parity.case(FAMILY, name)
    logits, seen = parity.record(model, inputs)
    tokens = inputs.attention_mask.bool()
    close = {"logits": parity.difference(logits[tokens], expected["out.logits"][tokens])}
    for index, block in enumerate(model.layers):
        ours, theirs = seen(block, "layer_output"), expected[f"txt.layer.{index}"]
        close[f"layers.{index}"] = parity.difference(ours[tokens], theirs[tokens])
    entering, norm = seen(model.layers[0], "input"), seen(model.language_model.norm, "output")
    close["entering"] = parity.difference(entering[tokens], expected["txt.inputs_embeds"][tokens])
    close["norm"] = parity.difference(norm[tokens], expected["txt.norm"][tokens])
    if inputs.pixel_values is not None or inputs.pixel_values_videos is not None:
        close |= vision_differences(model, seen, expected)
    assert max(close.values()) < CLOSE, close


def vision_differences(model, seen, expected) -> dict[str, float]:
    def reference(stage: str) -> torch.Tensor:
        keys = (f"vis.image.{stage}", f"vis.video.{stage}")
        return torch.cat([expected[key] for key in keys if key in expected])

    visual = model.visual
    close = {
        "patch_embed": parity.difference(seen(visual, "patch_embeddings"), reference("patch_embed")),
        "merger": parity.difference(seen(visual.merger, "output"), reference("merger")),
    }
    for index, block in enumerate(visual.blocks):
        close[f"vision.{index}"] = parity.difference(seen(block, "layer_output"), reference(f"block.{index}"))
    for k, merger in enumerate(visual.deepstack_merger_list):
        close[f"deepstack.{k}"] = parity.difference(seen(merger, "output"), reference(f"deepstack.{k}"))
    return close


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_of_a_mixed_batch_equals_itself_alone(model, side: str) -> None:
    inputs, _ = parity.case(FAMILY, "batch")
    together = inputs if side == "left" else parity.right_padded(inputs)
    with torch.no_grad():
        logits = model(together)
        for row in range(3):
            alone = model(parity.one_row(inputs, row))[0]
            ours = logits[row, together.attention_mask[row].bool()]
            assert parity.difference(ours, alone) < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
def test_last_only_is_the_last_unpadded_position_of_each_row(model, side: str) -> None:
    inputs, _ = parity.case(FAMILY, "batch")
    inputs = inputs if side == "left" else parity.right_padded(inputs)
    with torch.no_grad():
        everything, last = model(inputs), model(inputs, last_only=True)
    assert last.shape[1] == 1
    for row in range(3):
        assert parity.difference(last[row, 0], everything[row, inputs.attention_mask[row].bool()][-1]) < CLOSE


@pytest.mark.parametrize("name", ["two_images", "video_odd", "image_and_video"])
def test_packed_vision_equals_each_item_alone(model, name: str) -> None:
    """Attention stays inside a frame: items encoded together equal items encoded one by one, and a video its frames."""
    inputs, _ = parity.case(FAMILY, name)
    for patches, grids in (
        (inputs.pixel_values, inputs.image_grid_thw),
        (inputs.pixel_values_videos, inputs.video_grid_thw),
    ):
        if patches is None:
            continue
        frames = [[1, h, w] for t, h, w in grids.tolist() for _ in range(t)]
        with torch.no_grad():
            _, whole, deepstack = model.visual(patches, grids=grids.tolist(), images=0)
            sizes = [h * w for _, h, w in frames]
            parts = [model.visual(p, grids=[g], images=0) for p, g in zip(patches.split(sizes), frames, strict=True)]
        assert parity.difference(torch.cat([videos for _, videos, _ in parts]), whole) < CLOSE
        assert parity.difference(torch.cat([terms[0] for *_, terms in parts]), deepstack[0]) < CLOSE


def test_positions_made_once_a_size_are_those_of_each_patch(model) -> None:
    grids = [[1, 4, 6], [1, 2, 2], [3, 4, 6], [1, 6, 4], [2, 2, 2]]
    layout = PatchLayout.of(grids, model.visual.spatial_merge_size, torch.device("cpu"))
    looked_up: list[int] = []
    handle = model.visual.pos_embed.register_forward_hook(lambda module, args, out: looked_up.append(len(out)))
    try:
        recorded = model.visual._positions(grids, layout)
        with torch.no_grad():
            once = model.visual._positions(grids, layout)
            token = observer.set(parity.Recorder())
            try:
                watched = model.visual._positions(grids, layout)
            finally:
                observer.reset(token)
    finally:
        handle.remove()
    assert looked_up == [len(layout.rows), 4 * 6 + 2 * 2 + 6 * 4, len(layout.rows)]
    assert torch.equal(once, recorded)
    assert torch.equal(watched, recorded)


@pytest.mark.parametrize("name", ["image", "image_and_video", "batch", "text"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_reading_in_chunks_equals_reading_at_once(model, name: str, chunk: int) -> None:
    inputs, _ = parity.case(FAMILY, name)
    cache = model.new_cache(inputs.input_ids.shape[1])
    tokens = inputs.attention_mask.bool()
    with torch.no_grad():
        at_once, in_chunks = model(inputs), model(inputs, cache=cache, chunk=chunk)
    assert parity.difference(in_chunks[tokens], at_once[tokens]) < CLOSE
    assert cache.length == inputs.input_ids.shape[1]


def test_chunks_need_a_cache(model) -> None:
    inputs, _ = parity.case(FAMILY, "text")
    with pytest.raises(InputError, match="new_cache"):
        model(inputs, chunk=2)


def test_decoding_step_by_step_equals_one_pass(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    length = inputs.input_ids.shape[1]
    first = length - 4  # the prompt's last four tokens, after the image, go in one at a time
    head = replace(
        inputs,
        input_ids=inputs.input_ids[:, :first],
        attention_mask=inputs.attention_mask[:, :first],
        mm_token_type_ids=inputs.mm_token_type_ids[:, :first],
        position_ids=inputs.position_ids[..., :first],
    )
    cache = model.new_cache(8)  # grows on the way
    with torch.no_grad():
        expected = model(inputs)
        got = [model(head, cache=cache)]
        for at in range(first, length):
            step = Inputs(
                input_ids=inputs.input_ids[:, at : at + 1],
                attention_mask=inputs.attention_mask[:, : at + 1],
                mm_token_type_ids=torch.zeros(1, 1, dtype=torch.int64),
                position_ids=inputs.position_ids[..., at : at + 1],
                next_position=inputs.next_position,
            )
            got.append(model(step, cache=cache))
    assert parity.difference(torch.cat(got, 1), expected) < CLOSE


def test_each_of_the_three_position_rows_reaches_the_rotation(model) -> None:
    inputs, _ = parity.case(FAMILY, "image")
    with torch.no_grad():
        base = model(inputs)
        for axis in range(3):
            moved = inputs.position_ids.clone()
            moved[axis, 0, -3:] += 5
            assert (model(replace(inputs, position_ids=moved)) - base).abs().max() > 1e-3


def test_deepstack_terms_are_added_at_the_images_rows_alone(model) -> None:
    """DeepStack terms go to the images' rows alone."""
    inputs, _ = parity.case(FAMILY, "image")
    _, seen = parity.record(model, inputs)
    mask = inputs.mm_token_type_ids == IMAGE
    for k in range(2):
        out, added = seen(model.layers[k], "layer_output"), seen(model.layers[k], "deepstack_output")
        entering = seen(model.layers[k + 1], "input")
        assert torch.equal(entering[mask], out[mask] + added)
        assert torch.equal(entering[~mask], out[~mask])
        assert torch.equal(added, seen(model.visual.deepstack_merger_list[k], "output"))


def test_taps_are_read_in_depth_order_whatever_order_the_config_has_them_in(model) -> None:
    """Each with the merger at its own place in the config's list."""
    inputs, _ = parity.case("qwen3_vl", "image")
    config = model.config
    turned = build(
        replace(config, vision=replace(config.vision, deepstack_indexes=config.vision.deepstack_indexes[::-1]))
    )
    turned.load_state_dict(model.state_dict())
    mergers = turned.visual.deepstack_merger_list
    for ours, theirs in zip(mergers, list(model.visual.deepstack_merger_list)[::-1], strict=True):
        ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert torch.equal(turned(inputs), model(inputs))
        for ours, theirs in zip(mergers, model.visual.deepstack_merger_list, strict=True):
            ours.load_state_dict(theirs.state_dict())
        assert not torch.allclose(turned(inputs), model(inputs), atol=0.1)


def test_identities_hold_exactly(model) -> None:
    inputs, _ = parity.case(FAMILY, "two_images")
    _, seen = parity.record(model, inputs)
    for block in [*model.layers, *model.visual.blocks]:
        attention = seen(block.self_attn, "attention_output")
        total = seen(block, "input") + attention + seen(block.mlp, "mlp_output")
        assert torch.equal(total, seen(block, "layer_output"))
    assert torch.equal(seen(model.projector, "input"), seen(model.visual, "tower_output"))
    mask = inputs.mm_token_type_ids == IMAGE
    assert torch.equal(seen(model.layers[0], "input")[mask], seen(model.visual, "image_features"))


def test_gradients_reach_every_parameter(model) -> None:
    inputs, _ = parity.case(FAMILY, "image_and_video")
    trained = parity.tiny(FAMILY)
    trained(inputs)[:, -1].square().sum().backward()
    without = [name for name, p in trained.named_parameters() if p.grad is None or not bool(p.grad.abs().any())]
    assert without == []


def test_bfloat16_is_no_farther_from_float32_than_rounding_allows(model) -> None:
    inputs, expected = parity.case(FAMILY, "image")
    with torch.no_grad():
        low = parity.tiny(FAMILY, dtype=torch.bfloat16)(inputs)
    assert low.dtype == torch.bfloat16
    assert parity.difference(low.float(), expected["out.logits"]) < 0.05


def test_counts_are_compared_before_anything_is_scattered(model) -> None:
    inputs, _ = parity.case(FAMILY, "two_images")
    fewer = replace(inputs, mm_token_type_ids=inputs.mm_token_type_ids * 0 + (inputs.input_ids == -1))
    with torch.no_grad(), pytest.raises(InputError, match=r"0 placeholder tokens and \d+ rows"):
        model(fewer)
    blind = replace(inputs, pixel_values=None, image_grid_thw=None)
    with torch.no_grad(), pytest.raises(InputError, match="no pixel_values"):
        model(blind)


def test_no_state_stays_on_the_model(model) -> None:
    """Image, text, image on one object: each equals itself on a fresh one."""
    image, expected = parity.case(FAMILY, "image")
    text, expected_text = parity.case(FAMILY, "text")
    with torch.no_grad():
        logits = [model(image), model(text), model(image)]
    assert torch.equal(logits[0], logits[2])
    assert parity.difference(logits[1], expected_text["out.logits"]) < CLOSE
    assert parity.difference(logits[0], expected["out.logits"]) < CLOSE


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ConfigError, match="sdpa, eager"):
        parity.tiny(FAMILY, attn_implementation="magic")
