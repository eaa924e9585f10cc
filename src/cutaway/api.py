"""`Model`: a model that can be asked, read and edited: config, processor, module tree and runs in one object.

    load(name) ─► checkpoint: folder, config, weights ─► model: tree ─► Model
    random(size) ─────────── config, weights drawn ────► model: tree ─► Model

    Model.prepare(prompt, images, videos) ─► Inputs ─► logits, trace, run, generate, ask

Every name that is not the model's own is the tree's: ``model.layers[3].layer_output`` is a value of the model, read
and assigned alike. What a value is, how an image becomes patches and how a token is chosen is other modules' work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.checkpoint import published_sizes as sizes
from cutaway.checkpoint.config_reader import read_config, read_config_file
from cutaway.checkpoint.files import locate
from cutaway.checkpoint.random_weights import draw_weights
from cutaway.checkpoint.shrink import shrunk
from cutaway.checkpoint.weights import LoadReport, Progress, choose_device, choose_dtype, load_weights
from cutaway.config import Config
from cutaway.errors import InputError, Unavailable
from cutaway.generate import loop
from cutaway.generate.settings import Settings
from cutaway.generation import Answer, Forwards
from cutaway.inputs.batch.collate import build_inputs
from cutaway.inputs.options import NAMES as PROCESSOR_OPTIONS
from cutaway.inputs.processor import Processor
from cutaway.inputs.question import as_messages
from cutaway.inputs.text.byte_tokenizer import byte_level_processor
from cutaway.inputs.text.tokenizer import Tokenizer
from cutaway.model.build import build
from cutaway.model.vlm import VLM
from cutaway.trace.listing import tree
from cutaway.trace.traceable import Traceable

TASKS = ("image-text-to-text", "text-generation")
"""With images, or the text model alone."""


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    - `folder`: the checkpoint's, None for random weights.
    - `report`: what the load did, None where no weights were read.
    - `generation_config`: the content of `generation_config.json`, empty where there is none.
    """

    folder: Path | None = None
    report: LoadReport | None = None
    generation_config: Mapping[str, Any] | None = None


class Model(Traceable):
    """A model with everything that belongs to it, made by `load` and `random`; `Traceable` gives `trace` and `run`.

    - `root`: the module tree; `config`; `task`; `origin`.
    - `tokenizer`, and on a load with images `processor`.

    Other names are the tree's: `layers`, `vision`, `projector`, `logits`, `num_layers`, `hidden_size`, `state_dict` …
    """

    _OWN = frozenset({"root", "config", "task", "origin", "_processor"})

    def __init__(self, root: VLM, processor: Processor | None, *, task: str = TASKS[0], origin: Origin | None = None):
        self.root, self.config, self.task = root, root.config, task
        self.origin = origin or Origin()
        self._processor = processor

    # -- names: the model's own first, then the tree's

    def __getattr__(self, name: str) -> Any:
        if name in Model._OWN or (name.startswith("__") and name.endswith("__")):  # while a copy is being made
            raise AttributeError(name)
        found = getattr(self.root, name)
        return self._itself(found) if inspect.ismethod(found) and found.__self__ is self.root else found

    def _itself(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the tree; where it returns the tree, as `to` and `eval` do, this model is returned instead."""

        @functools.wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return self if found is self.root else found

        return called

    def __setattr__(self, name: str, new: Any) -> None:
        if name in Model._OWN:
            object.__setattr__(self, name, new)
        else:
            setattr(self.root, name, new)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.root)})

    def __repr__(self) -> str:
        return tree(self.root)

    # -- what belongs to it

    @property
    def processor(self) -> Processor:
        """What makes `Inputs` of prompts, images and videos. Raises `Unavailable` on a text-only load."""
        if self.task == "text-generation":
            raise Unavailable(
                '`processor` is unavailable: this model was loaded with task="text-generation", without images. Use '
                '`tokenizer`, or load it with task="image-text-to-text".'
            )
        return self._prepares()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self._prepares().tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are; `meta` when there are none."""
        return self.root.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.root.lm_head.weight.dtype

    @property
    def report(self) -> LoadReport | None:
        """What the load did; None where no weights were read."""
        return self.origin.report

    def require_weights(self, what: str) -> None:
        """Raises `Unavailable` when the model was built without weights."""
        if self.device.type == "meta":
            raise Unavailable(
                f"{what} is unavailable: the model was built with dispatch=False, its tree and sizes without weights. "
                f"Load it without dispatch=False."
            )

    def _prepares(self) -> Processor:
        if self._processor is None:
            raise Unavailable(
                "There is no tokenizer: this model's folder has none, or it was built from a config alone. Give ids "
                "(`{'input_ids': ...}`), or load it from a folder with a tokenizer.json."
            )
        return self._processor

    # -- from what people have to what the model takes

    def prompt(self, text: str, images: int = 0, videos: int = 0, **options: Any) -> str:
        """The chat template's text for a question about so many images and videos, the answer opened."""
        return self._prepares().prompt(text, images, videos, **options)

    def prepare(self, prompt: Any, images: Any = None, videos: Any = None, **options: Any) -> Inputs:
        """`Inputs` on the model's device, of whatever a run takes.

        `prompt` is a prompt string, a list of them (a batch), messages or a list of conversations, `Inputs`, any
        mapping with the keys of transformers' processor, or ids [batch seq] or [seq]. `images`, `videos` and `options`
        are those of the processor, and belong to prompts and messages alone. Raises `InputError` before any compute.
        """
        if isinstance(prompt, Tensor):
            prompt = {"input_ids": prompt}
        if isinstance(prompt, Mapping):
            given = {"images": images, "videos": videos, **options}
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                raise InputError(
                    f"A prepared batch has its images and settings inside: it cannot take {', '.join(extra)} as "
                    f"well. Give a prompt string with them, or the batch alone."
                )
            inputs = prompt if isinstance(prompt, Inputs) else build_inputs(prompt, self.config)
        else:
            self._refuse_images(images, videos)
            inputs = self._prepares()(prompt, images=images, videos=videos, **options)
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
        inputs = (
            self.prepare(options, images, videos) if prompt is None else self.prepare(prompt, images, videos, **options)
        )
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

    def settings(self, **given: Any) -> Settings:
        """How an answer is chosen: `generation_config.json`, the tokenizer's end token, and the arguments over both."""
        base = dict(self.origin.generation_config or {})
        if self._processor is not None:
            for key in ("eos_token_id", "pad_token_id"):
                if base.get(key) is None:
                    base[key] = getattr(self._processor.tokenizer, key)
        return Settings.from_config(base, **given)

    def ask(
        self,
        question: Any,
        images: Any = None,
        videos: Any = None,
        *,
        system: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> str | Iterator[str]:
        """The answer to a question about images and videos, or to messages; with `stream` an iterator of its pieces.

        `options` are generation arguments (`max_new_tokens`, `temperature`, `seed` …) and the processor's
        (`max_pixels`, `fps` …).
        """
        self.require_weights("An answer")
        chosen, prepared = _sorted(options)
        settings = self.settings(**chosen)
        if isinstance(question, str):
            self._refuse_images(images, videos)
            inputs = self.prepare(as_messages(question, images, videos, system), **prepared)
        elif system is not None:
            raise InputError("`system` goes with a question in words; put a system message into the messages instead.")
        else:
            inputs = self.prepare(question, images, videos, **prepared)
        if inputs.input_ids.shape[0] != 1:
            raise InputError(
                f"`ask` answers one question; here are {inputs.input_ids.shape[0]}. Ask them one by one, or together: "
                f"`generate(...).texts`."
            )
        if stream:
            return loop.stream(self.root, inputs, settings, tokenizer=self.tokenizer)
        return loop.run(self.root, inputs, settings, tokenizer=self.tokenizer).text

    def generate(
        self,
        prompt: Any,
        images: Any = None,
        videos: Any = None,
        *,
        edit: Mapping[str, Any] | None = None,
        when: Any = "all",
        grad: bool = False,
        **options: Any,
    ) -> Answer:
        """Continues a prompt, or anything else that `prepare` takes; a batch is padded on the left.

        The `Answer` runs when its `text`, `texts`, `ids` or `result` is first asked for. Opened in a `with` it is
        stepped, and each step can be read and edited. `edit` has changes by address or pattern, made at the steps of
        `when`. `options` are generation arguments and the processor's, as for `ask`.
        """
        self.require_weights("Generation")
        chosen, prepared = _sorted(options)
        settings = self.settings(**chosen)
        if not isinstance(prompt, Mapping | Tensor):
            prepared.setdefault("padding_side", "left")
        inputs = self.prepare(prompt, images, videos, **prepared)
        tokenizer = None if self._processor is None else self.tokenizer
        forwards = Forwards(self.root, loop.Generation(self.root, inputs, settings, tokenizer=tokenizer))
        given: dict[str, Any] = {"edits": edit, "when": when, "attributes": {"geometry": inputs.geometry}}
        return Answer(self.root, forwards, grad=grad, input_values=lambda: self.input_values(forwards.batch), **given)


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
    if not dispatch and _is_published_size(name):
        return Model(_tree(read_config(sizes.published(str(name))), attn_implementation, text_only), None, task=task)
    folder = locate(name, revision, weights=False)  # a model that cannot be run is refused before it is fetched
    config = read_config(folder)
    processor = _processor_of(folder, config)
    root, report = _tree(config, attn_implementation, text_only), None
    if dispatch:
        place, folder = choose_device(device), locate(name, revision)
        chosen = choose_dtype(dtype, config, folder)
        report = load_weights(root, folder, config, dtype=chosen, device=place, text_only=text_only, progress=progress)
    generation = folder / "generation_config.json"
    origin = Origin(folder, report, read_config_file(generation) if generation.is_file() else None)
    return Model(root, processor, task=task, origin=origin)


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
    given = size if isinstance(size, Mapping) else sizes.published(size)
    config = read_config(shrunk(given) if small else given)
    chosen = choose_dtype(dtype, config)
    processor = byte_level_processor(config, tokenizer)
    root = _tree(config, attn_implementation, text_only=False)
    draw_weights(root, config, dtype=chosen, device=choose_device(device), seed=seed)
    return Model(root, processor)


def _is_published_size(name: str | Path) -> bool:
    """Whether the name is a size in words, neither a folder nor a hub id."""
    return "/" not in str(name) and not Path(name).exists() and sizes.known(str(name))


def _tree(config: Config, attn_implementation: str, text_only: bool) -> VLM:
    with torch.device("meta"):
        return build(config, attn_implementation=attn_implementation, text_only=text_only)


def _processor_of(folder: Path, config: Config) -> Processor | None:
    """The folder's processor; None for weights without a tokenizer, which can still be given ids."""
    if not any((folder / file).is_file() for file in ("tokenizer.json", "vocab.json")):
        return None
    return Processor.from_folder(folder, config)


def _sorted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generation arguments and the processor's options, told apart by name."""
    prepared = {name: value for name, value in options.items() if name in PROCESSOR_OPTIONS}
    if prepared.get("max_length") is not None and "truncation" not in prepared and "padding" not in prepared:
        raise InputError(
            "`max_length` is a prompt's, and goes with `truncation` or `padding`. An answer's length is max_new_tokens."
        )
    return {name: value for name, value in options.items() if name not in prepared}, prepared
