"""A processor for a model that has no files of its own: one token a byte, control tokens at the ids of the config.

A model with random weights has no vocabulary. This one splits text into bytes, so that any text can be given to it; ids
that no byte has are named after themselves, so that whatever such a model says can be shown. Images and videos are
prepared as the family's releases do. It does not know weights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway.config import Config
from cutaway.errors import CheckpointError
from cutaway.inputs.processor import Processor
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.tokenizer import byte_table

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""The control tokens in the order of their ids, the same on every family."""

_TEMPLATE = """\
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' -}}
  {%- if message.content is string -%}
    {{- message.content -}}
  {%- else -%}
    {%- for part in message.content -%}
      {%- if part.type in ('image', 'video') -%}
        {{- '<|vision_start|><|' + part.type + '_pad|><|vision_end|>' -}}
      {%- else -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def byte_level_processor(config: Config, tokenizer: str | Path | None = None) -> Processor:
    """A processor with the family's published settings, and the tokenizer of a folder or, without one, of bytes.

    A folder without a chat template gets a plain one: roles, text and media, no default system turn, no tools.

    Raises `CheckpointError` for a config whose control tokens leave no room for bytes, or a folder without tokenizer.
    """
    if tokenizer is not None:
        read = Processor.from_folder(tokenizer, config)
    else:
        with TemporaryDirectory() as folder:
            write_tokenizer(folder, config)
            read = Processor.from_folder(folder, config)
    sides = {
        "patch_size": config.vision.patch_size,
        "merge_size": config.vision.spatial_merge_size,
        "temporal_patch_size": config.vision.temporal_patch_size,
    }
    images = read.image_settings or replace(ImageSettings.published(whole_video=config.whole_video), **sides)
    videos = read.video_settings or replace(VideoSettings.published(whole_video=config.whole_video), **sides)
    return Processor(config, read.tokenizer, read.template or ChatTemplate(_TEMPLATE), images, videos)


def write_tokenizer(folder: str | Path, config: Config) -> None:
    """Writes tokenizer and chat template for `config` into `folder`.

    Raises `CheckpointError` when the config's control tokens do not stand in the usual order above 256 bytes.
    """
    first = config.vision_start_token_id - CONTROL.index("<|vision_start|>")
    ids = {token: first + position for position, token in enumerate(CONTROL)}
    stated = {
        "<|vision_end|>": config.vision_end_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|video_pad|>": config.video_token_id,
    }
    if first < 256 or any(ids[token] != stands for token, stands in stated.items()):
        raise CheckpointError(
            f"A tokenizer of bytes needs the control tokens in Qwen's order above id 255; this config has vision_start "
            f"{config.vision_start_token_id}, vision_end {config.vision_end_token_id}, image {config.image_token_id}, "
            f"video {config.video_token_id}. Give a folder with its tokenizer: `tokenizer=`."
        )
    vocabulary = byte_table() | {f"<{n}>": n for n in range(256, config.text.vocab_size)}
    vocabulary = {token: n for token, n in vocabulary.items() if not first <= n < first + len(CONTROL)} | ids
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    folder = Path(folder)
    (folder / "tokenizer.json").write_text(json.dumps(_byte_tokenizer(vocabulary, ids)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")


def _byte_tokenizer(vocabulary: dict[str, int], control: dict[str, int]) -> dict[str, Any]:
    """The content of a `tokenizer.json` that merges nothing."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for token, number in control.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
