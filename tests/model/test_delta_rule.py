"""The delta rule: chunks against a plain loop, at every length, from any state, with neutral tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.model.delta_rule import CHUNK, in_chunks, one_token


def drawn(
    seq: int, *, batch: int = 2, key_heads: int = 2, heads: int = 4, key: int = 8, value: int = 12, decay: float = 1.0
):
    """Queries, keys, values, decays, betas and a state, as large as a model's."""
    unit = torch.nn.functional.normalize
    return (
        unit(torch.randn(batch, key_heads, seq, key), dim=-1) * key**-0.5,
        unit(torch.randn(batch, key_heads, seq, key), dim=-1),
        torch.randn(batch, heads, seq, value),
        -torch.rand(batch, heads, seq) * decay,
        torch.rand(batch, heads, seq),
        torch.randn(batch, heads, key, value),
    )


def slow(queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, betas: Tensor, state: Tensor):
    """The recurrence as its definition has it, number by number in double precision. Also every state."""
    batch, heads, seq, width = values.shape
    share = heads // keys.shape[1]
    out = torch.zeros(batch, heads, seq, width, dtype=torch.float64)
    states = torch.zeros(batch, seq, *state.shape[1:], dtype=torch.float64)
    for row in range(batch):
        for head in range(heads):
            resident = state[row, head].double()
            for t in range(seq):
                query, key = queries[row, head // share, t].double(), keys[row, head // share, t].double()
                resident = resident * decays[row, head, t].double().exp()
                change = betas[row, head, t].double() * (values[row, head, t].double() - key @ resident)
                resident = resident + torch.outer(key, change)
                out[row, head, t] = query @ resident
                states[row, t, head] = resident
    return out, states


def token_by_token(queries, keys, values, decays, betas, state):
    outputs = []
    for t in range(keys.shape[2]):
        out, state = one_token(*(x[:, :, t : t + 1] for x in (queries, keys, values, decays, betas)), state)
        outputs.append(out)
    return torch.cat(outputs, 2), state


def assert_close(ours, theirs) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("kernel", [in_chunks, token_by_token])
@pytest.mark.parametrize("seq", [1, 2, 3, 63, 64, 65, 130])
def test_equals_the_plain_loop(kernel, seq: int) -> None:
    options = drawn(seq, batch=1)
    out, states = slow(*options)
    assert_close(kernel(*options), (out, states[:, -1]))


def test_chunks_equal_token_by_token_at_every_length() -> None:
    *options, state = drawn(300, batch=1)
    outputs, states = slow(*options, state)
    for seq in range(1, 301):
        ours = in_chunks(*(x[:, :, :seq] for x in options), state)
        assert_close(ours, (outputs[:, :, :seq], states[:, seq - 1]))


@pytest.mark.parametrize("cut", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 150])
def test_any_cut_gives_the_same(cut: int) -> None:
    *options, state = drawn(200)
    first, middle = in_chunks(*(x[:, :, :cut] for x in options), state)
    second, last = in_chunks(*(x[:, :, cut:] for x in options), middle)
    assert_close((torch.cat((first, second), 2), last), in_chunks(*options, state))


@pytest.mark.parametrize("decay", [0.0, 30.0, 300.0])
def test_no_decay_and_decays_so_strong_that_nothing_stays(decay: float) -> None:
    options = drawn(100, decay=decay)
    assert_close(in_chunks(*options), token_by_token(*options))


def test_small_decays_beside_a_huge_one_are_kept() -> None:
    queries, keys, values, decays, betas, state = drawn(40, decay=0.01)
    decays[:, :, 10] = -1e6
    options = (queries, keys, values, decays, betas, state)
    assert_close(in_chunks(*options), token_by_token(*options))


def test_a_decay_of_minus_infinity_clears_the_state() -> None:
    queries, keys, values, decays, betas, state = drawn(90)
    decays[:, :, 70] = float("-inf")
    out, last = in_chunks(queries, keys, values, decays, betas, state)
    rest = [x[:, :, 70:] for x in (queries, keys, values, decays.nan_to_num(neginf=0), betas)]
    fresh = in_chunks(*rest, torch.zeros_like(state))
    assert_close((out[:, :, 70:], last), fresh)


def test_tokens_without_decay_and_beta_leave_the_state_alone() -> None:
    queries, keys, values, decays, betas, state = drawn(100)
    decays[:, :, 30:], betas[:, :, 30:] = 0, 0
    _, last = in_chunks(queries, keys, values, decays, betas, state)
    _, early = in_chunks(*(x[:, :, :30] for x in (queries, keys, values, decays, betas)), state)
    assert_close((last,), (early,))


def test_gradients_equal_those_of_token_by_token() -> None:
    options = [x.requires_grad_() for x in drawn(70, batch=1)]
    ours = torch.autograd.grad(in_chunks(*options)[0].square().sum(), options)
    theirs = torch.autograd.grad(token_by_token(*options)[0].square().sum(), options)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-5 * float(other.abs().max()))
