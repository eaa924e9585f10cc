"""A `config.json`, of any family and age, read into the frozen `Config` that the model is built from.

`read_config` takes flat and nested files, the names of three generations for one setting, and vision sections that use
``hidden_size`` for different things. A key that would change the computation and is not honoured is an error; keys
that are not known are named in one warning. It does not know weights or modules.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutaway.checkpoint.config_section import HARMLESS, LARGEST, Section
from cutaway.checkpoint.families import FAMILIES, Family
from cutaway.checkpoint.files import refuse_adapter
from cutaway.checkpoint.text_config import MOST_LAYERS, rotary_section, text_config
from cutaway.config import Config, TextConfig, VisionConfig
from cutaway.errors import ConfigError
from cutaway.storage import read_json

_DTYPES = ("bfloat16", "float16", "float32", "float64")

_TEXT_KEYS = (
    *FAMILIES["qwen2_vl"].text,
    "hidden_act",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
)
"""The keys of the text model that stand at the top of flat files."""

_SIZES = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "layer_types",
    "max_window_layers",
    "max_position_embeddings",
}
"""Keys whose values weights show, or that follow from them, or that only bound the length of a prompt."""


def read_config(source: str | Path | Mapping[str, Any], *, text_only: bool = False) -> Config:
    """Return the `Config` of a folder, of a `config.json`, or of the mapping out of one.

    With `text_only` the file may lack a vision section, and the family's defaults stand for it. Raises `ConfigError`
    for a file that cannot be read, a model that is none of the six families, sizes that do not fit together, and
    settings that are not implemented. Warns once, naming the keys that it does not know.
    """
    top = Section(source if isinstance(source, Mapping) else read_config_file(source), "")
    family = _family(top)
    _refuse_quantised(top)
    text, vision = top.section("text_config"), top.section("vision_config")
    if vision is None and not text_only:
        raise ConfigError(
            "vision_config is missing: without it there is no vision encoder to build. Load the text model alone with "
            'task="text-generation".'
        )
    if text is None:
        if not family.flat:
            raise ConfigError(f"text_config is missing: a file of {family.title} has the text model's settings there.")
        text = top
    else:
        _refuse_quantised(text)
    decoder = text_config(family, text)
    if text is not top:
        _check_repeated(family, top, text, decoder)
    if vision is None:
        vision = Section({_out_key(family): decoder.hidden_size}, "vision_config")
    config = Config(
        family=family.model_type,
        text=decoder,
        vision=_vision(family, vision),
        tie_word_embeddings=_tied(family, top, text),
        timestamps=family.timestamps,
        whole_video=family.whole_video,
        split_marks=family.split_marks,
        dtype=_dtype(top, text),
        **{key: top.integer(key, usual, least=0, most=2**24) for key, usual in family.tokens.items()},
    )
    _check_fit(config)
    if unknown := top.unread_keys():
        warnings.warn(
            f"config.json has keys that are not known here and were not used: {', '.join(unknown)}.", stacklevel=2
        )
    return config


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a JSON file, or in `config.json` when `path` is a folder. Raises `ConfigError`."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        if path.name == "config.json":
            refuse_adapter(path.parent)
        raise ConfigError(f"{path} does not exist: a checkpoint folder must have a config.json.")
    return read_json(path, ConfigError)


def _family(top: Section) -> Family:
    name = top.raw("model_type", "")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(f"model_type must be one of {', '.join(FAMILIES)}; got {name!r}. Load one of these families.")
    return FAMILIES[name]


def _tied(family: Family, top: Section, text: Section) -> bool:
    """Flat families honour the flag in either place, the others at the top alone, as the reference does."""
    outer, inner = top.boolean("tie_word_embeddings", False), text.boolean("tie_word_embeddings", False)
    return outer or (inner and family.flat)


def _check_repeated(family: Family, top: Section, text: Section, decoder: TextConfig) -> None:
    """Raise `ConfigError` for a key of the text model that stands at the top as well and says something else there.

    Some releases wrote the text model's keys in both places. Which of two values a model was trained with is not to be
    told. Sizes are exempt: the section counts, and weights that do not have them are refused.
    """
    keys = {key for key in (*_TEXT_KEYS, *text.read_keys) if top.has(key)}
    keys -= HARMLESS | _SIZES | {"tie_word_embeddings"}
    top.ignore(_SIZES)
    for key in sorted(keys):
        try:
            same = text_config(family, _overlaid(family, top, text, key)) == decoder
        except ConfigError:
            same = False
        if not same:
            raise ConfigError(
                f"{key} must be the same at the top and in text_config; got {top.data[key]!r} and "
                f"{_effective(text, key)!r}. Remove the one that the model was not trained with."
            )


def _overlaid(family: Family, top: Section, text: Section, key: str) -> Section:
    """The text section with the top's value of `key`; rotary settings go into the one section of them."""
    changed = dict(text.data)
    rotary = {"rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor"}
    if key in rotary:
        current = next((changed[k] for k in ("rope_scaling", "rope_parameters") if changed.get(k)), {})
        options = top.data[key] if key in ("rope_scaling", "rope_parameters") else {key: top.data[key]}
        if not isinstance(options, Mapping):
            raise ConfigError(f"{key} must be a mapping of keys to values; got {options!r}.")
        aliases = {"type": "rope_type"} if "rope_type" in current else {}
        changed["rope_scaling"] = {**current, **{aliases.get(k, k): value for k, value in options.items()}}
        changed.pop("rope_parameters", None)
        if "rope_theta" in current or key == "rope_theta":
            changed.pop("rope_theta", None)
    else:
        windows = ("sliding_window", "use_sliding_window", "max_window_layers")
        together = windows if key in windows else (key,)
        changed.update({name: top.data[name] for name in together if name in top.data})
        if key in windows and not family.linear:
            changed.pop("layer_types", None)  # with it, windows are not looked at
    return Section(changed, "")


def _effective(text: Section, key: str) -> Any:
    inside = rotary_section(text).data
    return text.data.get(key, inside.get(key))


def _dtype(top: Section, text: Section) -> str | None:
    for section in (top, text):
        for key in ("dtype", "torch_dtype"):
            name = str(section.raw(key, "auto")).removeprefix("torch.")
            if name in _DTYPES:
                return name
            if name != "auto":
                raise ConfigError(f"{section.address(key)} must be one of {', '.join(_DTYPES)}; got {name!r}.")
    return None


def _vision(family: Family, s: Section) -> VisionConfig:
    usual = family.vision
    patch = s.integer("patch_size", usual["patch_size"])
    s.require_one_of("spatial_patch_size", [patch], "patches are square, so the two keys must agree.")
    for key in ("in_channels", "in_chans"):
        s.require_one_of(key, [3], "images have three colours.")
    s.require_one_of("hidden_act", [family.vision_act], f"the vision encoder of {family.title} was trained with it.")
    if rope := s.section("rope_parameters"):
        rope.require_one_of("rope_theta", [10000], "vision rotary frequencies have a fixed base.")
        rope.require_one_of("rope_type", ["axial", "default"], "vision positions are rows and columns, not rescaled.")
    width = family.vision_width_key
    hidden = s.integer(width, usual[width])
    out = _out_key(family)
    return VisionConfig(
        encoder=family.encoder,
        num_layers=s.integer("depth", usual["depth"], most=MOST_LAYERS),
        hidden_size=hidden,
        intermediate_size=_vision_intermediate(s, usual, hidden),
        num_heads=s.integer("num_heads", usual["num_heads"]),
        out_hidden_size=s.integer(out, usual[out]),
        patch_size=patch,
        temporal_patch_size=s.integer("temporal_patch_size", 2),
        spatial_merge_size=s.integer("spatial_merge_size", 2),
        hidden_act=family.vision_act,
        **_vision_parts(family, s),
    )


def _out_key(family: Family) -> str:
    """The key of the text model's width in the vision section."""
    return "hidden_size" if family.vision_width_key != "hidden_size" else "out_hidden_size"


def _vision_intermediate(s: Section, usual: Mapping[str, Any], hidden: int) -> int:
    if "mlp_ratio" not in usual:
        return s.integer("intermediate_size", usual["intermediate_size"])
    ratio = s.number("mlp_ratio", usual["mlp_ratio"])
    if not 1 <= hidden * ratio <= LARGEST:
        raise ConfigError(f"{s.address('mlp_ratio')} must give an MLP 1 to {LARGEST} wide; got {ratio:g} x {hidden}.")
    return int(hidden * ratio)


def _vision_parts(family: Family, s: Section) -> dict[str, Any]:
    """What only some encoders have: each part is there where the family's entry has a default for its key."""
    usual = family.vision
    parts: dict[str, Any] = {}
    if "window_size" in usual:
        parts["window_size"] = s.integer("window_size", usual["window_size"])
        parts["full_attention_indexes"] = s.integers("fullatt_block_indexes", usual["fullatt_block_indexes"])
        parts["tokens_per_second"] = s.number("tokens_per_second", usual["tokens_per_second"])
    if "num_position_embeddings" in usual:
        parts["num_positions"] = s.integer("num_position_embeddings", usual["num_position_embeddings"])
    if "deepstack_visual_indexes" in usual:
        parts["deepstack_indexes"] = s.integers("deepstack_visual_indexes", usual["deepstack_visual_indexes"])
    elif "num_position_embeddings" in usual:
        s.require_one_of("deepstack_visual_indexes", [[]], f"{family.title} has no DeepStack.")
    return parts


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
    deepstack = vision.deepstack_indexes
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
        f"deepstack_visual_indexes {list(deepstack)} must be different ones of the {vision.num_layers} vision layers, "
        f"and no more than the {text.num_layers} text layers.": (
            all(layer < vision.num_layers for layer in deepstack)
            and len(set(deepstack)) == len(deepstack) <= text.num_layers
        ),
        f"the vision token ids {list(tokens)} must differ and be below vocab_size {text.vocab_size}.": (
            len(set(tokens)) == len(tokens) and max(tokens) < text.vocab_size
        ),
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise ConfigError(f"config.json does not fit together: {' '.join(broken)}")
