"""`Settings`: how an answer is chosen and where it ends, under transformers' argument names.

`Settings.from_config` takes the content of a `generation_config.json`, lays the caller's arguments over it and checks
both. This module opens no file and knows no model and no tokenizer.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cutaway.errors import ConfigError, InputError

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
"""Arguments that mean nothing without sampling: one of them turns sampling on unless `do_sample` says otherwise."""

NOT_APPLIED = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "guidance_scale": 1.0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "min_length": 0,
    "min_new_tokens": None,
    "penalty_alpha": None,
    "num_return_sequences": 1,
    "dola_layers": None,
    "watermarking_config": None,
    "token_healing": False,
}
"""Keys of a generation config that change the answer and are not implemented, with the value that changes nothing."""

_EDIT = "Change the logits with `edit={'logits': function}`, which is called at every step."
_COPIES = "Give the prompt several times, with one `seed` each: `generate([prompt] * n, seed=[1, 2, …])`."
_READ = "Read values while the answer is generated: `with model.generate(...) as run: for step in run: …`."
_DECODING = "Only greedy choice and sampling are implemented, one token at a time; leave it out."
_SPEED = "The cache is always used and nothing is compiled; leave it out."
_STOP = "Use `stop` for strings, or `eos_token_id` for ids that end the answer."

HINTS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_length"), "Use `max_new_tokens`."),
    **dict.fromkeys(("stop_strings", "stop_words", "stop_sequences"), "Use `stop`."),
    **dict.fromkeys(("eos_token_ids", "stop_token_ids"), "Use `eos_token_id`, which takes one id or a list."),
    **dict.fromkeys(("generator", "random_seed"), "Use `seed`."),
    **dict.fromkeys(("num_return_sequences", "n", "best_of"), _COPIES),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits"), _READ),
    **dict.fromkeys(("streamer",), "Use `ask(..., stream=True)`, an iterator of the pieces of text."),
    **dict.fromkeys(
        ("logits_processor", "prefix_allowed_tokens_fn", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
         "sequence_bias", "logit_bias", "forced_eos_token_id", "no_repeat_ngram_size",
         "exponential_decay_length_penalty"),
        _EDIT,
    ),
    **dict.fromkeys(("min_new_tokens", "min_length"), "Use `ignore_eos=True` and `max_new_tokens` for a fixed length."),
    **dict.fromkeys(("stopping_criteria", "max_time"), _STOP),
    **dict.fromkeys(("return_dict_in_generate", "return_dict"), "An answer has `ids`, `texts` and `logprobs`."),
    **dict.fromkeys(("logprobs", "top_logprobs"), "An answer always has `logprobs`, of the tokens that were chosen."),
    **dict.fromkeys(
        ("use_cache", "cache_implementation", "cache_config", "compile_config", "disable_compile", "low_memory",
         "continuous_batching_config", "past_key_values", "max_cache_len"),
        _SPEED,
    ),
    **dict.fromkeys(
        ("num_beams", "num_beam_groups", "early_stopping", "length_penalty", "diversity_penalty", "constraints",
         "force_words_ids", "penalty_alpha", "dola_layers", "guidance_scale", "negative_prompt_ids",
         "negative_prompt_attention_mask", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "watermarking_config",
         "token_healing", "renormalize_logits", "remove_invalid_values", "custom_generate", "assistant_model",
         "assistant_tokenizer", "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
         "assistant_ensemble_weight", "target_lookbehind", "num_assistant_tokens", "num_assistant_tokens_schedule",
         "prompt_lookup_num_tokens", "max_matching_ngram_size", "is_assistant", "speculation_type", "use_mtp"),
        _DECODING,
    ),
    **dict.fromkeys(
        ("decoder_start_token_id", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "forced_bos_token_id"),
        "It is for models with an encoder of text, which these are not; leave it out.",
    ),
    "frequency_penalty": "There is no penalty by count; leave it out.",
    "prefill_chunk_size": "Use `prefill_chunk`.",
    "bos_token_id": "A prompt begins with what the chat template or you put there; leave it out.",
    "generation_config": "Give its values as arguments: `max_new_tokens=…`, `temperature=…`.",
    "tokenizer": "The model's own tokenizer is used; leave it out.",
    "skip_special_tokens": "An answer has both: `text` and `text_with_special_tokens`.",
    "include_stop_str_in_output": "`text` ends before the stop string; `ids` have its tokens.",
    "inputs": "Give the prompt first, or a prepared batch as `**inputs`.",
    "synced_gpus": "A model runs in one process; leave it out.",
    "transformers_version": "It says who wrote a file; leave it out.",
}  # fmt: skip
"""What to do instead of an argument that other libraries have, for the error that answers it."""


@dataclass(frozen=True)
class Settings:
    """How the next token is chosen, and when to stop. Make one with `from_config`, which also takes loose types.

    - `max_new_tokens`: the most tokens that a sample gets.
    - `do_sample`: draw from the distribution; otherwise the most likely token is taken (greedy).
    - `temperature`, `top_k` (0 is off), `top_p`, `min_p`: shape the distribution that is drawn from, in this order.
      The defaults are those of transformers, `top_k` 50 among them.
    - `repetition_penalty`: divides the positive and multiplies the negative logits of every token that is in the
      prompt or the answer (transformers; padding, which is no part of a prompt, is not counted).
    - `presence_penalty`: subtracted from the logit of every token that is in the answer (OpenAI, vLLM), after the
      repetition penalty. Both act on greedy choice too.
    - `seed`: one number, the same for every sample, so that a sample draws what it would draw alone; or one number per
      sample; None draws anew each time.
    - `stop`: strings that end a sample when they appear in its text, special tokens included, as ``"<|box_end|>"``. The
      text ends before them.
    - `ignore_eos`: go on past the end tokens.
    - `eos_token_id`, `pad_token_id`: the ids that end a sample, and the id that an ended sample is fed.
    - `prefill_chunk`: read the prompt in pieces of this many tokens, for less memory; None reads it at once.
    - `recorded`: on a CUDA device, run the steps after the prompt as one CUDA graph, which starts its operations faster
      than Python. Steps that are read or edited, models with hooks, and Qwen3.5 run without it.
    """

    max_new_tokens: int = 512
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int | tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int = 0
    prefill_chunk: int | None = None
    recorded: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any] | None = None, **arguments: Any) -> Settings:
        """The settings of a `generation_config.json`, read as a mapping, with the caller's arguments laid over it.

        An argument of None counts as not given. `temperature=0` is greedy. Raises `InputError` for an unknown argument,
        with what to use instead, and for a value out of range, `ConfigError` for such a value in the file; warns of a
        key in the file that is not honoured.
        """
        raw = raw or {}
        ignored = [key for key, neutral in NOT_APPLIED.items() if raw.get(key, neutral) not in (neutral, None)]
        if ignored:
            named = ", ".join(f"{key}={raw[key]!r}" for key in ignored)
            warnings.warn(f"generation_config.json asks for {named}, which is not applied.", stacklevel=2)
        base = {key: raw[key] for key in ARGUMENTS if raw.get(key) is not None}
        if "pad_token_id" not in base and base.get("eos_token_id") is not None:
            base["pad_token_id"] = _ids(base["eos_token_id"])[0]
        try:
            settings = cls(**_normal(base))
        except InputError as error:
            raise ConfigError(f"generation_config.json cannot be used: {error}") from None
        return settings.changed(**arguments)

    def changed(self, **arguments: Any) -> Settings:
        """The same settings with these arguments laid over them; the rules are those of `from_config`."""
        for name in arguments:
            _check_name(name)
        arguments = _normal({name: value for name, value in arguments.items() if value is not None})
        if arguments.get("temperature") == 0:
            if arguments.get("do_sample"):
                raise InputError(
                    "temperature=0 is greedy choice; it contradicts do_sample=True. Leave one of them out."
                )
            arguments = {**arguments, "do_sample": False, "temperature": 1.0}
        elif any(name in arguments for name in SAMPLING) and "do_sample" not in arguments:
            arguments["do_sample"] = True
        return replace(self, **arguments)

    def seeds(self, samples: int) -> list[int | None]:
        """One seed per sample; None where it is to draw anew. Raises `InputError` when the counts differ."""
        if not isinstance(self.seed, tuple):
            return [self.seed] * samples
        if len(self.seed) != samples:
            raise InputError(
                f"seed takes one number, or one per sample: this batch has {samples}, got {len(self.seed)} seeds."
            )
        return list(self.seed)


ARGUMENTS = tuple(field.name for field in fields(Settings))
"""The names that `generate` and `ask` take for generation, so that a caller can tell them from a processor's."""

_BESIDE = ("images", "videos", "edit", "when", "grad", "stream", "system")
"""What a call takes beside them, for the hint at a misspelt one."""


def _check_name(name: str) -> None:
    """Raise `InputError` for an argument that does not exist."""
    if name in ARGUMENTS:
        return
    advice = HINTS.get(name)
    if advice is None:
        close = difflib.get_close_matches(name, (*ARGUMENTS, *_BESIDE), 1, 0.7)
        advice = f"Did you mean {close[0]}?" if close else ""
    raise InputError(
        f"Generation takes no argument {name!r}. {advice}{' ' * bool(advice)}It takes: {', '.join(ARGUMENTS)}."
    )


def _ids(value: Any) -> tuple[int, ...]:
    """One id or a list of them, as a tuple."""
    return (value,) if not isinstance(value, (list, tuple)) else tuple(value)


def _normal(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, single stop strings and ids as tuples of one."""
    arguments = dict(arguments)
    if isinstance(arguments.get("stop"), str):
        arguments["stop"] = (arguments["stop"],)
    for name in ("stop", "seed"):
        if isinstance(arguments.get(name), list):
            arguments[name] = tuple(arguments[name])
    if "eos_token_id" in arguments:
        arguments["eos_token_id"] = _ids(arguments["eos_token_id"])
    return arguments


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


RULES = {
    "max_new_tokens": (lambda v: _integer(v) and v >= 1, "a whole number of at least 1"),
    "do_sample": (lambda v: isinstance(v, bool), "True or False"),
    "temperature": (lambda v: _number(v) and v > 0, "a number above 0 (0, for greedy choice, as an argument)"),
    "top_p": (lambda v: _number(v) and 0 < v <= 1, "a number above 0 and up to 1"),
    "top_k": (lambda v: _integer(v) and v >= 0, "a whole number, 0 for no limit"),
    "min_p": (lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda v: _number(v) and v > 0, "a number above 0, 1 for none"),
    "presence_penalty": (lambda v: _number(v) and -2 <= v <= 2, "a number from -2 to 2, 0 for none"),
    "seed": (
        lambda v: v is None or all(_integer(s) and -(2**63) <= s < 2**63 for s in _ids(v)),
        "a whole number, or one per sample",
    ),
    "stop": (
        lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v),
        "a string or a list of strings, none of them empty",
    ),
    "ignore_eos": (lambda v: isinstance(v, bool), "True or False"),
    "recorded": (lambda v: isinstance(v, bool), "True or False"),
    "eos_token_id": (lambda v: all(_integer(i) and i >= 0 for i in v), "a token id or a list of them"),
    "pad_token_id": (lambda v: _integer(v) and v >= 0, "a token id"),
    "prefill_chunk": (lambda v: v is None or (_integer(v) and v >= 1), "a number of tokens of at least 1"),
}
"""Per argument: the check, and the rule in words."""


def _check(settings: Settings) -> None:
    """Raise `InputError` at the first value that breaks its rule."""
    for name, (holds, rule) in RULES.items():
        value = getattr(settings, name)
        if not holds(value):
            raise InputError(f"{name} must be {rule}; got {value!r}.")
