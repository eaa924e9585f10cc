"""One section of a `config.json`, read key by key: types and ranges checked, unread keys remembered.

It knows how a value is read safely, and which keys describe training, saving or output and never the computation. It
does not know any model family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cutaway.errors import ConfigError

_HARMLESS = """
_attn_implementation _attn_implementation_autoset _commit_hash _from_model_config _name_or_path architectures
attention_dropout attn_implementation auto_map bad_words_ids begin_suppress_tokens bos_token_id
chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
forced_bos_token_id forced_eos_token_id id2label initializer_range is_decoder is_encoder_decoder label2id
language_model_only length_penalty max_length min_length model_type mtp_num_hidden_layers
mtp_use_dedicated_embeddings no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
output_attentions output_hidden_states output_router_logits output_scores pad_token_id prefix problem_type
processor_class remove_invalid_values repetition_penalty return_dict return_dict_in_generate
router_aux_loss_coef sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p unsloth_fixed unsloth_version
use_cache vision_token_id
"""

HARMLESS = frozenset(_HARMLESS.split())
"""Keys that say nothing about what the forward computes; they are ignored without a warning."""

REQUIRED: Any = object()
"""Marks a key without a default."""

LARGEST = 2**20
"""The largest size that is read without another bound: the widest published layer has 29,568."""


class Section:
    """A mapping out of a config, with the address `where` for messages (``text_config``, ``""`` for the top)."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where or 'config.json'} must be a mapping of keys to values; got {_show(data)}.")
        self.data, self.where = data, where
        self.read_keys: set[str] = set()
        self.children: dict[str, Section] = {}

    def address(self, key: str) -> str:
        """Return the key as it is named in messages."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """Return whether the key is there and not null."""
        self.read_keys.add(key)
        return self.data.get(key) is not None

    def raw(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value as the file has it; a null counts as absent."""
        self.read_keys.add(key)
        value = self.data.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ConfigError(f"{self.address(key)} is missing and has no default. Add it to config.json.")
        return default

    def integer(self, key: str, default: Any = REQUIRED, *, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number from `least` to `most`; a list of equal numbers, as in some files, counts as one."""
        value = self.raw(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str) and value and all(n == value[0] for n in value):
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(
                f"{self.address(key)} must be a whole number of at least {least} and at most {most}; got "
                f"{_show(value)}."
            )
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Return a positive finite number."""
        value = self.raw(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1e300:
            raise ConfigError(f"{self.address(key)} must be a positive number; got {_show(value)}.")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.address(key)} must be true or false; got {_show(value)}.")
        return value

    def integers(self, key: str, default: Sequence[int], *, length: int | None = None) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to `LARGEST`; with `length` it has so many."""
        value = self.raw(key, default)
        fits = isinstance(value, Sequence) and not isinstance(value, str)
        if not fits or any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= LARGEST for n in value):
            raise ConfigError(f"{self.address(key)} must be a list of whole numbers; got {_show(value)}.")
        if length is not None and len(value) != length:
            raise ConfigError(f"{self.address(key)} must have {length} entries; got {len(value)}: {_show(value)}.")
        return tuple(value)

    def section(self, key: str) -> Section | None:
        """Return the section under `key`, None when it is absent, null or empty."""
        value = self.raw(key, None)
        if value is None or value == {}:
            return None
        if key not in self.children:
            self.children[key] = Section(value, self.address(key))
        return self.children[key]

    def require_one_of(self, key: str, allowed: Sequence[Any], why: str) -> None:
        """Raise `ConfigError` for a value of `key` that is none of `allowed`, those implemented; absent is allowed."""
        value = self.raw(key, None)
        if value is None or any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            return
        raise ConfigError(
            f"{self.address(key)} must be {' or '.join(_show(a) for a in allowed)}, as nothing else is implemented: "
            f"{why} Got {_show(value)}."
        )

    def ignore(self, keys: Iterable[str]) -> None:
        """Count `keys` as read: they are known and change nothing here."""
        self.read_keys.update(keys)

    def unread_keys(self) -> list[str]:
        """Return the addresses of keys, here and below, that were not read and are not known to be harmless."""
        known = self.read_keys | HARMLESS
        here = [self.address(key) for key in self.data if key not in known]
        return here + [address for child in self.children.values() for address in child.unread_keys()]


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
