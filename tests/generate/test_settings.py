"""Generation arguments: what is accepted, what is refused and with which words, what a config file brings."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutaway
from cutaway.errors import ConfigError, InputError
from cutaway.generate.settings import ARGUMENTS, HINTS, Settings

PUBLISHED = {
    "bos_token_id": 151643,
    "pad_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "top_p": 0.8,
    "top_k": 20,
    "temperature": 0.7,
    "repetition_penalty": 1.0,
    "transformers_version": "4.56.0",
}


def test_a_published_file() -> None:
    settings = Settings.from_config(PUBLISHED)
    assert settings.do_sample
    assert (settings.top_p, settings.top_k, settings.temperature) == (0.8, 20, 0.7)
    assert settings.eos_token_id == (151645, 151643)
    assert settings.pad_token_id == 151643


def test_arguments_go_over_the_file_and_none_is_not_given() -> None:
    settings = Settings.from_config(PUBLISHED, top_p=0.5, top_k=None, max_new_tokens=3, seed=[1, 2], stop="a")
    assert (settings.top_p, settings.top_k, settings.max_new_tokens) == (0.5, 20, 3)
    assert settings.seed == (1, 2)
    assert settings.stop == ("a",)
    assert Settings.from_config(PUBLISHED).max_new_tokens == Settings().max_new_tokens


def test_without_a_file() -> None:
    assert Settings.from_config(None) == Settings()
    assert Settings.from_config({"eos_token_id": 7}).eos_token_id == (7,)
    assert Settings.from_config({"eos_token_id": 7}).pad_token_id == 7


@pytest.mark.parametrize(
    ("arguments", "sampled"),
    [
        ({}, False),
        ({"temperature": 0}, False),
        ({"temperature": 0.0, "top_p": 0.5}, False),
        ({"temperature": 0.5}, True),
        ({"top_p": 0.5}, True),
        ({"min_p": 0.5}, True),
        ({"top_k": 4, "do_sample": False}, False),
        ({"seed": 3}, False),
    ],
)
def test_an_argument_of_sampling_turns_sampling_on(arguments, sampled) -> None:
    assert Settings.from_config({"do_sample": False}, **arguments).do_sample is sampled


def test_temperature_zero_is_greedy_whatever_the_file_says() -> None:
    assert not Settings.from_config(PUBLISHED, temperature=0).do_sample
    with pytest.raises(InputError, match="contradicts do_sample=True"):
        Settings.from_config(PUBLISHED, temperature=0, do_sample=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_new_token", "max_new_tokens"), ("temprature", "temperature"), ("repetition_penality", "repetition_penalty")],
)
def test_a_misspelt_argument_names_the_nearest_one(name, meant) -> None:
    with pytest.raises(InputError, match=rf"{name!r}\. Did you mean {meant}\?"):
        Settings.from_config({}, **{name: 1})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_tokens", "Use `max_new_tokens`"),
        ("stop_strings", "Use `stop`"),
        ("eos_token_ids", "Use `eos_token_id`"),
        ("frequency_penalty", "There is no penalty by count"),
        ("num_beams", "Only greedy choice and sampling"),
        ("logit_bias", r"Change the logits with `edit=\{'logits': function\}`"),
    ],
)
def test_an_argument_of_another_library_says_what_to_use(name, advice) -> None:
    with pytest.raises(InputError, match=rf"{name!r}\. {advice}"):
        Settings.from_config({}, **{name: 1})


def test_logits_are_changed_at_every_step_as_the_advice_says(nano) -> None:
    def only_seven(logits):
        logits[..., 7] += 1e4
        return logits

    answer = nano.generate("words", max_new_tokens=3, ignore_eos=True, edit={"logits": only_seven})
    assert answer.ids == [[7, 7, 7]]


def test_no_advice_names_an_argument_that_is_refused() -> None:
    calls = [cutaway.Model.ask, cutaway.Model.generate, cutaway.Model.chat]
    accepted = {*ARGUMENTS, *(name for call in calls for name in inspect.signature(call).parameters)}
    of_answers = {"ids", "texts", "text", "logprobs", "result", "text_with_special_tokens"}
    for name, advice in HINTS.items():
        assert name not in ARGUMENTS
        for words in re.findall(r"`([^`]+)`", advice):
            for named in re.findall(r"\b([a-z_]+)(?==)|^([a-z_]+)$", words):
                assert "".join(named) in accepted | of_answers, f"{name}: {advice}"


def test_an_unknown_argument_far_from_all_lists_them() -> None:
    with pytest.raises(InputError, match="max_new_tokens, do_sample"):
        Settings.from_config({}, zzz=1)


WRONG = [
    ("max_new_tokens", 0),
    ("max_new_tokens", 2.0),
    ("max_new_tokens", True),
    ("temperature", -1.0),
    ("temperature", float("nan")),
    ("temperature", "hot"),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -1),
    ("top_k", 1.5),
    ("min_p", 2),
    ("repetition_penalty", 0.0),
    ("presence_penalty", 3.0),
    ("seed", 1.5),
    ("seed", [1, "a"]),
    ("seed", 2**64),
    ("stop", [""]),
    ("stop", [3]),
    ("ignore_eos", 1),
    ("eos_token_id", [-1]),
    ("pad_token_id", "x"),
    ("prefill_chunk", 0),
    ("do_sample", "yes"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_out_of_range_is_refused_by_name(name, value) -> None:
    with pytest.raises(InputError, match=rf"^{name} must be .*got "):
        Settings.from_config({}, **{name: value})


def test_a_wrong_value_in_the_file_says_that_it_is_the_files() -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json cannot be used: top_p must be"):
        Settings.from_config({"top_p": 4})


def test_what_is_not_applied_is_warned_of_and_neutral_values_are_not() -> None:
    assert Settings.from_config({"num_beams": 1, "no_repeat_ngram_size": 0, "typical_p": None}) == Settings()
    with pytest.warns(UserWarning, match="num_beams=4"):
        Settings.from_config({"num_beams": 4})


def test_seeds_per_sample() -> None:
    assert Settings(seed=4).seeds(3) == [4, 4, 4]
    assert Settings().seeds(2) == [None, None]
    assert Settings(seed=(1, 2)).seeds(2) == [1, 2]
    with pytest.raises(InputError, match="this batch has 3, got 2"):
        Settings(seed=(1, 2)).seeds(3)


LOOSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "a", "0", "हि"]),
    st.lists(st.one_of(st.integers(-1, 9), st.sampled_from(["", "a", "bb"])), max_size=3),
    st.just({"a": 1}),
)


@given(st.dictionaries(st.sampled_from(ARGUMENTS), LOOSE, max_size=4))
def test_any_values_give_settings_or_a_plain_error(arguments) -> None:
    try:
        settings = Settings.from_config({}, **arguments)
    except InputError:
        return
    assert settings.changed() == settings
    assert hash(settings) is not None
    assert settings.max_new_tokens >= 1
    assert settings.temperature > 0
