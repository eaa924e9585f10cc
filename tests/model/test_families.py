"""The other five families against the reference's stored values: every stage, and the answers."""

from __future__ import annotations

import families
import parity
import pytest
import torch

from cutaway.errors import Unavailable

CLOSE = 1e-5


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", families.CASES)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_stage_equals_the_reference(family: str, name: str, implementation: str) -> None:
    model = parity.tiny(family, attn_implementation=implementation)
    inputs, values = families.case(family, name)
    resident = families.StageComparison(model, inputs, values)
    logits = resident.run(model, inputs)
    assert len(resident.close) == len(resident.stages)
    resident.close["logits"] = parity.difference(logits, values["out.last_logits"])
    assert max(resident.close.values()) < CLOSE, resident.close


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_whole_forward_equals_the_reference(family: str) -> None:
    """Of text: rounding of the patch embedding's sums, which grows from block to block, stays out of the image."""
    inputs, values = families.case(family, "text")
    with torch.no_grad():
        logits = parity.tiny(family)(inputs, last_only=True)[:, 0]
    assert parity.difference(logits, values["out.last_logits"]) < CLOSE


@pytest.mark.parametrize("name", families.CASES)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_likeliest_tokens_are_the_references(family: str, name: str) -> None:
    inputs, values = families.case(family, name)
    expected = values["out.greedy_ids"]
    assert torch.equal(families.greedy(parity.tiny(family), inputs, expected.shape[1]), expected)


@pytest.mark.parametrize("name", ["trained.video_long", "trained.image_and_video"])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_videos_under_the_trained_rule_of_positions(family: str, name: str) -> None:
    model = parity.tiny(family)
    inputs, values = families.case(family, name)
    resident = families.StageComparison(model, inputs, values)
    logits = resident.run(model, inputs)
    del resident.close["txt.layer.0"]  # what enters it is not held, and carries the patch embedding's rounding
    assert max(resident.close.values()) < CLOSE
    assert parity.difference(logits, values["out.last_logits"]) < CLOSE
    assert torch.equal(families.greedy(model, inputs, 8), values["out.greedy_ids"])


def test_positions_of_videos_follow_the_trained_rule() -> None:
    for family in ("qwen2_vl", "qwen2_5_vl"):
        inputs, values = families.case(family, "trained.video_long")
        assert torch.equal(families.prepared(family, "video_long").position_ids, values["pos.text_model"])
        assert torch.equal(inputs.next_position, values["pos.next"])


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_what_enters_the_vision_blocks(family: str) -> None:
    inputs, _ = families.case(family, "batch")
    model = parity.tiny(family)
    _, seen = parity.record(model, inputs)
    entering, embedded = seen(model.vision.layers[0], "input"), seen(model.vision, "patch_embeddings")
    if family == "qwen2_vl":
        assert torch.equal(entering, embedded)
    else:
        assert not torch.equal(entering, embedded)
        order = (entering[:, None] == embedded).all(-1).float().argmax(1)
        assert sorted(order.tolist()) == list(range(len(embedded)))
    assert torch.equal(seen(model.projector, "input"), seen(model.vision, "tower_output"))
    features = seen(model.vision, "image_features")
    assert torch.equal(seen(model.layers[0], "input")[inputs.mm_token_type_ids > 0], features)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_block_contributions_add_up(family: str) -> None:
    inputs, _ = families.case(family, "image_and_video")
    model = parity.tiny(family)
    _, seen = parity.record(model, inputs)
    for block in model.layers:
        mixer = block.linear_attn if block.kind == "linear_attention" else block.self_attn
        whole = seen(block, "input") + seen(mixer, "attention_output") + seen(block.mlp, "mlp_output")
        assert torch.equal(whole, seen(block, "layer_output"))
    for block in model.vision.layers:
        whole = seen(block, "input") + seen(block.self_attn, "attention_output") + seen(block.mlp, "mlp_output")
        assert torch.equal(whole, seen(block, "layer_output"))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_row_of_a_mixed_batch_equals_itself_alone(family: str, side: str) -> None:
    inputs, _ = families.case(family, "batch")
    model = parity.tiny(family)
    together = inputs if side == "left" else parity.right_padded(inputs)
    with torch.no_grad():
        logits = model(together)
        for row in range(3):
            alone = model(parity.one_row(inputs, row))[0]
            keep = together.attention_mask[row].bool()
            assert parity.difference(logits[row, keep], alone) < 5e-5


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_block_says_where_the_part_is_that_it_lacks(family: str) -> None:
    model = parity.tiny(family)
    if family not in families.HYBRID:
        with pytest.raises(Unavailable, match="every block of this family has full attention"):
            _ = model.layers[0].linear_attn
        return
    with pytest.raises(Unavailable, match=r"`self_attn` is in blocks \[3\]"):
        _ = model.layers[0].self_attn
    with pytest.raises(Unavailable, match=r"`linear_attn` is in blocks \[0, 1, 2\]"):
        _ = model.layers[3].linear_attn
