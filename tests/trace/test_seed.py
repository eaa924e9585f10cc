"""The first page's examples, on a checkpoint of Qwen3-VL's family."""

from __future__ import annotations

import pytest
import torch

from cutaway.api import Model, load
from cutaway.errors import EditError, InputError, NotReachedError, OutOfOrderError, Unavailable


@pytest.fixture(scope="module")
def model(oracle) -> Model:
    return load(oracle / "ckpt" / "qwen3_vl", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def prompt(model) -> str:
    return model.prompt("What color is the square?", images=1)


def test_contributions_add_up(model, prompt, red):
    with model.trace(prompt, images=[red]):
        x = model.layers[1].input.save()
        attn = model.layers[1].self_attn.attention_output.save()
        mlp = model.layers[1].mlp.mlp_output.save()
        out = model.layers[1].layer_output.save()
    assert torch.equal(x + attn + mlp, out)


def test_deepstack_is_added_between_the_blocks(model, prompt, red):
    with model.trace(prompt, images=[red]):
        mask = model.vision.image_token_mask.save()
        assert model.input_size.numel() == mask.numel()
        assert model.input_size.save() == mask.shape
        out = model.layers[0].layer_output.save()
        added = model.layers[0].deepstack_output.save()
        entering = model.layers[1].input.save()
    assert torch.equal(entering[mask], out[mask] + added)
    assert torch.equal(entering[~mask], out[~mask])


def test_the_tower_runs_in_one_row(model, red, wide):
    prompt = model.prompt("Compare.", images=2)
    inputs = model.processor(text=prompt, images=[red, wide], return_tensors="pt")
    sizes = inputs["image_grid_thw"].prod(-1).tolist()
    attn = model.vision.layers[1].self_attn
    with model.trace(prompt, images=[red, wide]):
        cu = attn.inputs[1]["cu_seqlens"].save()
        q = attn.attention_queries.save()
        k = attn.attention_keys.save()
        v = attn.attention_values.save()
        served = attn.attention_patterns.save()
        outputs = attn.attention_head_outputs.save()
        patches = model.vision.layers[1].layer_output.save()
    assert [len(part) for part in patches[0].split(sizes)] == sizes
    patterns = []
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        scores = q[0, :, a:b] @ k[0, :, a:b].transpose(-1, -2) * model.vision.head_dim**-0.5
        patterns.append(scores.softmax(-1))
    for one, other in zip(patterns, served, strict=True):
        torch.testing.assert_close(one, other)
    mixed = [p @ v[0, :, a:b] for p, a, b in zip(served, cu[:-1], cu[1:], strict=True)]
    torch.testing.assert_close(torch.cat(mixed, 1).transpose(0, 1)[None], outputs)


def test_features_enter_where_the_mask_says(model, red, wide):
    prompt = model.prompt("Compare.", images=2)
    with model.trace(prompt, images=[red, wide]):
        mask = model.vision.image_token_mask.save()
        fed = model.projector.input.save()
        features = model.vision.image_features.save()
        first = model.layers[0].input.save()
    assert fed.shape[0] // 4 == mask.sum()
    assert torch.equal(first[mask], features)
    with model.trace(prompt, images=[red, wide]):
        fed, out = model.projector.input, model.projector.output
        assert torch.equal(fed, model.vision.tower_output[0])
        assert torch.equal(out, model.vision.image_features)


def test_a_tap_is_what_is_added(model, prompt, red):
    with model.trace(prompt, images=[red]):
        tapped = model.vision.deepstack_merger_list[0].output.save()
        added = model.layers[0].deepstack_output.save()
    assert torch.equal(added, tapped)


def test_ablating_the_image(model, prompt, red, wide):
    taps = len(model.config.vision.deepstack_indexes)

    def ablated(image):
        with model.trace(prompt, images=[image]):
            model.vision.image_features[:] = 0
            for k in range(taps):
                model.layers[k].deepstack_output[:] = 0
            return model.logits.save()

    assert torch.equal(ablated(red), ablated(red.rotate(90).point(lambda p: 255 - p)))
    assert not torch.equal(ablated(red), model(prompt, images=[red]))


def test_values_by_address(model, prompt, red):
    values = model.run(
        prompt,
        images=[red],
        read=["layers.*.layer_output", "vision.layers.3.self_attn.attention_queries"],
        edit={"layers.1.mlp.mlp_output": lambda v: v * 0},
    )
    assert len(values) == 1 + model.num_layers
    with model.trace(prompt, images=[red], edit={"layers.1.mlp.mlp_output": lambda v: v * 0}) as run:
        assert torch.equal(run.layers[1].layer_output, values["layers.1.layer_output"])
        assert run.geometry is not None
    assert torch.equal(model.run(prompt, images=[red]).result, model(prompt, images=[red]))


def test_steering_a_generation(model, prompt, red):
    direction = torch.zeros(model.hidden_size)
    plain = model.generate(prompt, images=[red], max_new_tokens=5, ignore_eos=True).ids
    with model.generate(prompt, images=[red], max_new_tokens=5, ignore_eos=True) as run:
        for step in run:
            model.layers[1].layer_output[:] += direction
            assert step.logits.shape[1] == (
                1 if step.index else len(model.prepare(prompt, images=[red])["input_ids"][0])
            )
    assert run.ids == plain
    with model.generate(prompt, images=[red], max_new_tokens=5, ignore_eos=True) as run:
        for _ in run:
            model.logits[..., 7] = 1e4
    assert run.ids == [[7] * 5]


def test_what_cannot_be_read(model, prompt, red):
    with model.trace("hello"), pytest.raises(NotReachedError, match="no image"):
        model.layers[0].deepstack_output.save()
    with model.trace(prompt, images=[red]):
        with pytest.raises(Unavailable, match="no one tensor is the block's pattern"):
            model.vision.layers[0].self_attn.attention_scores.save()
        with pytest.raises(Unavailable, match="after layers"):
            model.layers[3].deepstack_output.save()
        model.vision.tower_output.save()
        with pytest.raises(OutOfOrderError, match=r"`projector.input` has passed"):
            model.projector.input.save()
        with pytest.raises(EditError, match="read-only"):
            model.input_ids = torch.zeros(1)
    with pytest.raises(Unavailable):
        _ = model.vision.image_size
    with pytest.raises(InputError):
        model.trace(prompt)


def test_a_text_model_says_that_it_has_no_images(oracle, prompt):
    model = load(oracle / "ckpt" / "qwen3_vl", task="text-generation", dtype="float32", device="cpu")
    with model.trace("hello") as run:
        for read in (lambda: model.vision.image_features, lambda: run.vision.tower_output):
            with pytest.raises(Unavailable, match="image-text-to-text"):
                read()
        with pytest.raises(Unavailable):
            run.layers[0].deepstack_output.save()
        assert run.logits.shape[-1] == model.vocab_size
    for address in ("vision.layers.0.layer_output", "vision.image_features", "layers.0.deepstack_output"):
        with pytest.raises(Unavailable):
            model.run("hello", read=address)
    without = load(oracle / "ckpt" / "qwen3_vl", dispatch=False)
    assert len(without.values()) > 100
    assert "TextBlock" in str(without)
    with pytest.raises(Unavailable, match="dispatch=False"):
        without.trace("hello")
