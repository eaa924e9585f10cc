"""The distribution that a token is drawn from, against transformers' own processors in transformers' own order."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from cutaway.generate.sample import candidates, penalize
from cutaway.generate.settings import ARGUMENTS, HINTS, Settings

CHOICES = {
    "temperature": (1.0, 0.01, 0.7, 1.8),
    "top_k": (0, 1, 20, 10_000),
    "top_p": (1.0, 0.001, 0.8, 0.95),
    "min_p": (0.0, 0.05, 1.0),
    "repetition_penalty": (1.0, 1.05, 0.8),
}
COMBINATIONS = list(itertools.product(*CHOICES.values()))


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """Any generating model: it only builds the processors."""
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            vocab_size=300,
            pad_token_id=0,
        )
    )


@pytest.mark.parametrize("combination", COMBINATIONS[::3], ids=str)
def test_the_same_distribution(reference, combination) -> None:
    options = dict(zip(CHOICES, combination, strict=True))
    generator = torch.Generator().manual_seed(sum(map(hash, combination)) % 2**31)
    logits = torch.randn(4, 300, generator=generator) * 4
    prompt = torch.randint(300, (4, 12), generator=generator)
    config = GenerationConfig(do_sample=True, **{**options, "top_k": options["top_k"] or None})
    processors = reference._get_logits_processor(config, input_ids_seq_length=12)
    theirs = processors(prompt, logits.clone()).softmax(-1)
    seen = torch.zeros(4, 300, dtype=torch.bool).scatter(1, prompt, True)
    settings = Settings.from_config({}, do_sample=True, **options)
    left, ids = candidates(penalize(logits, settings, seen), settings)
    ours = left.softmax(-1) if ids is None else torch.zeros(4, 300).scatter(1, ids, left.softmax(-1))
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_greedy_choice_under_a_repetition_penalty(reference) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    prompt = logits.topk(6).indices
    processors = reference._get_logits_processor(GenerationConfig(repetition_penalty=1.5), input_ids_seq_length=6)
    seen = torch.zeros(4, 300, dtype=torch.bool).scatter(1, prompt, True)
    assert torch.equal(penalize(logits, Settings(repetition_penalty=1.5), seen), processors(prompt, logits.clone()))


def test_the_defaults_are_the_same() -> None:
    theirs = GenerationConfig._get_default_generation_params()
    ours = Settings()
    for name in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty"):
        assert getattr(ours, name) == theirs[name], name


def test_every_argument_of_transformers_that_is_not_ours_has_its_own_advice() -> None:
    theirs = {
        *transformers.GenerationConfig().to_dict(),
        *inspect.signature(transformers.GenerationMixin.generate).parameters,
    }
    theirs = {name for name in theirs if not name.startswith("_")} - {"self", "kwargs", *ARGUMENTS}
    assert theirs <= set(HINTS)
