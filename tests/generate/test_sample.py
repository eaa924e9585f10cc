"""Choosing tokens: the filters by their definition, draws by their frequencies, rows on their own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cutaway.generate.sample import Sampler, candidates, draw, penalize
from cutaway.generate.settings import Settings

VOCAB = 50


def random_logits(rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def prompt(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(rows * 4).reshape(rows, 4) % VOCAB
    return ids, torch.ones_like(ids)


def sampler(rows: int, **options) -> Sampler:
    return Sampler(Settings.from_config({}, **options), *prompt(rows))


def kept(logits: torch.Tensor, **options) -> torch.Tensor:
    """Which tokens [batch vocab] can be drawn."""
    left, ids = candidates(logits, Settings(do_sample=True, **{"top_k": 0, **options}))
    alive = left > -torch.inf
    return alive if ids is None else torch.zeros(logits.shape, dtype=torch.bool).scatter(1, ids, alive)


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_that_hold_the_share(seed, share) -> None:
    logits = random_logits(3, seed)
    for row, keep in zip(logits.softmax(-1), kept(logits, top_p=share), strict=True):
        inside, outside = row[keep], row[~keep]
        assert inside.sum() >= share - 1e-5
        assert inside.sum() - inside.min() <= share + 1e-5  # none too many
        assert not len(outside) or inside.min() >= outside.max()


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(1, VOCAB + 5))
def test_top_k_keeps_the_largest(seed, count) -> None:
    logits = random_logits(3, seed)
    keep = kept(logits, top_k=count)
    assert (keep.sum(-1) == min(count, VOCAB)).all()
    assert all(row[k].min() >= row[~k].max() for row, k in zip(logits, keep, strict=True) if not k.all())


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.001, 1.0))
def test_min_p_keeps_what_is_likely_enough(seed, share) -> None:
    logits = random_logits(2, seed)
    chances = logits.softmax(-1)
    assert torch.equal(kept(logits, min_p=share), chances >= share * chances.amax(-1, keepdim=True))


def test_filters_work_on_what_the_ones_before_left() -> None:
    """Top-p after top-k counts the share among the k, and a temperature counts before both."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept(logits, top_k=2, top_p=0.55).tolist() == [[True, False, False, False]]  # 0.4/0.7 > 0.55
    assert kept(logits, top_p=0.55).tolist() == [[True, True, False, False]]
    assert kept(logits, temperature=100.0, top_p=0.55).sum() == 3  # nearly flat


def test_ties_with_the_last_of_the_k_stay() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :30], logits[0, 4] = 1.0, 2.0
    assert torch.equal(kept(logits, top_k=5)[0].nonzero()[:, 0], torch.arange(30))


def test_penalties() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    seen, answered = torch.tensor([[True, True, False, True]]), torch.tensor([[False, False, False, True]])
    out = penalize(logits, Settings(repetition_penalty=2.0, presence_penalty=0.25), seen, answered)
    assert out.tolist() == [[1.0, -4.0, 1.0, 0.25]]


def test_repetition_counts_the_prompt_without_padding_and_the_answer() -> None:
    ids, mask = torch.tensor([[7, 3, 4], [7, 7, 5]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    picker = Sampler(Settings(repetition_penalty=2.0), ids, mask)
    logits = torch.zeros(2, VOCAB)
    logits[:, 7], logits[:, 9] = 10.0, 6.0
    assert picker.pick(logits)[0].tolist() == [7, 9]  # 7 is padding in row 0, and half of 10 in row 1
    assert picker.pick(logits)[0].tolist() == [9, 7]  # both have both now in their past: 5 < 6 and 3 < 5


def test_presence_counts_the_answer_alone() -> None:
    picker = Sampler(Settings(presence_penalty=1.5), torch.tensor([[7, 7]]), torch.ones(1, 2))
    logits = torch.zeros(1, VOCAB)
    logits[:, 7], logits[:, 9] = 10.0, 9.0
    assert [int(picker.pick(logits)[0]) for _ in range(3)] == [7, 9, 7]


def test_greedy_takes_the_most_likely_and_gives_its_log_probability() -> None:
    logits = random_logits(4)
    ids, logprobs = sampler(4).pick(logits)
    assert torch.equal(ids, logits.argmax(-1))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1))


def test_log_probabilities_are_the_models_own() -> None:
    logits = random_logits(3)
    ids, logprobs = sampler(3, temperature=3.0, top_k=5, seed=1, repetition_penalty=1.3).pick(logits)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, ids[:, None])[:, 0])


def test_low_precision_logits_are_worked_on_in_float32() -> None:
    ids, logprobs = sampler(2).pick(random_logits(2).bfloat16())
    assert logprobs.dtype == torch.float32
    assert torch.equal(ids, random_logits(2).bfloat16().argmax(-1))


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]).log()
    rows, count = 20, 500
    generators = [torch.Generator().manual_seed(i) for i in range(rows)]
    drawn = torch.cat([draw(logits.expand(rows, -1), generators) for _ in range(count)])
    share = torch.bincount(drawn, minlength=5) / (rows * count)
    assert (share - logits.exp()).abs().max() < 0.015  # three standard deviations of 10,000 draws


def test_what_was_filtered_out_is_never_drawn() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [0, VOCAB - 3]] = 0.0
    generator = [torch.Generator().manual_seed(0)]
    assert {int(draw(logits, generator)) for _ in range(200)} == {0, VOCAB - 3}


@pytest.mark.parametrize(("number", "column"), [(0.0, 1), (1 - 2.0**-53, VOCAB - 2)])
def test_an_extreme_draw_finds_a_token_that_has_a_chance(monkeypatch, number, column) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [0, -1]] = -torch.inf
    monkeypatch.setattr(torch, "rand", lambda *a, **k: torch.tensor([number], dtype=torch.float64))
    assert int(draw(logits, [torch.Generator()])) == column


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = random_logits(5, spread=1.0)
    together = sampler(5, temperature=1.0, seed=[11, 12, 13, 14, 15])
    steps = [together.pick(logits)[0] for _ in range(6)]
    for row in range(5):
        alone = Sampler(Settings(do_sample=True, seed=11 + row), *prompt(1))
        assert [int(alone.pick(logits[row][None])[0]) for _ in range(6)] == [int(step[row]) for step in steps]


def test_one_seed_serves_every_row_alike_and_runs_repeat() -> None:
    logits = random_logits(1, spread=1.0).expand(3, -1)
    first = sampler(3, temperature=1.0, seed=5).pick(logits)[0].tolist()
    assert len(set(first)) == 1
    assert sampler(3, temperature=1.0, seed=5).pick(logits)[0].tolist() == first


def test_without_a_seed_runs_differ() -> None:
    logits = torch.zeros(8, VOCAB)
    runs = {tuple(sampler(8, temperature=1.0).pick(logits)[0].tolist()) for _ in range(3)}
    assert len(runs) > 1


def test_sampling_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    sampler(2, temperature=1.0, seed=1).pick(random_logits(2))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 3}, {"repetition_penalty": 1.5}])
def test_logits_are_not_changed(options) -> None:
    logits = random_logits(2)
    before = logits.clone()
    sampler(2, **options).pick(logits)
    assert torch.equal(logits, before)
