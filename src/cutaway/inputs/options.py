"""The processor's keyword arguments: which part each belongs to, and what they change of the preprocessing settings.

It knows names and types of options. It does not run anything.
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
from cutaway.inputs.validation import boolean, channels, positive_float, positive_int

Kind = TypeVar("Kind", bound=ImageSettings)

PIXELS = ("min_pixels", "max_pixels", "size", "layout", "input_data_format")
SWITCHES = {
    "do_resize": ("do_resize", boolean),
    "do_rescale": ("do_rescale", boolean),
    "do_normalize": ("do_normalize", boolean),
    "rescale_factor": ("rescale_factor", positive_float),
    "image_mean": ("mean", channels),
    "image_std": ("std", partial(channels, positive=True)),
}
"""Options that replace a setting: its field, and what checks the value."""
OF_CLIPS = {"cap_pixels_per_frame": boolean, "min_frames": positive_int, "max_frames": positive_int}
VIDEOS = ("fps", "num_frames", "do_sample_frames", "cap_pixels_per_frame", "min_frames", "max_frames")
TEMPLATE = ("add_generation_prompt", "tools", "add_vision_id", "enable_thinking", "chat_template", "variables")
TEXT = (
    "return_tensors",
    "padding",
    "padding_side",
    "truncation",
    "max_length",
    "nested_video_markers",
    "allow_control_tokens",
    "return_mm_token_type_ids",
)
OF_VIDEOS = (*PIXELS, *SWITCHES, *VIDEOS, "video_metadata")
KINDS = ("images_kwargs", "videos_kwargs", "text_kwargs")
NAMES = (*TEXT, *TEMPLATE, *PIXELS, *SWITCHES, *VIDEOS, *KINDS, "video_metadata")
"""Every keyword of `Processor.__call__` besides text, images and videos."""


@dataclass(frozen=True)
class Options:
    """A call's keyword arguments, sorted by the part they are for; an argument that is None is as if not given."""

    text: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    images: dict[str, Any] = field(default_factory=dict)
    videos: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def sort(cls, given: Mapping[str, Any]) -> Options:
        """Sorts keyword arguments. Pixel options hold for images and videos alike; `images_kwargs`, `videos_kwargs`
        and `text_kwargs` (dicts) are for one kind and win. `InputError` for an unknown name, with the nearest one.
        """
        flat = {key: value for key, value in given.items() if key not in KINDS}
        by_kind = {key: _of_kind(given.get(key), key) for key in KINDS}
        return cls(
            text=_pick({**flat, **by_kind["text_kwargs"]}, TEXT),
            template=_pick(flat, TEMPLATE),
            images=_pick({**flat, **by_kind["images_kwargs"]}, (*PIXELS, *SWITCHES)),
            videos=_pick({**flat, **by_kind["videos_kwargs"]}, OF_VIDEOS),
        )._checked({**flat, **by_kind["text_kwargs"], **by_kind["images_kwargs"], **by_kind["videos_kwargs"]})

    def _checked(self, given: Mapping[str, Any]) -> Options:
        for name in given:
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, 1)
                raise InputError(
                    f"the processor has no option {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else f"; its options are {', '.join(NAMES)}.")
                )
        tensors = self.text.get("return_tensors", "pt")
        if tensors != "pt":
            raise InputError(f"`return_tensors` is 'pt' (torch tensors, also when left out); got {tensors!r}.")
        for name, choices in (("padding_side", ("left", "right")), ("padding", (True, False, "longest", "max_length"))):
            if self.text.get(name, choices[0]) not in choices:
                raise InputError(f"`{name}` is one of {choices}; got {self.text[name]!r}.")
        if "max_length" in self.text:
            positive_int(self.text["max_length"], "max_length", InputError)
        elif self.text.get("truncation"):
            raise InputError("`truncation` cuts a row to `max_length` tokens, which was not given. Give both.")
        if not isinstance(self.template.get("variables", {}), Mapping):
            raise InputError(f"`variables` is a dict of names for the template; got {self.template['variables']!r}.")
        return self


def _of_kind(given: Any, key: str) -> dict[str, Any]:
    """The options of one kind's dict; `InputError` for no dict, and for an option that is another kind's."""
    if not isinstance(given, Mapping | None):
        raise InputError(f"`{key}` is a dict of options; got a {type(given).__name__}.")
    mine = {"images_kwargs": (*PIXELS, *SWITCHES), "text_kwargs": TEXT}.get(key, OF_VIDEOS)
    for name in given or {}:
        if name in NAMES and name not in mine:
            raise InputError(f"`{name}` is no option of `{key}`, which takes {', '.join(mine)}.")
    return dict(given or {})


def _pick(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) is not None}


def changed(settings: Kind, options: Mapping[str, Any]) -> Kind:
    """Settings with a call's pixel options and switches applied."""
    settings = settings.limited(**{key: options[key] for key in ("min_pixels", "max_pixels", "size") if key in options})
    switches = {
        ours: check(options[name], name, InputError) for name, (ours, check) in SWITCHES.items() if name in options
    }
    if isinstance(settings, VideoSettings):
        switches |= {
            name: check(options[name], name, InputError) for name, check in OF_CLIPS.items() if name in options
        }
        least, most = switches.get("min_frames", 0), switches.get("max_frames", settings.max_frames)
        if least > most:
            raise InputError(f"min_frames may not exceed max_frames, got {least} and {most}; set both")
    return replace(settings, **switches)


def layout(options: Mapping[str, Any], video: bool = False) -> str | None:
    """The array layout asked for, in the media modules' words; None when it is to be told from the shape."""
    asked = options.get("layout", options.get("input_data_format"))
    if asked is None:
        return None
    asked = {"channels_first": "chw", "channels_last": "hwc"}.get(str(asked), str(asked)).removeprefix("t")
    return ("t" if video else "") + asked


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generation arguments, and what `prepare` takes: the processor's options and the keys of a prepared batch."""
    prepared = {name: value for name, value in options.items() if name in NAMES or name in BATCH_KEYS}
    if prepared.get("max_length") is not None and "truncation" not in prepared and "padding" not in prepared:
        raise InputError(
            "`max_length` is a prompt's, and goes with `truncation` or `padding`. An answer's length is max_new_tokens."
        )
    return {name: value for name, value in options.items() if name not in prepared}, prepared
