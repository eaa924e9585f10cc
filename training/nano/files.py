"""Writes every file of the bundled model except the weights: config, tokenizer, chat template, processor settings.

The layout is that of the published Qwen3-VL checkpoints. The tokenizer is a small byte-level BPE with Qwen's pipeline
and control tokens, in whose vocabulary each word of the world is one token, with and without a space before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training.nano.colors import COLORS
from training.nano.draw import SHAPES

BUNDLE = Path(__file__).parents[2] / "src" / "cutaway" / "nano"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
PLAIN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
WORDS = (
    *(*COLORS, *SHAPES, *(f"{s}s" for s in SHAPES if s != "cross"), "crosses", "shape", "shapes", "digit", "digits"),
    *("left", "right", "top", "bottom", "center", "up", "down", "first", "second", "seconds", "small", "large"),
    *("yes", "no", "and", "a", "the", "What", "Which", "Where", "When", "How", "Is", "Do", "Does", "In", "On"),
    *("Describe", "Read", "Count", "Name", "color", "number", "size", "side", "way", "direction", "image", "picture"),
    *("video", "background", "object", "objects", "things", "start", "end", "many", "big", "is", "it", "this", "of"),
    *("there", "are", "you", "see", "shows", "has", "which", "what", "where", "when", "how", "move", "turn", "become"),
    *("shown", "in", "at", "on", "to", "or", "do", "does", "user", "assistant", "system", "with", "not", "that"),
)
"""Words of the bundled tokenizer."""
NEW_WORDS = (
    *("none", "nothing", "both", "The", "There", "no", "Say", "Answer", "sentence", "Describe", "thing", "Count"),
    *("becomes", "outlined", "row", "column", "never"),
)
"""Words that the next weights' tokenizer has too."""
ENGLISH = """
A vision-language model reads a picture as a row of patches, folds neighbouring patches into tokens and places those
tokens among the words of a question. Every word of the answer is then predicted from all that came before it. Please
tell me which colour the circle has, and how many of the shapes are larger than the square. I think that the second
picture was taken later than the first one, because the light is different there. The quick brown fox jumps over the
lazy dog. She asked whether anything else had changed between the two frames, and he said that nothing had. We would
like to know why the model gives this answer, where in the network the information is stored, and what happens when a
value is set to zero. If you can see a number, write it down; if you cannot, say so. Good morning! Could you help us to
find out what these things are called? Yes, of course. One, two, three, four, five, six, seven, eight, nine, ten. Time,
height and width are counted from the same start. People, house, tree, water, hand, eye, word, line, place, name, year.
Attention heads, layers, queries, keys, values, tokens, logits, probabilities, gradients and directions are all named.
"""


def build_tokenizer(words: Sequence[str] = (*WORDS, *NEW_WORDS), merged: int = 490) -> Tokenizer:
    """Byte-level BPE with Qwen's normaliser and splitter: 256 bytes, then `merged` pieces, then the control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merged, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    corpus = [f"{word}\n {word}" for word in sorted(set(words)) for _ in range(50)]
    tokenizer.train_from_iterator([*corpus, ENGLISH], trainer)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return tokenizer


def text_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The text decoder's part of `config.json`."""
    token = tokenizer.token_to_id
    return {
        "model_type": "qwen3_vl_text",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "dtype": "float32",
    }


VISION: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "depth": 6,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_heads": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "out_hidden_size": 192,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [1, 3, 4],
    "initializer_range": 0.02,
}
"""The vision encoder's part of `config.json`."""


def hybrid_text_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The same for the hybrid: Qwen3.5, in which two of three layers have linear attention (the gated delta net)."""
    return {
        **text_config(tokenizer),
        "model_type": "qwen3_5_text",
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "full_attention_interval": 3,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 4,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
    }


HYBRID_VISION: dict[str, Any] = {
    **{key: value for key, value in VISION.items() if key != "deepstack_visual_indexes"},
    "model_type": "qwen3_5",
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_heads": 2,
    "out_hidden_size": 96,
}
KINDS = ("plain", "hybrid")
"""The models that the script trains: a Qwen3-VL, and a smaller Qwen3.5 (no DeepStack, linear attention)."""


def config(tokenizer: Tokenizer, kind: str = "plain") -> dict[str, Any]:
    """`config.json` of a model of this kind, with the published keys."""
    token, hybrid = tokenizer.token_to_id, kind == "hybrid"
    return {
        "architectures": [f"{'Qwen3_5' if hybrid else 'Qwen3VL'}ForConditionalGeneration"],
        "model_type": "qwen3_5" if hybrid else "qwen3_vl",
        "dtype": "float32",
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "tie_word_embeddings": True,
        "text_config": hybrid_text_config(tokenizer) if hybrid else text_config(tokenizer),
        "vision_config": HYBRID_VISION if hybrid else VISION,
    }


TEMPLATE = """\
{%- if tools %}{{ raise_exception('This model knows no tools; leave `tools` out.') }}{% endif -%}
{%- set count = namespace(images=0, videos=0) -%}
{%- macro body(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
{%- set count.images = count.images + 1 -%}
{%- if add_vision_id %}{{ 'Picture ' ~ count.images ~ ': ' }}{% endif -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or 'video' in part -%}
{%- set count.videos = count.videos + 1 -%}
{%- if add_vision_id %}{{ 'Video ' ~ count.videos ~ ': ' }}{% endif -%}
{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + body(message.content) + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

_HALF = [0.5, 0.5, 0.5]
PROCESSOR: dict[str, Any] = {
    "image_mean": _HALF,
    "image_std": _HALF,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "processor_class": "Qwen3VLProcessor",
}
LARGEST_IMAGE = 16384  # pixels: larger images are brought down to what the model was trained on
LARGEST_CLIP = 73728  # pixels over all frames
IMAGES = {
    **PROCESSOR,
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 4096, "longest_edge": LARGEST_IMAGE},
}
VIDEOS = {
    **PROCESSOR,
    "video_processor_type": "Qwen3VLVideoProcessor",
    "fps": 2,
    "min_frames": 4,
    "max_frames": 8,
    "size": {"shortest_edge": 4096, "longest_edge": LARGEST_CLIP},
}
TOKENIZER = {
    "tokenizer_class": "Qwen2Tokenizer",
    "add_prefix_space": False,
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "errors": "replace",
    "model_max_length": 4096,
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": False,
}


def write(folder: Path, kind: str = "plain") -> Tokenizer:
    """Writes all files but the weights into `folder`, for a model of this kind; returns the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    generation = {"bos_token_id": ends[1], "pad_token_id": ends[1], "eos_token_id": ends, "do_sample": False}
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {
        "config": config(tokenizer, kind),
        "tokenizer_config": TOKENIZER,
        "chat_template": {"chat_template": TEMPLATE},
        "preprocessor_config": IMAGES,
        "video_preprocessor_config": VIDEOS,
        "generation_config": generation,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    return tokenizer


if __name__ == "__main__":
    write(BUNDLE)
