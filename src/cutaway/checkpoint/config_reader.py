"""`config.json` of every family and age, read into the frozen `Config` that the model is built from.

Flat and nested files, the names of three generations for the same settings, two towers that use ``hidden_size`` for
different things: all of it ends here. A key that would change the computation and is not honoured is an error; keys
that nobody knows are named in one warning. This module does not know weights or modules.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutaway.checkpoint.config_section import Section
from cutaway.checkpoint.families import FAMILIES, TIMESTAMPS, TOKENS, VISION, VISION_ACT, generation
from cutaway.checkpoint.text_config import TEXT_KEYS, text_config
from cutaway.config import Config, VisionConfig
from cutaway.errors import ConfigError

_DTYPES = ("bfloat16", "float16", "float32", "float64")


def read_config(source: str | Path | Mapping[str, Any]) -> Config:
    """The `Config` of a folder, of a `config.json`, or of the mapping out of one.

    Raises `ConfigError` for a file that cannot be read, a model that is none of the six families, sizes that do not fit
    together, and settings that are not implemented. Warns once, naming the keys that it does not know.
    """
    top = Section(source if isinstance(source, Mapping) else read_json(source), "")
    family = top.raw("model_type", "")
    if family not in FAMILIES:
        raise ConfigError(
            f"model_type must be one of {', '.join(FAMILIES)}, not {family!r}: other models are not implemented."
        )
    _refuse_quantised(top)
    text, vision = top.section("text_config"), top.section("vision_config")
    if vision is None:
        raise ConfigError("vision_config is missing: without it there is no vision encoder to build.")
    if text is None:
        if generation(family) != "qwen2":
            raise ConfigError(f"text_config is missing: a {family} file keeps the text model's settings there.")
        text = top  # Qwen2-VL and Qwen2.5-VL files are flat
    else:
        _refuse_quantised(text)
        top.passed_over(TEXT_KEYS)  # some releases wrote the flat keys beside the section; the section counts
    config = Config(
        family=family,
        text=text_config(family, text),
        vision=_vision(family, vision),
        tie_word_embeddings=_tied(family, top, text),
        timestamps=TIMESTAMPS[family],
        dtype=_dtype(top, text),
        **{key: top.whole(key, usual, least=0) for key, usual in TOKENS[generation(family)].items()},
    )
    _check_fit(config)
    if unknown := top.leftover():
        warnings.warn(
            f"config.json has keys that are not known here and were not used: {', '.join(unknown)}.", stacklevel=2
        )
    return config


def read_json(path: str | Path) -> dict[str, Any]:
    """The mapping in a JSON file, or in `config.json` when `path` is a folder. Raises `ConfigError`."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: a checkpoint folder must have a config.json.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}). Fetch the file again.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not a {type(data).__name__}.")
    return data


def _tied(family: str, top: Section, text: Section) -> bool:
    """The first two families honour the flag in either place, later ones at the top alone, as the reference does."""
    outer, inner = top.flag("tie_word_embeddings", False), text.flag("tie_word_embeddings", False)
    return outer or (inner and generation(family) == "qwen2")


def _dtype(top: Section, text: Section) -> str | None:
    for section in (top, text):
        for key in ("dtype", "torch_dtype"):
            name = str(section.raw(key, "auto")).removeprefix("torch.")
            if name in _DTYPES:
                return name
            if name != "auto":
                raise ConfigError(f"{section.address(key)} must be one of {', '.join(_DTYPES)}, not {name!r}.")
    return None


def _vision(family: str, s: Section) -> VisionConfig:
    usual = VISION[family]
    patch = s.whole("patch_size", usual["patch_size"])
    s.only("spatial_patch_size", [patch], "patches are square; the two keys must agree.")
    for key in ("in_channels", "in_chans"):
        s.only(key, [3], "images have three colours.")
    act = VISION_ACT.get(family, "gelu_pytorch_tanh")
    s.only("hidden_act", [act], f"{family}'s vision blocks were trained with it.")
    if rope := s.section("rope_parameters"):
        rope.only("rope_theta", [10000], "vision rotary frequencies have a fixed base.")
        rope.only("rope_type", ["axial", "default"], "vision positions are rows and columns, not rescaled.")
    if family == "qwen2_vl":  # here hidden_size is the text model's width and embed_dim the tower's
        hidden = s.whole("embed_dim", usual["embed_dim"])
        intermediate = int(hidden * s.number("mlp_ratio", usual["mlp_ratio"]))
        out = s.whole("hidden_size", usual["hidden_size"])
    else:
        hidden, intermediate, out = (
            s.whole(key, usual[key]) for key in ("hidden_size", "intermediate_size", "out_hidden_size")
        )
    return VisionConfig(
        num_layers=s.whole("depth", usual["depth"]),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=s.whole("num_heads", usual["num_heads"]),
        out_hidden_size=out,
        patch_size=patch,
        temporal_patch_size=s.whole("temporal_patch_size", 2),
        spatial_merge_size=s.whole("spatial_merge_size", 2),
        hidden_act=act,
        **_vision_extras(family, s),
    )


def _vision_extras(family: str, s: Section) -> dict[str, Any]:
    usual = VISION[family]
    if family == "qwen2_vl":
        return {}
    if family == "qwen2_5_vl":
        return {
            "window_size": s.whole("window_size", usual["window_size"]),
            "full_attention_indexes": s.wholes("fullatt_block_indexes", usual["fullatt_block_indexes"]),
            "tokens_per_second": s.number("tokens_per_second", usual["tokens_per_second"]),
        }
    extras: dict[str, Any] = {"num_positions": s.whole("num_position_embeddings", usual["num_position_embeddings"])}
    if generation(family) == "qwen3_vl":
        extras["deepstack_indexes"] = s.wholes("deepstack_visual_indexes", usual["deepstack_visual_indexes"])
    else:
        s.only("deepstack_visual_indexes", [[]], f"{family} has no DeepStack.")
    return extras


def _refuse_quantised(section: Section) -> None:
    for key in ("quantization_config", "compression_config"):
        settings = section.raw(key, None)
        if settings is None:
            continue
        method = settings.get("quant_method", "an unnamed method") if isinstance(settings, Mapping) else settings
        raise ConfigError(
            f"{section.address(key)} says that the weights are quantised ({method}), and only plain weights (bfloat16, "
            f"float16, float32) are read. Take the unquantised release of this model, usually the same name without "
            f"-FP8, -AWQ, -GPTQ or -bnb at its end."
        )


def _check_fit(config: Config) -> None:
    """Sizes that contradict each other would fail deep inside a forward; they fail here."""
    text, vision = config.text, config.vision
    side = math.isqrt(vision.num_positions or 0)
    unit = vision.patch_size * vision.spatial_merge_size
    taps = vision.deepstack_indexes
    tokens = (config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id)
    rules = {
        f"num_attention_heads {text.num_heads} must be a multiple of num_key_value_heads {text.num_kv_heads}.": (
            text.num_heads % text.num_kv_heads == 0
        ),
        f"the vision width {vision.hidden_size} must give {vision.num_heads} heads a multiple of 4 dimensions each.": (
            vision.hidden_size % vision.num_heads == 0 and vision.head_dim % 4 == 0
        ),
        f"the vision encoder's output width {vision.out_hidden_size} must be the text model's {text.hidden_size}.": (
            vision.out_hidden_size == text.hidden_size
        ),
        f"num_position_embeddings {vision.num_positions} must be a square.": side * side == (vision.num_positions or 0),
        f"window_size {vision.window_size} must be a multiple of patch_size x spatial_merge_size, {unit}.": (
            vision.window_size is None or vision.window_size % unit == 0
        ),
        f"deepstack_visual_indexes {list(taps)} must be different blocks of the {vision.num_layers} vision blocks, and "
        f"no more than the {text.num_layers} text layers.": (
            all(tap < vision.num_layers for tap in taps) and len(set(taps)) == len(taps) <= text.num_layers
        ),
        f"the vision token ids {list(tokens)} must differ and be below vocab_size {text.vocab_size}.": (
            len(set(tokens)) == len(tokens) and max(tokens) < text.vocab_size
        ),
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise ConfigError(f"config.json does not fit together: {' '.join(broken)}")
