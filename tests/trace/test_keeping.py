"""A model is copied, pickled, moved and altered as any torch module is, and values of it still have their names."""

from __future__ import annotations

import copy
import pickle
import signal

import pytest
import torch
from torch import nn

from cutaway.api import load
from cutaway.checkpoint.families import FAMILIES
from cutaway.errors import NoRunError, TraceError, UnknownValue
from cutaway.named import Named


@pytest.fixture
def model(oracle):
    return load(oracle / "ckpt" / "qwen3_vl", device="cpu")


def test_methods_of_torch_that_give_the_module_give_the_subject(model) -> None:
    for moved in (model.to(torch.float32), model.eval(), model.requires_grad_(False), model.cpu().float()):
        assert moved is model
    assert model.to(torch.bfloat16).dtype == torch.bfloat16
    assert model("words").dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_or_copied_model_is_the_same_model(oracle, family, red) -> None:
    model = load(oracle / "ckpt" / family, device="cpu")
    prompt = model.prompt("What?", images=1)
    want = model(prompt, images=[red])
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        with twin.trace(prompt, images=[red]):
            assert twin.vision.patch_embeddings.shape[0] == 1
            torch.testing.assert_close(twin.logits.save(), want, rtol=0, atol=1e-5)  # weights lie at other addresses
    assert list(model.load_state_dict(model.state_dict()).missing_keys) == []


class Adapted(nn.Module):
    """A low-rank term beside a linear layer (Hu et al. 2021), of a class that is not ours."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class OwnAdapted(Named, Adapted):
    """The same, with `input`, `inputs` and `output`."""


def test_a_replaced_linear_keeps_the_values_around_it(model) -> None:
    plain = model("words")
    attention = model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    want = model("words")
    assert not torch.equal(want, plain)
    with model.trace("words") as run:
        with pytest.raises(UnknownValue, match=r"cutaway\.named\.Named"):
            _ = run.layers[1].self_attn.q_proj.output
        base = model.layers[1].self_attn.q_proj.base.output.save()
        queries = model.layers[1].self_attn.attention_queries.save()
        assert torch.equal(model.logits, want)
    assert base.shape[-1] == queries.shape[1] * queries.shape[3]
    with pytest.raises(UnknownValue, match=r"cutaway\.named\.Named"):
        model.run("words", read="layers.1.self_attn.q_proj.output")


def test_a_replaced_linear_of_a_named_class_has_its_own_values(model) -> None:
    model.layers[0].mlp.up_proj = OwnAdapted(model.layers[0].mlp.up_proj)
    values = model.run("words", read="layers.0.mlp.up_proj.output")
    assert values["layers.0.mlp.up_proj.output"].shape[-1] == model.intermediate_size


def test_a_value_of_a_part_is_asked_of_that_part(model) -> None:
    with model.trace("words"), pytest.raises(UnknownValue, match=r"Its part `mlp` has it: `mlp\.mlp_output`"):
        _ = model.layers[0].mlp_output


@pytest.mark.parametrize("new", [0, 1.5, [1], torch.zeros(1)])
def test_a_misspelt_value_is_not_kept_as_an_attribute(model, new) -> None:
    with model.trace("words"), pytest.raises(UnknownValue, match="layer_output"):
        model.layers[0].layer_outptu = new
    assert not hasattr(model.layers[0], "layer_outptu")


def test_cells_of_a_notebook(model) -> None:
    names = {"model": model}
    exec("with model.trace('words'):\n    out = model.layers[0].layer_output\n    kept = out.save()", names)
    exec("same = bool((out == kept).all()); summed = out + kept", names)
    assert names["same"]
    with pytest.raises(ZeroDivisionError):
        exec("with model.trace('words'):\n    out = model.layers[0].layer_output\n    1 / 0", names)
    with pytest.raises(NoRunError):
        exec("model.layers[0].layer_output", names)


def test_a_cell_that_is_interrupted_in_the_forward(model) -> None:
    """As by the stop button of a notebook: the error is there, no run stays open, and the next cell works."""
    want = model("words")
    handle = model.layers[2].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    with model.trace("words") as run:
        first = model.layers[0].layer_output.save()
        with pytest.raises(KeyboardInterrupt) as caught:
            _ = model.logits
        with pytest.raises(TraceError, match="KeyboardInterrupt"):
            _ = model.logits
    assert "on its way from `layers.0.layer_output` to `logits`" in caught.value.__notes__[0]
    handle.remove()
    assert not run.is_open
    assert first.shape[-1] == model.hidden_size
    with pytest.raises(NoRunError):
        _ = model.logits
    with model.trace("words"):
        assert torch.equal(model.logits, want)
