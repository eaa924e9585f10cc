"""The processor's keyword arguments: which part each belongs to, and what they change of the preprocessing settings.

It knows names and types of options. It does not run anything.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cutaway.errors import InputError
from cutaway.inputs.settings import ImageSettings, VideoSettings

Kind = TypeVar("Kind", bound=ImageSettings)

PIXELS = ("min_pixels", "max_pixels", "size", "layout", "input_data_format")
SWITCHES = {
    "do_resize": "do_resize",
    "do_rescale": "do_rescale",
    "do_normalize": "do_normalize",
    "rescale_factor": "rescale_factor",
    "image_mean": "mean",
    "image_std": "std",
}
CLIPS = ("fps", "num_frames", "do_sample_frames", "cap_pixels_per_frame", "min_frames", "max_frames")
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
KINDS = ("images_kwargs", "videos_kwargs", "text_kwargs")
NAMES = (*TEXT, *TEMPLATE, *PIXELS, *SWITCHES, *CLIPS, *KINDS, "video_metadata")
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
        """Sorts keyword arguments. Pixel options hold for pictures and clips alike; `images_kwargs`, `videos_kwargs`
        and `text_kwargs` (dicts) are for one kind and win. `InputError` for an unknown name, with the nearest one.
        """
        flat = {key: value for key, value in given.items() if key not in KINDS}
        by_kind = {key: dict(given.get(key) or {}) for key in KINDS}
        return cls(
            text=_pick({**flat, **by_kind["text_kwargs"]}, TEXT),
            template=_pick(flat, TEMPLATE),
            images=_pick({**flat, **by_kind["images_kwargs"]}, (*PIXELS, *SWITCHES)),
            videos=_pick({**flat, **by_kind["videos_kwargs"]}, (*PIXELS, *SWITCHES, *CLIPS, "video_metadata")),
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
        return self


def _pick(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) is not None}


def changed(settings: Kind, options: Mapping[str, Any]) -> Kind:
    """Settings with a call's pixel options and switches applied."""
    settings = settings.limited(**{key: options[key] for key in ("min_pixels", "max_pixels", "size") if key in options})
    switches = {ours: options[name] for name, ours in SWITCHES.items() if name in options}
    if isinstance(settings, VideoSettings):
        names = ("cap_pixels_per_frame", "min_frames", "max_frames")
        switches |= {name: options[name] for name in names if name in options}
    return replace(settings, **switches)


def layout(options: Mapping[str, Any], clip: bool = False) -> str | None:
    """The array layout asked for, in the media modules' words; None when it is to be told from the shape."""
    asked = options.get("layout", options.get("input_data_format"))
    if asked is None:
        return None
    asked = {"channels_first": "chw", "channels_last": "hwc"}.get(str(asked), str(asked)).removeprefix("t")
    return ("t" if clip else "") + asked
