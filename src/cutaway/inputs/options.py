"""The processor's keyword arguments: their names, the step each belongs to, and the settings they change for one call.

`Options.sort` divides the arguments of a call into those for text, chat template, images and videos; `apply_options`
puts image and video options over the checkpoint's settings. Nothing is prepared here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from cutaway.errors import InputError
from cutaway.inputs.batch.collate import BATCH_KEYS
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.validation import boolean, brief, channels, positive_float, positive_int

Settings = TypeVar("Settings", bound=ImageSettings)

PIXEL_OPTIONS = ("min_pixels", "max_pixels", "size", "layout", "input_data_format")
SETTING_OPTIONS = {
    "do_resize": ("do_resize", boolean),
    "do_rescale": ("do_rescale", boolean),
    "do_normalize": ("do_normalize", boolean),
    "rescale_factor": ("rescale_factor", positive_float),
    "image_mean": ("mean", channels),
    "image_std": ("std", partial(channels, positive=True)),
}
"""Options that replace a setting of the same or another name: the field, and the check of the value."""
FRAME_OPTIONS = {"cap_pixels_per_frame": boolean, "min_frames": positive_int, "max_frames": positive_int}
SAMPLING_OPTIONS = ("fps", "num_frames", "do_sample_frames", "cap_pixels_per_frame", "min_frames", "max_frames")
TEMPLATE_ARGUMENTS = ("add_generation_prompt", "continue_final_message", "tools")
"""What a chat template gets whether or not it reads it; other options of it must be variables that it reads."""
TEMPLATE_OPTIONS = (*TEMPLATE_ARGUMENTS, "add_vision_id", "enable_thinking", "chat_template", "variables")
PROMPT_ARGUMENTS = ("text", "messages", "images", "videos", "system", "tokenize", "return_dict", "processor_kwargs")
"""Arguments of the processor's methods that are no options."""
TEXT_OPTIONS = (
    "return_tensors",
    "padding",
    "padding_side",
    "truncation",
    "max_length",
    "nested_video_markers",
    "allow_control_tokens",
    "return_mm_token_type_ids",
)
VIDEO_OPTIONS = (*PIXEL_OPTIONS, *SETTING_OPTIONS, *SAMPLING_OPTIONS, "video_metadata")
OPTION_DICTS = ("images_kwargs", "videos_kwargs", "text_kwargs")
NAMES = (
    *TEXT_OPTIONS,
    *TEMPLATE_OPTIONS,
    *PIXEL_OPTIONS,
    *SETTING_OPTIONS,
    *SAMPLING_OPTIONS,
    *OPTION_DICTS,
    "video_metadata",
)
"""Every keyword of `Processor.__call__` besides text, images and videos."""


@dataclass(frozen=True)
class Options:
    """A call's keyword arguments, divided by the step they are for; an argument that is None counts as left out."""

    text: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    images: dict[str, Any] = field(default_factory=dict)
    videos: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def sort(cls, options: Mapping[str, Any]) -> Options:
        """Divide keyword arguments by the step they are for.

        Pixel options hold for images and videos alike; the dicts `images_kwargs`, `videos_kwargs` and `text_kwargs` are
        for one kind and win. Raises `InputError` for an unknown name, with the nearest one, and for a value that an
        option cannot have.
        """
        flat = {key: value for key, value in options.items() if key not in OPTION_DICTS}
        by_kind = {key: _check_dict(options.get(key), key) for key in OPTION_DICTS}
        return cls(
            text=_pick({**flat, **by_kind["text_kwargs"]}, TEXT_OPTIONS),
            template=_pick(flat, TEMPLATE_OPTIONS),
            images=_pick({**flat, **by_kind["images_kwargs"]}, (*PIXEL_OPTIONS, *SETTING_OPTIONS)),
            videos=_pick({**flat, **by_kind["videos_kwargs"]}, VIDEO_OPTIONS),
        )._validate({**flat, **by_kind["text_kwargs"], **by_kind["images_kwargs"], **by_kind["videos_kwargs"]})

    def _validate(self, options: Mapping[str, Any]) -> Options:
        for name in options:
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, 1)
                raise InputError(
                    f"The processor has no option {name!r}"
                    + (f". Did you mean {near[0]!r}?" if near else f"; its options are {', '.join(NAMES)}.")
                )
        boolean(self.template.get("add_generation_prompt", True), "`add_generation_prompt`", InputError)
        for name in ("truncation", "nested_video_markers", "allow_control_tokens", "return_mm_token_type_ids"):
            boolean(self.text.get(name, False), f"`{name}`", InputError)
        tensors = self.text.get("return_tensors", "pt")
        if not isinstance(tensors, str) or tensors != "pt":
            raise InputError(f"`return_tensors` is 'pt' (torch tensors, also when left out); got {brief(tensors)}.")
        for name, choices in (("padding_side", ("left", "right")), ("padding", (True, False, "longest", "max_length"))):
            value = self.text.get(name, choices[0])
            if not isinstance(value, (str, bool)) or value not in choices:
                raise InputError(f"`{name}` is one of {choices}; got {brief(self.text[name])}.")
        if "max_length" in self.text:
            positive_int(self.text["max_length"], "max_length", InputError)
        elif self.text.get("truncation"):
            raise InputError("`truncation` cuts a sample to `max_length` tokens; got no `max_length`. Give both.")
        if not isinstance(self.template.get("continue_final_message", False), (bool, str)):
            raise InputError(
                f"`continue_final_message` is True, False or a key of the last message; got a "
                f"{type(self.template['continue_final_message']).__name__}."
            )
        if not isinstance(self.template.get("variables", {}), Mapping):
            raise InputError(f"`variables` is a dict for the template; got {brief(self.template['variables'])}.")
        return self


def _check_dict(options: Any, key: str) -> dict[str, Any]:
    """Return the options of one kind's dict; raise `InputError` for another type and for another kind's option."""
    if not isinstance(options, Mapping | None):
        raise InputError(f"`{key}` is a dict of options; got a {type(options).__name__}.")
    names = {"images_kwargs": (*PIXEL_OPTIONS, *SETTING_OPTIONS), "text_kwargs": TEXT_OPTIONS}.get(key, VIDEO_OPTIONS)
    for name in options or {}:
        if name in NAMES and name not in names:
            raise InputError(f"`{name}` is no option of `{key}`, which takes {', '.join(names)}.")
    return dict(options or {})


def _pick(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if options.get(name) is not None}


def apply_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """Return the settings with a call's image or video options in place; raise `InputError` for a bad value."""
    settings = settings.with_limits(
        **{key: options[key] for key in ("min_pixels", "max_pixels", "size") if key in options}
    )
    fields = {
        field: check(options[name], name, InputError)
        for name, (field, check) in SETTING_OPTIONS.items()
        if name in options
    }
    if isinstance(settings, VideoSettings):
        fields |= {
            name: check(options[name], name, InputError) for name, check in FRAME_OPTIONS.items() if name in options
        }
        least, most = fields.get("min_frames", 0), fields.get("max_frames", settings.max_frames)
        if least > most:
            raise InputError(f"min_frames may not exceed max_frames; got {least} and {most}. Set both.")
    return replace(settings, **fields)


def array_layout(options: Mapping[str, Any], video: bool = False) -> str | None:
    """Return the array layout of a call (``"hwc"``, with `video` ``"thwc"`` …); None where the shape decides."""
    layout = options.get("layout", options.get("input_data_format"))
    if layout is None:
        return None
    layout = {"channels_first": "chw", "channels_last": "hwc"}.get(str(layout), str(layout)).removeprefix("t")
    return ("t" if video else "") + layout


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generation arguments, and what `prepare` takes: the processor's options and the keys of a prepared batch."""
    prepared = {name: value for name, value in options.items() if name in NAMES or name in BATCH_KEYS}
    if prepared.get("max_length") is not None and "truncation" not in prepared and "padding" not in prepared:
        raise InputError(
            "`max_length` is a prompt's, and goes with `truncation` or `padding`. An answer's length is max_new_tokens."
        )
    return {name: value for name, value in options.items() if name not in prepared}, prepared
