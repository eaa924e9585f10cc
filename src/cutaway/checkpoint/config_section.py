"""One section of a `config.json`, read key by key: types checked, and every key that nobody asked for remembered.

This module knows how a config is read safely, and which keys describe training, saving or output and never the
computation. It does not know any model family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""Keys that say nothing about what the forward computes; they are passed over without a word."""

REQUIRED: Any = object()
"""Marks a key without a default."""


class Section:
    """A mapping out of a config, with the address `where` for messages (``text_config``, ``""`` for the top)."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where or 'config.json'} must be a mapping of keys to values, not {_show(data)}.")
        self.data, self.where = data, where
        self.asked: set[str] = set()
        self.children: dict[str, Section] = {}

    def address(self, key: str) -> str:
        """The key as it is named in messages."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        self.asked.add(key)
        return self.data.get(key) is not None

    def raw(self, key: str, default: Any = REQUIRED) -> Any:
        """The value as it stands; a null counts as absent."""
        self.asked.add(key)
        value = self.data.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ConfigError(f"{self.address(key)} is missing, and nothing stands for it: add it to config.json.")
        return default

    def whole(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        """A whole number of at least `least`. A list of equal numbers (some files give patch sizes so) is one."""
        value = self.raw(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{self.address(key)} must be a whole number of at least {least}, not {_show(value)}.")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """A positive number."""
        value = self.raw(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ConfigError(f"{self.address(key)} must be a positive number, not {_show(value)}.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.address(key)} must be true or false, not {_show(value)}.")
        return value

    def wholes(self, key: str, default: Sequence[int], *, length: int | None = None) -> tuple[int, ...]:
        """A list of whole numbers of at least zero."""
        value = self.raw(key, default)
        fits = isinstance(value, Sequence) and not isinstance(value, str)
        if not fits or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in value):
            raise ConfigError(f"{self.address(key)} must be a list of whole numbers, not {_show(value)}.")
        if length is not None and len(value) != length:
            raise ConfigError(f"{self.address(key)} must have {length} entries, not {len(value)}: {_show(value)}.")
        return tuple(value)

    def section(self, key: str) -> Section | None:
        """The section under `key`, None when absent, null or empty."""
        value = self.raw(key, None)
        if value is None or value == {}:
            return None
        if key not in self.children:
            self.children[key] = Section(value, self.address(key))
        return self.children[key]

    def only(self, key: str, allowed: Sequence[Any], why: str) -> None:
        """Refuses any value of `key` but the `allowed` ones, which compute what is implemented; absent is allowed."""
        value = self.raw(key, None)
        if value is None or any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            return
        raise ConfigError(
            f"{self.address(key)} is {_show(value)}, and only {' or '.join(_show(a) for a in allowed)} is implemented: "
            f"{why}"
        )

    def passed_over(self, keys: Sequence[str]) -> None:
        """Counts `keys` as read: they are known, and this family does not use them."""
        self.asked.update(keys)

    def leftover(self) -> list[str]:
        """Addresses of the keys, here and below, that nobody asked for and that are not known to be harmless."""
        known = self.asked | HARMLESS
        here = [self.address(key) for key in self.data if key not in known]
        return here + [address for child in self.children.values() for address in child.leftover()]


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
