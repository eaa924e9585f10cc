"""Qwen3.5's linear attention: against a plain loop, padding on both sides, the cache, and its states as values."""

from __future__ import annotations

from dataclasses import replace

import families
import parity
import pytest
import torch
import torch.nn.functional as F
from small import text_config
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.config import LinearAttention
from cutaway.errors import EditError, InputError, OutOfOrderError
from cutaway.model.cache import Cache
from cutaway.model.delta_net import GatedDeltaNet
from cutaway.trace.run import Run

FAMILY = "qwen3_5"
CONFIG = text_config(
    layer_types=("linear_attention",),
    mlp_types=("dense",),
    linear=LinearAttention(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=12, conv_kernel=4),
)


@pytest.fixture
def layer() -> GatedDeltaNet:
    net = GatedDeltaNet(CONFIG, 0).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return net


@pytest.fixture(scope="module")
def model():
    return parity.tiny(FAMILY)


def slow(net: GatedDeltaNet, x: Tensor) -> Tensor:
    """The layer for one row [seq hidden], number by number as its description has it, in double precision."""
    net = net.double()
    x, kernel = x.double(), net.conv1d.weight[:, 0]
    raw = torch.cat((torch.zeros(3, kernel.shape[0]), net.in_proj_qkv(x)))
    mixed = F.silu(torch.stack([(raw[t : t + 4] * kernel.T).sum(0) for t in range(len(x))]))
    queries, keys, values = (
        part.unflatten(1, (-1, size)) for part, size in zip(mixed.split((16, 16, 48), 1), (8, 8, 12), strict=True)
    )
    betas, decays = torch.sigmoid(net.in_proj_b(x)), -net.A_log.exp() * F.softplus(net.in_proj_a(x) + net.dt_bias)
    state, out = torch.zeros(4, 8, 12), []
    for t in range(len(x)):
        read = []
        for head in range(4):
            query, key = (v / (v.square().sum() + 1e-6).sqrt() for v in (queries[t, head // 2], keys[t, head // 2]))
            resident = state[head] * decays[t, head].exp()
            resident = resident + torch.outer(key, betas[t, head] * (values[t, head] - key @ resident))
            state = torch.cat((state[:head], resident[None], state[head + 1 :]))
            read.append(query @ resident / 8**0.5)
        out.append(torch.stack(read))
    heads, gate = torch.stack(out), net.in_proj_z(x).unflatten(1, (4, 12))
    normed = net.norm.weight * heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-6)
    return net.out_proj((normed * F.silu(gate)).flatten(1))


@torch.no_grad()
def test_equals_a_plain_loop(layer) -> None:
    x = torch.randn(2, 70, 16)
    ours = layer(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        theirs = torch.stack([slow(layer, row) for row in x])
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def read(layer: GatedDeltaNet, x: Tensor, past: Cache | None, mask: Tensor | None = None) -> Tensor:
    """The layer's output, its cache moved on."""
    out = layer(x, mask=mask, cache=past)
    if past is not None:
        past.advance(x.shape[1])
    return out


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_leaves_no_trace(layer, side: str) -> None:
    x, alone, padded = torch.randn(1, 6, 16), Cache(1, 32), Cache(1, 32)
    expected = read(layer, x, alone)
    other = torch.randn(1, 3, 16)
    wide = torch.cat((other, x) if side == "left" else (x, other), 1)
    mask = torch.tensor([[False] * 3 + [True] * 6 if side == "left" else [True] * 6 + [False] * 3])
    out = read(layer, wide, padded, mask)
    torch.testing.assert_close(out[mask], expected[0])
    for ours, theirs in zip(padded.state(0), alone.state(0), strict=True):
        torch.testing.assert_close(ours, theirs)
    after = torch.randn(1, 2, 16)
    torch.testing.assert_close(read(layer, after, padded), read(layer, after, alone))


@torch.no_grad()
def test_a_call_of_padding_alone_keeps_what_was_read(layer) -> None:
    past = Cache(1, 32)
    read(layer, torch.randn(2, 5, 16), past)
    before = past.state(0)
    mask = torch.tensor([[False] * 4, [True] * 4])
    read(layer, torch.randn(2, 4, 16), past, mask)
    for ours, theirs in zip(past.state(0), before, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert not torch.equal(ours[1], theirs[1])
    single = past.state(0)
    read(layer, torch.randn(2, 1, 16), past, torch.tensor([[False], [True]]))
    assert all(torch.equal(ours[0], theirs[0]) for ours, theirs in zip(past.state(0), single, strict=True))


@pytest.mark.parametrize("cuts", [[1], [2], [3], [4], [63], [64], [65], [127, 128], [5, 6, 70], list(range(1, 150))])
@torch.no_grad()
def test_any_split_of_a_sequence_gives_the_same(layer, cuts) -> None:
    x, whole, parts = torch.randn(2, 150, 16), Cache(1, 256), Cache(1, 256)
    expected = read(layer, x, whole)
    pieces = [read(layer, piece, parts) for piece in x.tensor_split(cuts, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    for ours, theirs in zip(parts.state(0), whole.state(0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@torch.no_grad()
def test_a_cache_of_another_batch_is_an_error(layer) -> None:
    past = Cache(1, 32)
    read(layer, torch.randn(2, 5, 16), past)
    with pytest.raises(InputError, match="states of 2 rows, the batch has 3"):
        read(layer, torch.randn(3, 5, 16), past)


@torch.no_grad()
def test_the_state_is_float32_and_the_window_of_the_models_dtype(layer) -> None:
    past, low = Cache(1, 32), layer.bfloat16()
    out = read(low, torch.randn(1, 6, 16).bfloat16(), past)
    window, state = past.state(0)
    assert (out.dtype, window.dtype, state.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert read(low, torch.randn(1, 1, 16).bfloat16(), past).dtype == torch.bfloat16


def sentence(batch: int, seq: int) -> Inputs:
    """A batch of words."""
    positions = torch.arange(seq).expand(3, batch, seq)
    ids = torch.randint(0, 250, (batch, seq))
    return Inputs(ids, torch.ones_like(ids), torch.zeros_like(ids), positions, torch.full((batch,), seq))


def part(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Tokens `start` to `stop`, with the mask of all that was read before."""
    return replace(
        inputs,
        input_ids=inputs.input_ids[:, start:stop],
        attention_mask=inputs.attention_mask[:, :stop],
        mm_token_type_ids=inputs.mm_token_type_ids[:, start:stop],
        position_ids=inputs.position_ids[..., start:stop],
    )


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_padded_prompt_goes_on_like_the_prompt_alone(model, side: str) -> None:
    inputs, _ = families.case(FAMILY, "batch")
    together = inputs if side == "left" else parity.right_padded(inputs)
    answers = families.greedy(model, together, 5)
    for row in range(3):
        assert torch.equal(families.greedy(model, parity.one_row(inputs, row), 5)[0], answers[row])


@torch.no_grad()
def test_a_prompt_in_pieces_of_the_whole_model(model) -> None:
    inputs = sentence(2, 90)
    expected, past = model(inputs), model.new_cache(capacity=90)
    pieces = [model(part(inputs, a, b), cache=past) for a, b in ((0, 3), (3, 70), (70, 71), (71, 90))]
    assert parity.difference(torch.cat(pieces, 1), expected) < 5e-5
    chunked = model(inputs, cache=model.new_cache(capacity=90), chunk=32)
    assert parity.difference(chunked, expected) < 5e-5


@torch.no_grad()
def test_a_dropped_forward_leaves_the_cache_alone(model) -> None:
    inputs, past = sentence(1, 20), model.new_cache(capacity=32)
    model(part(inputs, 0, 12), cache=past)
    kept = past.clone()
    with Run(model, lambda: model(part(inputs, 12, 20), cache=past)) as run:
        run.layers[0].linear_attn.state_input[:] = 0
        _ = run.layers[1].layer_output
    assert past.length == 12
    for ours, theirs in zip(past.state(0), kept.state(0), strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_an_edit_of_the_last_state_acts_on_the_next_call(model) -> None:
    inputs, plain, edited = sentence(1, 21), model.new_cache(capacity=32), model.new_cache(capacity=32)
    model(part(inputs, 0, 20), cache=plain)
    with Run(model, lambda: model(part(inputs, 0, 20), cache=edited)) as run:
        run.layers[0].linear_attn.state_output[:] = 0
        run.finish()
    assert not edited.state(0)[1].any()
    last = part(inputs, 20, 21)
    assert not torch.allclose(model(last, cache=edited), model(last, cache=plain), atol=1e-3)
    with Run(model, lambda: model(inputs, cache=model.new_cache(capacity=32))) as run:
        assert not run.layers[0].linear_attn.state_input.any()


AXES = {
    "attention_queries": (2, 2, 70, 8),
    "attention_keys": (2, 2, 70, 8),
    "attention_values": (2, 4, 70, 12),
    "decays": (2, 4, 70),
    "betas": (2, 4, 70),
    "state_input": (2, 4, 8, 12),
    "attention_head_outputs": (2, 70, 4, 12),
    "state_output": (2, 4, 8, 12),
    "attention_output": (2, 70, 32),
}


def test_every_value_is_served_in_order(model) -> None:
    inputs = sentence(2, 70)
    with Run(model, lambda: model(inputs)) as run:
        net = run.layers[1].linear_attn
        shapes = {name: tuple(getattr(net, name).shape) for name in AXES}
    assert shapes == AXES


@pytest.mark.parametrize(
    "name", ["attention_queries", "attention_keys", "attention_values", "betas", "attention_output"]
)
def test_zeroing_a_value_moves_the_logits(model, name: str) -> None:
    inputs = sentence(1, 70)
    with torch.no_grad():
        plain = model(inputs)
    with Run(model, lambda: model(inputs)) as run:
        getattr(run.layers[1].linear_attn, name)[:] = 0
        assert not torch.allclose(run.logits, plain, atol=1e-3)


@torch.no_grad()
def test_states_are_those_of_the_recurrence(model) -> None:
    inputs, tokens = sentence(2, 130), (0, 1, 62, 63, 64, 100, 129)
    with Run(model, lambda: model(inputs)) as run:
        states, last = run.layers[1].linear_attn.states.save(), run.layers[1].linear_attn.state_output.save()
    assert states.shape == (2, 130, 4, 8, 12)
    assert torch.equal(states[:, -1], last)
    with Run(model, lambda: model(inputs)) as run:
        some = [run.layers[1].linear_attn.state_after(t).save() for t in tokens]
    for t, state in zip(tokens, some, strict=True):
        torch.testing.assert_close(state, states[:, t], rtol=0, atol=1e-5)
    for t in (0, 40, 129):  # what a call over the first tokens alone ends with
        with Run(model, lambda t=t: model(part(inputs, 0, t + 1))) as run:
            torch.testing.assert_close(run.layers[1].linear_attn.state_output, states[:, t], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_state_read_on_the_way_moves_nothing_else(model) -> None:
    inputs = sentence(1, 130)
    plain = model(inputs)
    with Run(model, lambda: model(inputs)) as run:
        _ = run.layers[0].linear_attn.state_after(70)
        _ = run.layers[0].linear_attn.state_after(-3)
        assert parity.difference(run.logits, plain) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("t", [0, 40, 63, 64, -1, -20])
def test_a_state_put_in_place_acts_on_what_follows(model, t: int) -> None:
    inputs = sentence(1, 100)
    plain = model(inputs)
    at = t % 100
    with Run(model, lambda: model(inputs)) as run:
        run.layers[1].linear_attn.state_after(t)[:] = 0
        heads = run.layers[1].linear_attn.attention_head_outputs.save()
        logits = run.logits.save()
    with Run(model, lambda: model(inputs)) as run:
        run.layers[1].linear_attn.state_after.set(t, torch.zeros(1, 4, 8, 12))
        assert torch.equal(run.logits, logits)
    torch.testing.assert_close(logits[:, : at + 1], plain[:, : at + 1], rtol=0, atol=1e-4)
    if at == 99:
        return
    assert not torch.allclose(logits[:, at + 1 :], plain[:, at + 1 :], atol=1e-3)
    with Run(model, lambda: model(inputs)) as run:  # the same as letting the next token clear the state
        net = run.layers[1].linear_attn
        net.decays[:, :, at + 1] = float("-inf")
        torch.testing.assert_close(net.attention_head_outputs, heads, rtol=0, atol=1e-5)


def test_states_are_edited_one_at_a_time(model) -> None:
    inputs = sentence(1, 10)  # so that there is no token 10
    with Run(model, lambda: model(inputs)) as run:
        with pytest.raises(EditError, match="state_after"):
            run.layers[0].linear_attn.states = torch.zeros(1)
        with pytest.raises(EditError, match="for each position"):
            run.layers[0].linear_attn.state_after = torch.zeros(1)
        with pytest.raises(OutOfOrderError):
            _ = run.layers[0].linear_attn.state_after(10)


def test_gradients_of_a_state(model) -> None:
    inputs = sentence(1, 80)
    with Run(model, lambda: model(inputs), grad=True) as run:
        state = run.layers[0].linear_attn.state_after(30)
        (gradient,) = torch.autograd.grad(run.logits[0, -1].square().sum(), state)
    assert gradient.shape == state.shape
    assert gradient.any()
    assert all(p.grad is None for p in model.parameters())


def test_the_gate_of_full_attention(model) -> None:
    inputs = sentence(2, 12)
    with Run(model, lambda: model(inputs)) as run:
        attention = run.layers[3].self_attn
        heads, gate = attention.attention_head_outputs.save(), attention.attention_gate.save()
        expected = model.layers[3].self_attn.o_proj.forward((heads * gate).flatten(2))
        assert torch.equal(attention.attention_output, expected)
    assert gate.shape == heads.shape == (2, 12, 2, 32)
    assert 0 < float(gate.min()) < float(gate.max()) < 1
