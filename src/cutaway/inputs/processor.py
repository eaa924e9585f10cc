"""`Processor`: prompts or messages, images and videos in; `Inputs` out, as transformers' processor makes them.

    text ── messages.ChatTemplate ──► prompt ┐
    images= / videos= ── media ───► in order ├─ expand ──► ids, types ── complete ──► Inputs
    sizes ── image, video ──► grids, stamps  ┘                          (positions, geometry)
                      └─ after the limit is checked ──► patches

It knows the order of these steps and the files of a checkpoint's folder. It does not know weights.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import TEXT, Inputs
from cutaway.config import Config
from cutaway.errors import ConfigError, InputError, LimitError
from cutaway.inputs.batch.collate import build_inputs, cpu_tensors
from cutaway.inputs.geometry.layout import Grid, MediaInfo
from cutaway.inputs.image.patches import ImageBatch, Patches
from cutaway.inputs.media import arrange_images, arrange_videos, fill, is_batch
from cutaway.inputs.options import NAMES, PROMPT_ARGUMENTS, TEMPLATE_ARGUMENTS, Options, apply_options
from cutaway.inputs.settings import ImageSettings, VideoSettings
from cutaway.inputs.text.chat_template import ChatTemplate, Prompt
from cutaway.inputs.text.generated import RenderedPrompt, render_answers
from cutaway.inputs.text.messages import FROM_ARGUMENTS, is_messages, read_messages
from cutaway.inputs.text.placeholders import PlaceholderExpander, VideoPlan
from cutaway.inputs.text.tokenizer import Tokenizer, protect_nothing, unprotect
from cutaway.inputs.text.tool_schemas import read_tools
from cutaway.inputs.video.patches import VideoBatch
from cutaway.inputs.video.sampling import time_stamp
from cutaway.storage import read_json

Ids = tuple[list[int], list[int]]
"""A row's ids and token types."""


class Processor:
    """Turns what people have into what the model takes. Holds no state between calls.

    - `config`: the model's; `tokenizer`; `template`: its `ChatTemplate` or None.
    - `image_settings`, `video_settings`: how images and videos become patches; None when the folder does not say, and
      then text alone can be prepared.
    - `nested_video_markers`: keep the template's own vision start and end around a video's stamped grids (the prompt
      form of transformers 5.24) instead of the trained form, in which they are replaced.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        image_settings: ImageSettings | None = None,
        video_settings: VideoSettings | None = None,
        *,
        nested_video_markers: bool = False,
    ) -> None:
        """`ConfigError` when the preprocessing settings do not fit the vision encoder."""
        self.config, self.tokenizer, self.template = config, tokenizer, template
        self.image_settings, self.video_settings = image_settings, video_settings
        self.nested_video_markers = nested_video_markers
        self._expander = PlaceholderExpander(tokenizer, config)
        for settings in (image_settings, video_settings):
            if settings is not None:
                _check_settings(settings, config)

    @classmethod
    def from_folder(cls, folder: str | Path, config: Config, *, nested_video_markers: bool = False) -> Processor:
        """Reads tokenizer, chat template and preprocessing settings of a checkpoint's folder.

        `CheckpointError` for damaged or missing files (those of vision may be missing), `ConfigError` for settings that
        are not implemented.
        """
        folder = Path(folder)
        both = _read_settings(folder / "processor_config.json")
        image = _read_settings(folder / "preprocessor_config.json") or both.get("image_processor")
        video = _read_settings(folder / "video_preprocessor_config.json") or both.get("video_processor") or image
        return cls(
            config,
            Tokenizer.from_folder(folder, split_marks=config.split_marks),
            ChatTemplate.from_folder(folder),
            ImageSettings.from_config(image) if image else None,
            VideoSettings.from_config(video, whole_video=config.whole_video) if video else None,
            nested_video_markers=nested_video_markers,
        )

    @cpu_tensors()
    def __call__(self, text: Any, *, images: Any = None, videos: Any = None, **options: Any) -> Inputs:
        """`Inputs` of a prompt, of messages, or of a batch of either; tensors whether or not `return_tensors` is given.

        - `text`: a string, messages (a list of dicts), or a list of either. In a plain string every control token
          counts; in messages and in an unedited `Prompt` those that a user typed are text, unless
          `allow_control_tokens`.
        - `images`, `videos`: one, a flat list over the batch in order, or one list per row. See `read_image` and
          `prepare_video` for what each may be. Messages can carry their own; these fill the parts that name no source.
        - `video_metadata`: one per video. `fps`, `num_frames`, `do_sample_frames`, `min_pixels`, `max_pixels`, `size`
          and the like: see `cutaway.inputs.options`.
        - `padding_side`: ``"left"`` or ``"right"``; default: the tokenizer file's, else right. Generating from a batch
          needs left. A batch is always padded to its longest row, or to `max_length` with ``padding="max_length"``.
        - `truncation` with `max_length` cuts rows at the right end, and never through an image.
        - `add_generation_prompt`, `tools`, `add_vision_id`, `enable_thinking`, `chat_template` (a name), `variables` (a
          dict of more): for the chat template, when `text` is messages.

        Raises `InputError` for what cannot be used, `LimitError` when a row has more tokens than the model has
        positions (found from sizes, before any pixel is resized).
        """
        sorted_options = Options.sort(options)
        rows = self._rows(text, sorted_options)
        counts = [self._count(row) for row in rows]
        image_sources = fill("image", [c[0] for c in counts], [row.images for row in rows], arrange_images(images))
        video_sources = fill("video", [c[1] for c in counts], [row.videos for row in rows], arrange_videos(videos))
        return self._assemble(rows, image_sources, video_sources, sorted_options)

    def _rows(self, text: Any, options: Options) -> list[RenderedPrompt]:
        batch = list(text) if is_batch(text) else [text]
        if not batch:
            raise InputError("a batch has at least one prompt; got an empty list.")
        if options.template and not any(is_messages(entry) for entry in batch):
            raise InputError(
                f"{', '.join(options.template)}: for the chat template, and a prompt string has been through it. Give "
                f"messages, or give this to `prompt` or `apply_chat_template`."
            )
        return [self._row(entry, index, options) for index, entry in enumerate(batch)]

    def _row(self, text: Any, index: int, options: Options) -> RenderedPrompt:
        if is_messages(text):
            conversation = read_messages(text)
            typed = bool(options.text.get("allow_control_tokens"))
            protect = protect_nothing if typed else self.tokenizer.protect
            template, settings = self._template(), self._template_options(options.template)

            def render(messages: list[dict[str, Any]]) -> str:
                return template.render(replace(conversation, messages=messages), protect=protect, **settings).marked

            marked, answers = render_answers(conversation.messages, render, self.tokenizer)
            left_out = template.left_out(conversation, unprotect(marked), settings.get("tools"), settings["name"])
            if left_out:
                warnings.warn(f"The chat template leaves out {left_out}: the model sees none of it.", stacklevel=2)
            # placeholders that were typed are filled from `images=`, as in a string, where no part has its own source
            images, videos = (
                None if typed and all(entry is FROM_ARGUMENTS for entry in media) else media
                for media in (conversation.images, conversation.videos)
            )
            return RenderedPrompt(marked, images, videos, answers)
        if not isinstance(text, str):
            raise InputError(
                f"a prompt is a string or a list of messages (dicts with `role` and `content`); row {index} is a "
                f"{type(text).__name__}."
            )
        if not text:
            raise InputError(f"a prompt has at least one token; row {index} is empty.")
        return RenderedPrompt(text.marked if isinstance(text, Prompt) else protect_nothing(text))

    def _count(self, row: RenderedPrompt) -> tuple[int, int]:
        """How many image and video placeholders a sample has; those that the model wrote itself are text."""
        return self._expander.count("".join(piece for piece in row.pieces() if isinstance(piece, str)))

    def _ids(self, row: RenderedPrompt, grids: Iterator[Grid], plans: Iterator[VideoPlan], nested: bool) -> Ids:
        """A sample's ids and token types, placeholders expanded."""
        ids: list[int] = []
        types: list[int] = []
        for piece in row.pieces():
            if isinstance(piece, str):
                more, kinds = self._expander.ids(piece, grids, plans, nested)
            else:
                more, kinds = list(piece), [TEXT] * len(piece)
            ids += more
            types += kinds
        return ids, types

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise InputError(
                "This checkpoint has no chat template, so messages cannot be rendered. Write the prompt as a string."
            )
        return self.template

    def _template_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chat template's arguments from a call's options; refuse names that it does not read."""
        settings = dict(options)
        name = settings.pop("chat_template", None)
        variables = settings.pop("variables", {})
        settings["tools"] = read_tools(settings.get("tools"))
        reads = self._template().reads(bool(settings["tools"]), name)
        for variable in (*variables, *settings):
            if variable not in reads and (variable in variables or variable not in TEMPLATE_ARGUMENTS):
                near = difflib.get_close_matches(variable, (*reads, *NAMES, *PROMPT_ARGUMENTS), 1)
                raise InputError(
                    f"The chat template does not read {variable!r}, and no option has that name. "
                    + (f"Did you mean {near[0]!r}?" if near and near[0] != variable else "Leave it out.")
                )
        if settings.get("continue_final_message") and settings.setdefault("add_generation_prompt", False):
            raise InputError(
                "`continue_final_message` ends the prompt inside the last message, `add_generation_prompt` behind it. "
                "Give one."
            )
        return {"name": name, **self.tokenizer.special_tokens, **variables, **settings}

    def _assemble(
        self, rows: list[RenderedPrompt], image_sources: list[Any], video_sources: list[Any], options: Options
    ) -> Inputs:
        """The limit from sizes; then pixels, ids, padding and positions."""
        if options.videos.get("video_metadata") and not video_sources:
            raise InputError("`video_metadata` describes videos, and none was given. Leave it out, or give `videos`.")
        opened_images = (
            ImageBatch(image_sources, self._image_settings(options), options.images) if image_sources else None
        )
        opened_videos = (
            VideoBatch(video_sources, self._video_settings(options), options.videos) if video_sources else None
        )
        self._check_sizes(
            rows,
            opened_images.counts() if opened_images else [],
            opened_videos.counts() if opened_videos else [],
            options,
        )
        images, videos = (
            opened_images.patches() if opened_images else [],
            opened_videos.patches() if opened_videos else [],
        )
        grids = iter([patches.grid for patches in images])
        plans = iter([VideoPlan(video.grid, tuple(map(time_stamp, video.seconds))) for video in videos])
        nested = bool(options.text.get("nested_video_markers", self.nested_video_markers))
        expanded = [self._ids(row, grids, plans, nested) for row in rows]
        arrays = self._padded([self._cut(row, index, options) for index, row in enumerate(expanded)], options)
        arrays |= _pixels("pixel_values", "image_grid_thw", images, opened_images.rows if opened_images else None)
        arrays |= _pixels("pixel_values_videos", "video_grid_thw", videos)
        if videos and self.config.vision.tokens_per_second is not None and not self.config.timestamps:
            seconds = [video.seconds_per_grid for video in videos]
            arrays["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float32)
        sources = (
            [MediaInfo(patches.original_size) for patches in images],
            [MediaInfo(video.original_size, video.seconds) for video in videos],
        )
        return build_inputs(arrays, self.config, sources)

    def _image_settings(self, options: Options) -> ImageSettings:
        if self.image_settings is None:
            raise InputError(_no_settings("images", "preprocessor_config.json"))
        return apply_options(self.image_settings, options.images)

    def _video_settings(self, options: Options) -> VideoSettings:
        if self.video_settings is None:
            raise InputError(_no_settings("videos", "video_preprocessor_config.json"))
        return apply_options(self.video_settings, options.videos)

    def _check_sizes(self, rows: list[RenderedPrompt], images: list[int], videos: list[int], options: Options) -> None:
        """Raises `LimitError` when a row's text and images need more positions than the model has."""
        if not images and not videos:
            return
        image_counts, video_counts = iter(images), iter(videos)
        for index, row in enumerate(rows):
            image_count, video_count = self._count(row)
            vision = sum(next(image_counts) for _ in range(image_count)) + sum(
                next(video_counts) for _ in range(video_count)
            )
            encoded = [self.tokenizer.encode_marked(p) if isinstance(p, str) else p for p in row.pieces()]
            text = sum(map(len, encoded)) - image_count - video_count
            if not options.text.get("truncation"):
                self._check_length(text + vision, vision, index)

    def _check_length(self, length: int, vision: int, row: int) -> None:
        limit = self.config.text.max_positions
        if length > limit:
            raise LimitError(
                f"this model takes at most {limit} tokens in a row; row {row} has {length}, of which {vision} are of "
                f"images and videos. Lower `max_pixels` (or `fps`, `num_frames`), or shorten the text."
            )

    def _cut(self, row: Ids, index: int, options: Options) -> Ids:
        """A row's ids and types, truncated if that was asked; `InputError` when the cut would go through an image."""
        (ids, types), most = row, options.text.get("max_length")
        if most is not None and len(ids) > most:
            if not options.text.get("truncation"):
                raise LimitError(
                    f"row {index} has {len(ids)} tokens and `max_length` is {most}. Pass `truncation=True` to cut the "
                    f"text, or raise `max_length`."
                )
            lost = sum(kind != TEXT for kind in types[most:])
            if lost:
                raise InputError(
                    f"truncating row {index} from {len(ids)} to {most} tokens would cut {lost} of its "
                    f"{sum(kind != TEXT for kind in types)} image and video tokens. Raise `max_length`, lower "
                    f"`max_pixels`, or put the images first."
                )
            ids, types = ids[:most], types[:most]
        self._check_length(len(ids), sum(kind != TEXT for kind in types), index)
        return ids, types

    def _padded(self, rows: list[Ids], options: Options) -> dict[str, Tensor]:
        """Ids, mask and types of all rows as rectangles."""
        length = max(len(ids) for ids, _ in rows)
        if options.text.get("padding") == "max_length":
            if "max_length" not in options.text:
                raise InputError("`padding='max_length'` needs `max_length`, the length to pad to.")
            length = max(length, int(options.text["max_length"]))
        left = (options.text.get("padding_side") or self.tokenizer.padding_side or "right") == "left"
        fill = self._fill_id() if any(len(ids) < length for ids, _ in rows) else 0
        shape = (len(rows), length)
        made = {
            "input_ids": torch.full(shape, fill, dtype=torch.int64),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
            "mm_token_type_ids": torch.zeros(shape, dtype=torch.int64),
        }
        for index, (ids, types) in enumerate(rows):
            position = slice(length - len(ids), length) if left else slice(0, len(ids))
            made["input_ids"][index, position] = torch.tensor(ids)
            made["attention_mask"][index, position] = 1
            made["mm_token_type_ids"][index, position] = torch.tensor(types)
        return made

    def _fill_id(self) -> int:
        for id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if id is not None:
                return id
        raise InputError("rows of different length need a pad token, and tokenizer_config.json names none.")

    def apply_chat_template(
        self,
        messages: Any,
        *,
        tokenize: bool = False,
        images: Any = None,
        videos: Any = None,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        """The prompt of messages (a `Prompt`, or a list of them for a list of messages).

        With `tokenize` the `Inputs`, images and videos of the messages included; with `return_dict` false their
        `input_ids` alone. Options are those of the call, also as a dict `processor_kwargs`; any other name must be a
        variable that the template reads. `add_generation_prompt` is true unless given, or unless
        `continue_final_message` is. Raises `InputError` for a name that neither takes.
        """
        extra = options.pop("processor_kwargs", None) or {}
        if not isinstance(extra, Mapping) or any(name not in NAMES for name in extra):
            Options.sort({**(extra if isinstance(extra, Mapping) else {"processor_kwargs": extra})})  # names the option
        options = {**options, **extra}
        variables = {name: value for name, value in options.items() if name not in NAMES}
        known = {name: value for name, value in options.items() if name in NAMES}
        if variables:
            known["variables"] = {**Options.sort(known).template.get("variables", {}), **variables}
        if tokenize:
            inputs = self(messages, images=images, videos=videos, **known)
            return inputs if return_dict else inputs.input_ids
        rows = self._rows(messages, Options.sort(known))
        prompts = [Prompt(row.marked) for row in rows]
        return prompts if is_batch(messages) else prompts[0]

    def prompt(
        self, text: str, images: int = 0, videos: int = 0, *, system: str | None = None, **options: Any
    ) -> Prompt:
        """The chat template's text for one question about so many images and videos, which stand before it."""
        for name, count in (("images", images), ("videos", videos)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise InputError(
                    f"`{name}` of a prompt is how many there are, a number from 0; got {type(count).__name__}. "
                    f"Give the {name} themselves where the prompt is used."
                )
        media = [{"type": "image"}] * images + [{"type": "video"}] * videos
        content = [*media, {"type": "text", "text": text}] if media else text
        messages = [{"role": "system", "content": system}] if system is not None else []
        return self.apply_chat_template([*messages, {"role": "user", "content": content}], **options)

    def complete(self, mapping: Mapping[str, Any]) -> Inputs:
        """`Inputs` from any mapping with transformers' keys; see `cutaway.inputs.batch.collate`."""
        return mapping if isinstance(mapping, Inputs) else build_inputs(mapping, self.config)


def _pixels(rows: str, grids: str, patches: Sequence[Patches], whole: Tensor | None = None) -> dict[str, Tensor]:
    """The two arrays of a kind, items in order; none when there are no items. `whole` has the rows of all."""
    if not patches:
        return {}
    return {
        rows: torch.cat([item.rows for item in patches]) if whole is None else whole,
        grids: torch.tensor([item.grid for item in patches], dtype=torch.int64),
    }


def _no_settings(kind: str, file: str) -> str:
    return (
        f"this checkpoint's folder does not say how {kind} are prepared: it has no {file}. Copy the file from the "
        f"original checkpoint, or give text alone."
    )


def _check_settings(settings: ImageSettings, config: Config) -> None:
    vision = config.vision
    pairs = {
        "patch_size": (settings.patch_size, vision.patch_size),
        "merge_size": (settings.merge_size, vision.spatial_merge_size),
        "temporal_patch_size": (settings.temporal_patch_size, vision.temporal_patch_size),
    }
    for name, (files, model) in pairs.items():
        if files != model:
            raise ConfigError(
                f"`{name}` is {files} in the preprocessor's file and {model} in config.json's vision_config. The files "
                f"are not of one checkpoint."
            )


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a settings file; nothing where there is no file."""
    return read_json(path) if path.exists() else {}
