"""`ImageSettings` and `VideoSettings`: sizes, limits and normalisation with which images and videos become patches.

`from_config` reads the content of `preprocessor_config.json` and `video_preprocessor_config.json`, `for_family` gives a
family's published values. No file is opened and no pixel changed here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from cutaway.errors import ConfigError, InputError
from cutaway.inputs.validation import brief, channels, positive_float, positive_int

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)

_IGNORED_KEYS = frozenset({
    "image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map", "device",
    "data_format", "input_data_format", "return_tensors", "disable_grouping", "default_to_square", "return_metadata",
    "video_metadata", "max_image_size", "max_duration", "use_token_compression", "default_chat_template",
    "_processor_class", "transformers_version",
})  # fmt: skip
"""Keys that say nothing about the numbers."""

_FIXED_KEYS: dict[str, Any] = {"resample": 3, "do_convert_rgb": True, "do_center_crop": False, "do_pad": False}
"""Keys that would change the numbers, with the one value that is implemented (3 is bicubic)."""

_IMAGE_KEYS = frozenset({
    "patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels", "size", "image_mean", "image_std",
    "rescale_factor", "do_resize", "do_rescale", "do_normalize",
})  # fmt: skip
_VIDEO_KEYS = frozenset({
    "fps", "num_frames", "min_frames", "max_frames", "do_sample_frames", "cap_pixels_per_frame", "max_video_tokens",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How an image becomes patches.

    - `patch_size`, `temporal_patch_size`: side of a patch in pixels, its length in frames; `merge_size`: side of a
      merged token in patches.
    - `min_pixels`, `max_pixels`: bounds of the resized image's area, in pixels.
    - `mean`, `std`: of the normalisation, per channel, for values in 0..1.
    - `rescale_factor`: what makes 0..1 of 0..255.
    """

    patch_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    temporal_patch_size: int = 2
    merge_size: int = 2
    rescale_factor: float = 1 / 255
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True

    @property
    def factor(self) -> int:
        """Side of a merged token in pixels: what resized sides are multiples of."""
        return self.patch_size * self.merge_size

    def with_limits(
        self, min_pixels: int | None = None, max_pixels: int | None = None, size: Mapping[str, int] | None = None
    ) -> Self:
        """Return the same settings with other pixel limits; what is None stays.

        `size` has both of `shortest_edge` and `longest_edge`, which are areas in spite of their names. Raises
        `InputError` for other keys, and unless both are whole numbers above 0, the smaller one first.
        """
        low, high = _limits(min_pixels, max_pixels, size, (self.min_pixels, self.max_pixels), InputError)
        return replace(self, min_pixels=low, max_pixels=high)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ImageSettings:
        """Return settings from the content of `preprocessor_config.json`; raise `ConfigError` for others."""
        # One file may serve images and videos alike, so a key of videos is known here too.
        _refuse(config, _IMAGE_KEYS | _VIDEO_KEYS)
        return ImageSettings(**_shared(config, (3136, 1003520)))

    @classmethod
    def published(cls, *, whole_video: bool) -> ImageSettings:
        """Return the published settings, for a model without files; `whole_video` as in `cutaway.config.Config`."""
        if whole_video:
            return ImageSettings(patch_size=16, min_pixels=65536, max_pixels=16777216, mean=HALF, std=HALF)
        return ImageSettings(patch_size=14, min_pixels=3136, max_pixels=12845056, mean=CLIP_MEAN, std=CLIP_STD)


@dataclass(frozen=True, kw_only=True)
class VideoSettings(ImageSettings):
    """How a video becomes patches: `ImageSettings`, and which frames are taken.

    - `whole_video`: the pixel limits are for all frames together and sampling is evenly spaced with both ends (3-VL,
      3.5); otherwise the limits are per frame, and sampling takes even counts from the start (2-VL, 2.5-VL).
    - `do_sample_frames`: whether frames are sampled when a call says nothing: `fps` frames a second or `num_frames` in
      all, at least `min_frames` and at most `max_frames`.
    - `cap_pixels_per_frame`: bound a frame's pixels by `max_video_tokens` (per frame where `whole_video`, else for the
      video), as the release's own tools do and transformers does on request.
    """

    whole_video: bool
    do_sample_frames: bool
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, whole_video: bool | None = None) -> VideoSettings:
        """Settings from `video_preprocessor_config.json`, or from `preprocessor_config.json` where there is only that.

        `whole_video` is the model's (`cutaway.config.Config`); a `video_processor_type` in the file decides before it.
        """
        whole = _whole_video(config.get("video_processor_type"), whole_video)
        _refuse(config, _IMAGE_KEYS | _VIDEO_KEYS)
        shared = _shared(config, (131072, 786432) if whole else (100352, 602112))
        rate, frames = config.get("fps"), config.get("num_frames")
        if rate is None and frames is None and whole:
            rate = 2
        return VideoSettings(
            **shared,
            whole_video=whole,
            do_sample_frames=_choose(config, "do_sample_frames", whole),
            fps=None if rate is None else positive_float(rate, "fps", ConfigError),
            num_frames=None if frames is None else positive_int(frames, "num_frames", ConfigError),
            min_frames=positive_int(_choose(config, "min_frames", 4), "min_frames", ConfigError),
            max_frames=positive_int(_choose(config, "max_frames", 768), "max_frames", ConfigError),
            cap_pixels_per_frame=bool(_choose(config, "cap_pixels_per_frame", False)),
            max_video_tokens=positive_int(
                _choose(config, "max_video_tokens", 768 if whole else 128000), "max_video_tokens", ConfigError
            ),
        )

    @classmethod
    def published(cls, *, whole_video: bool) -> VideoSettings:
        """Return the published settings, for a model without files; `whole_video` as in `cutaway.config.Config`."""
        shared: dict[str, Any] = dict(vars(ImageSettings.published(whole_video=whole_video)))
        if not whole_video:
            return VideoSettings(**shared, whole_video=False, do_sample_frames=False, max_video_tokens=128000)
        shared = shared | {"min_pixels": 4096, "max_pixels": 25165824}
        return VideoSettings(**shared, whole_video=True, do_sample_frames=True, fps=2, max_video_tokens=768)


_PROCESSORS = {"qwen2": False, "qwen3": True}
"""How the published names of video processors begin, and whether they count a video as a whole."""


def _whole_video(processor: Any, default: bool | None) -> bool:
    """Whether a video counts as a whole: by the name of its processor where a file gives one, else `default`."""
    if processor is None and default is not None:
        return default
    plain = str(processor or "").lower().replace("_", "")
    for name, whole in _PROCESSORS.items():
        if plain.startswith(name):
            return whole
    raise ConfigError(
        f"Video settings need a Qwen-VL processor in video_processor_type; got {brief(processor)}. Pass "
        f"`whole_video` for a file without one."
    )


def _shared(config: Mapping[str, Any], limits: tuple[int, int]) -> dict[str, Any]:
    """Return the fields that images and videos share; `limits` are (min_pixels, max_pixels) for a file without any."""
    if "patch_size" not in config:
        raise ConfigError(f"A preprocessor config needs patch_size; got {', '.join(sorted(config)) or 'no keys'}.")
    low, high = _limits(config.get("min_pixels"), config.get("max_pixels"), config.get("size"), limits, ConfigError)
    patch = positive_int(config["patch_size"], "patch_size", ConfigError)
    # A file without mean and std means its class's own: CLIP's with patches of 14, one half with 16.
    mean, std = (HALF, HALF) if patch == 16 else (CLIP_MEAN, CLIP_STD)
    return {
        "patch_size": patch,
        "temporal_patch_size": positive_int(
            _choose(config, "temporal_patch_size", 2), "temporal_patch_size", ConfigError
        ),
        "merge_size": positive_int(_choose(config, "merge_size", 2), "merge_size", ConfigError),
        "min_pixels": low,
        "max_pixels": high,
        "mean": channels(_choose(config, "image_mean", mean), "image_mean", ConfigError),
        "std": channels(_choose(config, "image_std", std), "image_std", ConfigError, positive=True),
        "rescale_factor": positive_float(_choose(config, "rescale_factor", 1 / 255), "rescale_factor", ConfigError),
        **{key: bool(_choose(config, key, True)) for key in ("do_resize", "do_rescale", "do_normalize")},
    }


def _refuse(config: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise `ConfigError` for a key that would change the numbers in a way not implemented; warn of an unknown key."""
    for key, value in _FIXED_KEYS.items():
        if config.get(key, value) not in (value, None):
            raise ConfigError(
                f"The preprocessor config's {key} must be {value!r}, no other is implemented; got {brief(config[key])}."
            )
    cropped = [key for key in ("crop_size", "pad_size") if config.get(key) is not None]
    if cropped:
        raise ConfigError(f"Cropping and padding of images is not implemented; got {', '.join(cropped)}.")
    unknown = set(config) - known - _IGNORED_KEYS - set(_FIXED_KEYS) - {"crop_size", "pad_size"}
    unknown = sorted(key for key in unknown if config[key] is not None)
    if unknown:
        warnings.warn(
            f"The preprocessor config has unknown keys, which are ignored: {', '.join(unknown)}.", stacklevel=3
        )


def _limits(
    low: Any, high: Any, size: Any, base: tuple[int, int], error: type[InputError] | type[ConfigError]
) -> tuple[int, int]:
    """Return (min_pixels, max_pixels) from the two spellings: single numbers win over `size`, `size` over `base`."""
    if size is not None:
        edges = dict(size) if isinstance(size, Mapping) else {"": size}
        # Old files repeat the outer pair inside `size`; there the outer one counts.
        edges = {
            k: v
            for k, v in edges.items()
            if v is not None and (k, v) not in (("min_pixels", low), ("max_pixels", high))
        }
        if edges and set(edges) != {"shortest_edge", "longest_edge"}:
            raise error(
                "size must have both shortest_edge and longest_edge (pixel areas) and nothing else; "
                f"got {brief(size)}. Or give min_pixels and max_pixels."
            )
        base = (edges["shortest_edge"], edges["longest_edge"]) if edges else base
    low = positive_int(base[0] if low is None else low, "min_pixels", error)
    high = positive_int(base[1] if high is None else high, "max_pixels", error)
    if low > high:
        raise error(f"min_pixels may not exceed max_pixels; got {low} and {high}. Set both.")
    return low, high


def _choose(config: Mapping[str, Any], key: str, default: Any) -> Any:
    value = config.get(key)
    return default if value is None else value
