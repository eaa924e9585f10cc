"""On every family: reading all changes nothing, and with every way of the image cut it moves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cutaway.api import load
from cutaway.checkpoint.families import FAMILIES
from cutaway.errors import EditError, InputError, NotReachedError
from cutaway.observe import Observer, observer


@pytest.fixture(params=FAMILIES)
def model(request, oracle):
    return load(oracle / "ckpt" / request.param, dtype="float32", device="cpu")


class Order(Observer):
    """Notes every place of a forward, in order."""

    def __init__(self) -> None:
        self.points: list[tuple[Any, str]] = []

    def on_value(self, module: Any, name: str, value: Any) -> Any:
        self.points.append((module, name))
        return value

    def on_call(self, module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self.points.append((module, "inputs"))
        return args, kwargs

    def on_return(self, module: Any, output: Any) -> Any:
        self.points.append((module, "output"))
        return output


@pytest.mark.parametrize("grad", [False, True])
def test_reading_and_assigning_everything_leaves_the_logits_bit_for_bit(model, red, wide, grad) -> None:
    inputs = model.prepare(model.prompt("What?", images=2), images=[red, wide])
    order = Order()
    token = observer.set(order)
    with torch.no_grad():
        bare = model.root(inputs)
    observer.reset(token)
    kept = []
    with model.trace(inputs, grad=grad) as run:
        for module, name in order.points:
            value = getattr(module, name)
            kept.append(value.save())
            if name != "tower_output":
                setattr(module, name, value)
        assert torch.equal(run.finish(), bare)
    assert len(kept) > 200


def test_with_every_way_of_the_image_cut_another_image_moves_nothing(model, red, wide) -> None:
    prompt, taps = model.prompt("What?", images=1), [r.address for r in model.values() if "deepstack" in r.address]
    ways = ["vision.image_features", *(address for address in taps if model.support()[address] is None)]

    def cut(value: torch.Tensor) -> torch.Tensor:
        return value * 0

    images = (red, wide.resize((64, 64)))
    plain = [model.run(prompt, images=[p], read="logits")["logits"] for p in images]
    assert not torch.equal(*plain)
    by_address = [model.run(prompt, images=[p], read="logits", edit=dict.fromkeys(ways, cut))["logits"] for p in images]
    assert torch.equal(*by_address)
    with model.trace(prompt, images=[images[1]]):
        model.vision.image_features[:] = 0
        for block in model.layers[: len(ways) - 1]:
            block.deepstack_output[:] = 0
        assert torch.equal(model.logits, by_address[0])


def test_the_default_device_does_not_reach_a_run(model, red) -> None:
    """A notebook with `torch.set_default_device` on another device: what is made on the way stays where it belongs."""
    prompt = model.prompt("What?", images=1)
    want, ids = model(prompt, images=[red]), model.generate(prompt, images=[red], max_new_tokens=2).ids
    with torch.device("meta"):
        with model.trace(prompt, images=[red]) as run:
            selection = run.geometry.select(image=0, box=(0, 0, 32, 32))
            assert selection.mask.sum() == 1
            assert torch.equal(model.logits.save(), want)
        assert model.generate(prompt, images=[red], max_new_tokens=2).ids == ids


def test_an_edit_in_place_does_not_reach_the_callers_batch(model, red) -> None:
    inputs = model.prepare(model.prompt("What?", images=1), images=[red])
    pixels, ids = inputs.pixel_values.clone(), inputs.input_ids.clone()
    with model.trace(inputs) as run:
        model.language_model.embed_tokens.input[:] = 3
        model.vision.input[:] = 0
        run.finish()
    assert torch.equal(inputs.pixel_values, pixels)
    assert torch.equal(inputs.input_ids, ids)


def test_gradients_where_the_caller_is_in_inference_mode(model, red) -> None:
    with torch.inference_mode(), model.trace(model.prompt("What?", images=1), images=[red], grad=True):
        out, logits = model.layers[0].layer_output, model.logits
        with torch.inference_mode(False), torch.enable_grad():
            (gradient,) = torch.autograd.grad(logits[0, -1].max(), out)
    assert gradient.abs().sum() > 0


class TestWhatComesToNothingIsAnError:
    def test_an_edit_of_a_value_that_no_forward_computes(self, nano) -> None:
        edit = {"layers.*.deepstack_output": lambda v: v * 0}
        for run in (
            lambda: nano.run("words", read="logits", edit=edit),
            lambda: nano.run("words", edit=edit),
            lambda: nano.generate("words", edit=edit, max_new_tokens=2).ids,
        ):
            with pytest.raises(NotReachedError, match="no image or video"):
                run()

    def test_an_image_edited_while_decoding(self, nano, red) -> None:
        prompt, edit = nano.prompt("What?", images=1), {"vision.image_features": lambda v: v * 0}
        with pytest.raises(NotReachedError, match="image_features"):
            _ = nano.generate(prompt, images=[red], edit=edit, when="decode", max_new_tokens=3, ignore_eos=True).ids
        assert nano.generate(prompt, images=[red], edit=edit, when="prompt", max_new_tokens=2).ids
        assert nano.generate(prompt, images=[red], edit=edit, max_new_tokens=2).ids
        assert nano.generate(prompt, images=[red], edit=edit, when=range(5, 9), max_new_tokens=2).ids

    def test_an_edit_behind_the_last_read_is_still_made(self, nano) -> None:
        made = []
        nano.run("words", read="layers.0.layer_output", edit={"layers.2.layer_output": lambda v: made.append(v) or v})
        assert len(made) == 1

    def test_a_reducer_of_a_value_that_is_not_read(self, nano) -> None:
        with pytest.raises(InputError, match="is not read"):
            nano.run("words", read="logits", reduce={"layers.0.layer_output": torch.sum})

    def test_steps_without_edits(self, nano) -> None:
        with pytest.raises(EditError, match="got no `edit`"):
            nano.generate("words", when="decode")
        with pytest.raises(EditError, match="got a list"):
            nano.run("words", edit=[torch.zeros(1)])
