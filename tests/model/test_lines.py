"""The other five lines against the reference's stored values: every stage, and the answers."""

from __future__ import annotations

import lines
import parity
import pytest
import torch

from cutaway.errors import Unavailable

CLOSE = 1e-5


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", lines.CASES)
@pytest.mark.parametrize("line", lines.LINES)
def test_every_stage_equals_the_reference(line: str, name: str, implementation: str) -> None:
    model = parity.tiny(line, attn_implementation=implementation)
    inputs, values = lines.case(line, name)
    held = lines.Held(model, inputs, values)
    logits = held.run(model, inputs)
    assert len(held.close) == len(held.stages)
    held.close["logits"] = parity.difference(logits, values["out.last_logits"])
    assert max(held.close.values()) < CLOSE, held.close


@pytest.mark.parametrize("line", lines.LINES)
def test_a_whole_forward_equals_the_reference(line: str) -> None:
    """Of text: rounding of the patch embedding's sums, which grows from block to block, stays out of the image."""
    inputs, values = lines.case(line, "text")
    with torch.no_grad():
        logits = parity.tiny(line)(inputs, last_only=True)[:, 0]
    assert parity.difference(logits, values["out.last_logits"]) < CLOSE


@pytest.mark.parametrize("name", lines.CASES)
@pytest.mark.parametrize("line", lines.LINES)
def test_the_likeliest_tokens_are_the_references(line: str, name: str) -> None:
    inputs, values = lines.case(line, name)
    expected = values["out.greedy_ids"]
    assert torch.equal(lines.greedy(parity.tiny(line), inputs, expected.shape[1]), expected)


@pytest.mark.parametrize("name", ["trained.video_long", "trained.image_and_video"])
@pytest.mark.parametrize("line", ["qwen2_vl", "qwen2_5_vl"])
def test_videos_under_the_trained_rule_of_positions(line: str, name: str) -> None:
    model = parity.tiny(line)
    inputs, values = lines.case(line, name)
    held = lines.Held(model, inputs, values)
    logits = held.run(model, inputs)
    del held.close["txt.layer.0"]  # what enters it is not held, and carries the patch embedding's rounding
    assert max(held.close.values()) < CLOSE
    assert parity.difference(logits, values["out.last_logits"]) < CLOSE
    assert torch.equal(lines.greedy(model, inputs, 8), values["out.greedy_ids"])


def test_positions_of_videos_follow_the_trained_rule() -> None:
    for line in ("qwen2_vl", "qwen2_5_vl"):
        inputs, values = lines.case(line, "trained.video_long")
        assert torch.equal(lines.prepared(line, "video_long").position_ids, values["pos.text_model"])
        assert torch.equal(inputs.next_position, values["pos.next"])


@pytest.mark.parametrize("line", ["qwen2_vl", "qwen2_5_vl"])
def test_what_enters_the_vision_blocks(line: str) -> None:
    inputs, _ = lines.case(line, "batch")
    model = parity.tiny(line)
    _, seen = parity.record(model, inputs)
    entering, embedded = seen(model.vision.layers[0], "input"), seen(model.vision, "patch_embeddings")
    if line == "qwen2_vl":
        assert torch.equal(entering, embedded)
    else:
        assert not torch.equal(entering, embedded)
        order = (entering[:, None] == embedded).all(-1).float().argmax(1)
        assert sorted(order.tolist()) == list(range(len(embedded)))
    assert torch.equal(seen(model.projector, "input"), seen(model.vision, "tower_output"))
    features = seen(model.vision, "image_features")
    assert torch.equal(seen(model.layers[0], "input")[inputs.mm_token_type_ids > 0], features)


@pytest.mark.parametrize("line", lines.LINES)
def test_block_contributions_add_up(line: str) -> None:
    inputs, _ = lines.case(line, "image_and_video")
    model = parity.tiny(line)
    _, seen = parity.record(model, inputs)
    for block in model.layers:
        mixer = block.linear_attn if block.kind == "linear_attention" else block.self_attn
        whole = seen(block, "input") + seen(mixer, "attention_output") + seen(block.mlp, "mlp_output")
        assert torch.equal(whole, seen(block, "layer_output"))
    for block in model.vision.layers:
        whole = seen(block, "input") + seen(block.self_attn, "attention_output") + seen(block.mlp, "mlp_output")
        assert torch.equal(whole, seen(block, "layer_output"))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("line", lines.LINES)
def test_each_row_of_a_mixed_batch_equals_itself_alone(line: str, side: str) -> None:
    inputs, _ = lines.case(line, "batch")
    model = parity.tiny(line)
    together = inputs if side == "left" else parity.right_padded(inputs)
    with torch.no_grad():
        logits = model(together)
        for row in range(3):
            alone = model(parity.one_row(inputs, row))[0]
            keep = together.attention_mask[row].bool()
            assert parity.difference(logits[row, keep], alone) < 5e-5


@pytest.mark.parametrize("line", lines.LINES)
def test_a_block_says_where_the_part_is_that_it_lacks(line: str) -> None:
    model = parity.tiny(line)
    if line not in lines.HYBRID:
        with pytest.raises(Unavailable, match="every block of this line has full attention"):
            _ = model.layers[0].linear_attn
        return
    with pytest.raises(Unavailable, match=r"`self_attn` is in blocks \[3\]"):
        _ = model.layers[0].self_attn
    with pytest.raises(Unavailable, match=r"`linear_attn` is in blocks \[0, 1, 2\]"):
        _ = model.layers[3].linear_attn
