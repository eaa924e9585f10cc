"""`Settings`: how an answer is chosen and where it ends, under transformers' argument names.

It reads a `generation_config.json` that somebody else has opened, lays the caller's arguments over it and checks both.
It knows no model and no tokenizer.
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
"""Arguments that mean nothing without sampling: giving one turns sampling on unless `do_sample` says otherwise."""

OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
    "stop_words": "stop",
    "eos_token_ids": "eos_token_id",
    "stop_token_ids": "eos_token_id",
    "frequency_penalty": "presence_penalty",
    "generator": "seed",
}
"""What other libraries call our arguments, for the error that answers them."""

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
}
"""Keys of a generation config that change the answer and are not implemented, with the value that changes nothing."""


@dataclass(frozen=True)
class Settings:
    """How the next token is chosen, and when to stop. Make one with `from_config`, which also takes loose types.

    - `max_new_tokens`: most tokens that a row gets.
    - `do_sample`: draw from the distribution; otherwise the most likely token is taken (greedy).
    - `temperature`, `top_k` (0 is off), `top_p`, `min_p`: shape the distribution that is drawn from, in this order.
      The defaults are those of transformers, `top_k` 50 among them.
    - `repetition_penalty`: divides the positive and multiplies the negative logits of every token that stands in
      the prompt or the answer (transformers; padding, which is no part of a prompt, is not counted).
    - `presence_penalty`: subtracted from the logit of every token that stands in the answer (OpenAI, vLLM); it comes
      after the repetition penalty. Both act on greedy choice too.
    - `seed`: one number, the same for every row, so that a row draws what it would draw alone; or one number per row;
      None draws anew each time.
    - `stop`: strings that end a row when they appear in its text, special tokens left out; not part of the text.
    - `ignore_eos`: go on past the end tokens.
    - `eos_token_id`, `pad_token_id`: the ids that end a row, and the id that an ended row is fed.
    - `prefill_chunk`: read the prompt in pieces of this many tokens, for less memory; None reads it at once.
    - `recorded`: run the steps after the prompt as one recorded graph, which starts its operations faster than Python;
      see `cutaway.generate.cuda_graph`. Where somebody may look into the forward they run as ever.
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
    def from_config(cls, raw: Mapping[str, Any] | None = None, **given: Any) -> Settings:
        """The settings of a `generation_config.json`, read as a mapping, with the caller's arguments laid over it.

        An argument of None is one that was not given. `temperature=0` is greedy. Raises `InputError` for an unknown
        argument, naming the nearest one, and for a value out of range, `ConfigError` for such a value in the file;
        warns of a key in the file that is not honoured.
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
        return settings.changed(**given)

    def changed(self, **given: Any) -> Settings:
        """The same settings with these arguments laid over them; the rules are those of `from_config`."""
        for name in given:
            _known(name)
        given = _normal({name: value for name, value in given.items() if value is not None})
        sampled = [name for name in SAMPLING if name in given]
        if given.get("temperature") == 0:
            if given.get("do_sample"):
                raise InputError(
                    "temperature=0 is greedy choice; it contradicts do_sample=True. Leave one of them out."
                )
            given = {**given, "do_sample": False, "temperature": 1.0}
        elif sampled and "do_sample" not in given:
            given["do_sample"] = True
        return replace(self, **given)

    def seeds(self, rows: int) -> list[int | None]:
        """One seed per row; None where the row is to draw anew. Raises `InputError` when the counts differ."""
        if not isinstance(self.seed, tuple):
            return [self.seed] * rows
        if len(self.seed) != rows:
            raise InputError(
                f"seed takes one number, or one per row: this batch has {rows}, got {len(self.seed)} seeds."
            )
        return list(self.seed)


ARGUMENTS = tuple(field.name for field in fields(Settings))
"""The names that `generate` and `ask` take for generation, so that a caller can tell them from a processor's."""


_BESIDE = ("images", "videos", "edit", "when")
"""What a call takes beside them, for the hint at a misspelt one."""


def _known(name: str) -> None:
    """Raises `InputError` for an argument that there is not."""
    if name in ARGUMENTS:
        return
    close = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, (*ARGUMENTS, *_BESIDE), 1, 0.6)), None)
    hint = f"Did you mean {close}? " if close else ""
    raise InputError(f"Generation takes no argument {name!r}. {hint}It takes: {', '.join(ARGUMENTS)}.")


def _ids(value: Any) -> tuple[int, ...]:
    """One id or a list of them, as a tuple."""
    return (value,) if not isinstance(value, (list, tuple)) else tuple(value)


def _normal(given: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, single stop strings and ids as tuples of one."""
    given = dict(given)
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    for name in ("stop", "seed"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    if "eos_token_id" in given:
        given["eos_token_id"] = _ids(given["eos_token_id"])
    return given


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


RULES = {
    "max_new_tokens": (lambda v: _whole(v) and v >= 1, "a whole number of at least 1"),
    "do_sample": (lambda v: isinstance(v, bool), "True or False"),
    "temperature": (lambda v: _number(v) and v > 0, "a number above 0 (0, for greedy choice, as an argument)"),
    "top_p": (lambda v: _number(v) and 0 < v <= 1, "a number above 0 and up to 1"),
    "top_k": (lambda v: _whole(v) and v >= 0, "a whole number, 0 for no limit"),
    "min_p": (lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda v: _number(v) and v > 0, "a number above 0, 1 for none"),
    "presence_penalty": (lambda v: _number(v) and -2 <= v <= 2, "a number from -2 to 2, 0 for none"),
    "seed": (
        lambda v: v is None or all(_whole(s) and -(2**63) <= s < 2**63 for s in _ids(v)),
        "a whole number, or one per row",
    ),
    "stop": (
        lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v),
        "a string or a list of strings, none of them empty",
    ),
    "ignore_eos": (lambda v: isinstance(v, bool), "True or False"),
    "recorded": (lambda v: isinstance(v, bool), "True or False"),
    "eos_token_id": (lambda v: all(_whole(i) and i >= 0 for i in v), "a token id or a list of them"),
    "pad_token_id": (lambda v: _whole(v) and v >= 0, "a token id"),
    "prefill_chunk": (lambda v: v is None or (_whole(v) and v >= 1), "a number of tokens of at least 1"),
}
"""Per argument: the check, and the rule in words."""


def _check(settings: Settings) -> None:
    """Raises `InputError` at the first value that breaks its rule."""
    for name, (holds, rule) in RULES.items():
        value = getattr(settings, name)
        if not holds(value):
            raise InputError(f"{name} must be {rule}; got {value!r}.")
