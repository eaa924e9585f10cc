"""`Model`: a model that can be asked, read and edited: config, processor, module tree and runs in one object.

    load(name) ─► checkpoint: folder, config, weights ─► model: tree ─► Model
    random(size) ─────────── config, weights drawn ────► model: tree ─► Model

    Model.prepare(prompt, images, videos) ─► Inputs ─► logits, trace, run, generate, ask

Every other name of a `Model` is the tree's: ``model.layers[3].layer_output`` is read and assigned alike. What a value
is, how an image becomes patches and how a token is chosen is the work of other modules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config, read_config_file
from cutaway.checkpoint.files import has_weights, locate
from cutaway.checkpoint.random_weights import draw_weights
from cutaway.checkpoint.shrink import shrunk
from cutaway.checkpoint.weights import LoadReport, Progress, check_depth, choose_device, choose_dtype, load_weights
from cutaway.config import Config
from cutaway.errors import InputError, Unavailable
from cutaway.generate.conversation import Chat, Message
from cutaway.generate.loop import Generation, generate
from cutaway.generate.loop import stream as stream_text
from cutaway.generate.settings import Settings
from cutaway.generation import Answer, GenerationForwards
from cutaway.inputs.batch.collate import batch_of_keywords, build_inputs, check_mask
from cutaway.inputs.media import as_messages
from cutaway.inputs.options import NAMES, split_options
from cutaway.inputs.processor import Processor
from cutaway.inputs.text.byte_tokenizer import byte_level_processor
from cutaway.inputs.text.chat_template import Prompt
from cutaway.inputs.text.tokenizer import Tokenizer
from cutaway.model.build import build
from cutaway.model.vlm import VLM
from cutaway.trace.traceable import Traceable

TASKS = ("image-text-to-text", "text-generation")
"""With images, or the text model alone."""


class Model(Traceable):
    """A Qwen-VL model with its processor, made by `load` and `random`; `Traceable` gives `trace` and `run`.

    - `root`: the module tree; `config`; `task`.
    - `tokenizer`, and on a load with images `processor`.
    - `folder`: the checkpoint's folder; `report`: what the load did. None for random weights.
    - `generation_config`: the content of `generation_config.json`, empty where there is none.

    Other names are the tree's: `layers`, `vision`, `projector`, `logits`, `num_layers`, `hidden_size`, `state_dict` …
    """

    OWN = frozenset({"root", "config", "task", "folder", "report", "generation_config", "_processor"})

    def __init__(
        self,
        root: VLM,
        processor: Processor | None,
        *,
        task: str = TASKS[0],
        folder: Path | None = None,
        report: LoadReport | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.root, self.config, self.task = root, root.config, task
        self.folder, self.report, self.generation_config = folder, report, dict(generation_config or {})
        self._processor = processor

    # -- what belongs to it

    @property
    def processor(self) -> Processor:
        """What makes `Inputs` of prompts, images and videos. Raises `Unavailable` on a text-only load."""
        if self.task == "text-generation":
            raise Unavailable(
                '`processor` is unavailable: this model was loaded with task="text-generation", without images. Use '
                '`tokenizer`, or load it with task="image-text-to-text".'
            )
        return self._require_processor()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self._require_processor().tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are; `meta` when there are none."""
        return self.root.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.root.lm_head.weight.dtype

    def require_weights(self, what: str) -> None:
        """Raises `Unavailable` when the model was built without weights."""
        if self.device.type == "meta":
            raise Unavailable(
                f"{what} is unavailable: the model was built with dispatch=False, its tree and sizes without weights. "
                f"Load it without dispatch=False."
            )

    def _require_processor(self) -> Processor:
        if self._processor is None:
            raise Unavailable(
                "There is no tokenizer: this model's folder has none, or it was built from a config alone. Give ids "
                "(`{'input_ids': ...}`), or load it from a folder with a tokenizer.json."
            )
        return self._processor

    # -- from what people have to what the model takes

    def prompt(self, text: str, images: int = 0, videos: int = 0, **options: Any) -> Prompt:
        """The chat template's text for a question about so many images and videos, up to where the answer begins."""
        return self._require_processor().prompt(text, images, videos, **options)

    def prepare(self, prompt: Any = None, images: Any = None, videos: Any = None, **options: Any) -> Inputs:
        """`Inputs` on the model's device, of whatever a run takes.

        `prompt` is a prompt string, a list of them (a batch), messages or a list of conversations, `Inputs`, any
        mapping with the keys of transformers' processor, also given as ``**inputs``, or ids [batch seq] or [seq].
        `images`, `videos` and `options` are those of the processor, and belong to prompts and messages alone. Raises
        `InputError` before any compute.
        """
        if prompt is None:
            prompt, options = batch_of_keywords(options)
        if isinstance(prompt, Tensor):
            prompt = {"input_ids": prompt}
        if isinstance(prompt, Mapping):
            beside = {"images": images, "videos": videos, **options}
            extra = [name for name, value in beside.items() if value is not None]
            if extra:
                raise InputError(
                    f"A prepared batch has its images and settings inside: it cannot take {', '.join(extra)} as "
                    f"well. Give a prompt string with them, or the batch alone."
                )
            inputs = prompt if isinstance(prompt, Inputs) else build_inputs(prompt, self.config)
            check_mask(inputs.attention_mask)
        else:
            self._refuse_images(images, videos)
            inputs = self._require_processor()(prompt, images=images, videos=videos, **options)
        self._refuse_images(inputs.pixel_values, inputs.pixel_values_videos)
        device = self.device
        return inputs if device.type == "meta" else inputs.to(device)

    def _refuse_images(self, images: Any, videos: Any) -> None:
        if self.task == "text-generation" and (images is not None or videos is not None):
            raise InputError(
                'This model was loaded with task="text-generation", without its vision encoder, and cannot take '
                'images or videos. Load it with task="image-text-to-text".'
            )

    # -- running

    def __call__(
        self, prompt: Any = None, *, images: Any = None, videos: Any = None, grad: bool = False, **options: Any
    ) -> Tensor:
        """Logits [batch seq vocab] of a prompt, or of anything that `prepare` takes, also as ``model(**inputs)``.

        With `grad` the forward records gradients.
        """
        self.require_weights("The forward")
        inputs = self.prepare(prompt, images, videos, **options)
        with torch.set_grad_enabled(grad):
            return self.root(inputs)

    def input_values(self, inputs: Inputs) -> dict[str, Any]:
        """The values that come off the inputs, by address: readable at any moment of a run.

        They are copies, made when they are read: what a body does to them reaches neither the forward nor the batch,
        which may be the caller's.
        """
        values: dict[str, Any] = {
            "input_ids": lambda: inputs.input_ids.clone(),
            "attention_mask": lambda: inputs.attention_mask.clone(),
            "position_ids": lambda: inputs.position_ids.clone(),
            "input_size": inputs.input_ids.shape,
        }
        if self.task != "text-generation":
            values["vision.image_token_mask"] = lambda: inputs.mm_token_type_ids == IMAGE
            values["vision.video_token_mask"] = lambda: inputs.mm_token_type_ids == VIDEO
        return values

    # -- answers

    def settings(self, **arguments: Any) -> Settings:
        """How an answer is chosen: `generation_config.json`, the tokenizer's end token, and the arguments over both."""
        base = dict(self.generation_config)
        if self._processor is not None:
            for key in ("eos_token_id", "pad_token_id"):
                if base.get(key) is None:
                    base[key] = getattr(self._processor.tokenizer, key)
        return Settings.from_config(base, **arguments)

    @overload
    def ask(
        self,
        question: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        system: str | None = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> str: ...

    @overload
    def ask(
        self,
        question: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        system: str | None = None,
        stream: Literal[True],
        **options: Any,
    ) -> Iterator[str]: ...

    def ask(
        self,
        question: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        system: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> str | Iterator[str]:
        """The answer to a question about images and videos; with `stream` an iterator of its pieces.

        `question` is a text, messages, or anything that `prepare` takes, also as ``ask(**inputs)``. `options` are
        generation arguments (`max_new_tokens`, `temperature`, `seed` …) and the processor's (`max_pixels`, `fps` …).
        """
        self.require_weights("An answer")
        arguments, prepared = split_options(options)
        settings = self.settings(**arguments)
        if isinstance(question, str):
            self._refuse_images(images, videos)
            question, images, videos = as_messages(question, images, videos, system), None, None
        elif system is not None:
            raise InputError("`system` goes with a question in words; put a system message into the messages instead.")
        inputs = self.prepare(question, images, videos, **prepared)
        if inputs.input_ids.shape[0] != 1:
            raise InputError(
                f"`ask` answers one question; got {inputs.input_ids.shape[0]}. Use `generate(...).texts` for many."
            )
        if stream:
            return stream_text(self.root, Generation(self.root, inputs, settings, tokenizer=self.tokenizer))
        return generate(self.root, inputs, settings, tokenizer=self.tokenizer).text

    def chat(
        self, *, system: str | None = None, messages: Sequence[Message] = (), reuse: bool = True, **options: Any
    ) -> Chat:
        """A conversation, to which `ask` adds one turn after another, with images and videos in any of them.

        It begins with a `system` message or with earlier `messages`. `options` are those of `ask`, for all turns;
        `reuse=False` reads the whole conversation again at every turn instead of keeping its cache.
        """
        self.require_weights("A conversation")
        arguments, prepared = split_options(options)
        if system is not None and messages:
            raise InputError(
                "A conversation begins with `system` or with `messages`; put the system message into them."
            )
        return Chat(
            self.root,
            self.settings(**arguments),
            self.tokenizer,
            prepare=functools.partial(self.prepare, **prepared),
            user_turn=as_messages,
            messages=messages if system is None else [{"role": "system", "content": system}],
            media_options=NAMES,
            reuse=reuse,
        )

    def generate(
        self,
        prompt: Any = None,
        images: Any = None,
        videos: Any = None,
        *,
        edit: Mapping[str, Any] | None = None,
        when: Any = "all",
        grad: bool = False,
        **options: Any,
    ) -> Answer:
        """Continue a prompt, or anything else that `prepare` takes; a list of prompts is padded on the left.

        The `Answer` runs when its `text`, `texts`, `ids` or `result` is read. Opened in a `with` it is stepped, and
        each step can be read and edited. `edit` has changes by address or pattern, made at the steps of `when`.
        `options` are generation arguments and the processor's, as for `ask`.
        """
        self.require_weights("Generation")
        arguments, prepared = split_options(options)
        settings = self.settings(**arguments)
        if prompt is not None and not isinstance(prompt, Mapping | Tensor):
            prepared.setdefault("padding_side", "left")
        inputs = self.prepare(prompt, images, videos, **prepared)
        tokenizer = None if self._processor is None else self.tokenizer
        forwards = GenerationForwards(self.root, Generation(self.root, inputs, settings, tokenizer=tokenizer))
        return Answer(
            self.root,
            forwards,
            grad=grad,
            edits=edit,
            when=when,
            input_values=lambda: self.input_values(forwards.batch),
            attributes={"geometry": inputs.geometry},
        )


def load(
    name: str | Path,
    *,
    task: str = TASKS[0],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    attn_implementation: str = "sdpa",
    dispatch: bool = True,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """A model from the bundled ``"nano"``, a folder, or a hub id such as ``"Qwen/Qwen3-VL-4B-Instruct"``.

    - `task`: ``"text-generation"`` loads the text model alone; every vision value then is `Unavailable`.
    - `dtype`: ``"auto"`` keeps the checkpoint's; or a torch dtype or its name.
    - `device`: default the GPU if torch has one, else the CPU.
    - `attn_implementation`: ``"sdpa"``, or ``"eager"`` to compute every pattern step by step, or ``"varlen"`` to pack
      padded batches and images of many sizes, in half precision on CUDA.
    - `dispatch`: False builds the tree on `meta` from the config alone: names and sizes, no weights. A published size
      such as ``"Qwen3-VL-2B"`` needs no files then.
    - `revision`: branch, tag or commit of a hub id. `progress`: called with bytes read and in all.

    Raises `CheckpointError`, `ConfigError` or `InputError` before weights are read, with what to do.
    """
    if task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, not {task!r}.")
    text_only = task == "text-generation"
    if not dispatch and "/" not in str(name) and not Path(name).exists() and sizes.known(str(name)):
        return Model(_tree(read_config(sizes.published(str(name))), attn_implementation, text_only), None, task=task)
    folder = locate(name, revision, weights=False)  # a model that cannot be run is refused before it is fetched
    config = read_config(folder, text_only=text_only)
    if dispatch and has_weights(folder):
        check_depth(folder, config, text_only=text_only)
    processor = _processor_of(folder, config)
    root, report = _tree(config, attn_implementation, text_only), None
    if dispatch:
        to, folder = choose_device(device), locate(name, revision)
        number_type = choose_dtype(dtype, config, folder)
        report = load_weights(
            root, folder, config, dtype=number_type, device=to, text_only=text_only, progress=progress
        )
    file = folder / "generation_config.json"
    generation = read_config_file(file) if file.is_file() else None
    return Model(root, processor, task=task, folder=folder, report=report, generation_config=generation)


def random(
    size: str | Mapping[str, Any],
    *,
    small: bool = False,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    seed: int = 0,
    tokenizer: str | Path | None = None,
    attn_implementation: str = "sdpa",
) -> Model:
    """A model with random weights, of a published size (``"Qwen3-VL-2B"``) or of the mapping of a `config.json`.

    With `small` it has every part of that model, each cut down to about a million weights in all.
    The weights are large enough that every part matters; the same `seed` gives the same ones. `tokenizer` is a folder
    with a tokenizer for this config; without it text is split into bytes. `dtype` ``"auto"`` is the config's, else
    float32. For measuring, for tests, and for trying what a size takes.
    """
    raw = size if isinstance(size, Mapping) else sizes.published(size)
    config = read_config(shrunk(raw) if small else raw)
    number_type = choose_dtype(dtype, config)
    processor = byte_level_processor(config, tokenizer)
    root = _tree(config, attn_implementation, text_only=False)
    draw_weights(root, config, dtype=number_type, device=choose_device(device), seed=seed)
    return Model(root, processor)


def _tree(config: Config, attn_implementation: str, text_only: bool) -> VLM:
    with torch.device("meta"):
        return build(config, attn_implementation=attn_implementation, text_only=text_only)


def _processor_of(folder: Path, config: Config) -> Processor | None:
    """The folder's processor; None for weights without a tokenizer, which can still be given ids."""
    if not any((folder / file).is_file() for file in ("tokenizer.json", "vocab.json")):
        return None
    return Processor.from_folder(folder, config)
