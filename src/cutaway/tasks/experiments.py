"""Experiments: one JSON file that names a technique, a model, prompts, a metric and parameters, and can be run again.

::

    {"technique": "patching",
     "model": "nano",
     "pairs": [{"clean": {"question": "What color?", "images": ["red.png"]},
                "corrupt": {"question": "What color?", "images": ["blue.png"]}}],
     "metric": {"name": "logit_difference", "answer": "red", "foil": "blue"},
     "parameters": {"component": "residual", "where": "regions 4x4"}}

Files are looked for beside the experiment. Everything that can be checked without a model is checked before one is
loaded. `cutaway run` and the commands of the analyses use it; in Python the analyses can be called directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cutaway.analysis.common import metrics
from cutaway.analysis.common.prompts import Pair, prompt_from_spec
from cutaway.analysis.common.result import Result
from cutaway.analysis.common.sweep import OnProgress
from cutaway.api import Model, load
from cutaway.errors import InputError
from cutaway.storage import read_json


@dataclass(frozen=True)
class Technique:
    """A technique's function: its module below `cutaway.analysis`, and what it takes after the model, in order.

    Those are named as an experiment has them: ``pairs``, ``prompts``, ``prompt``, ``metric``. Its keyword arguments are
    the experiment's parameters.
    """

    module: str
    function: str
    takes: tuple[str, ...]

    def resolve(self) -> Callable[..., Result]:
        """Return the function."""
        return getattr(import_module(f"cutaway.analysis.{self.module}"), self.function)

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the function's keyword arguments that an experiment may set."""
        every = inspect.signature(self.resolve()).parameters
        return {n: p for n, p in every.items() if p.kind is p.KEYWORD_ONLY and n not in ("store", "on_progress")}


TECHNIQUES: dict[str, Technique] = {
    "patching": Technique("intervention.patching", "patch", ("pairs", "metric")),
    "ablation": Technique("intervention.ablation", "ablate", ("prompts", "metric")),
    "pathways": Technique("intervention.image_pathways", "image_pathways", ("prompt", "metric")),
    "knockout": Technique("intervention.attention_knockout", "attention_knockout", ("prompt", "metric")),
    "logit_lens": Technique("lens.logit_lens", "logit_lens", ("prompt",)),
    "nearest_tokens": Technique("lens.nearest_tokens", "nearest_tokens", ("prompt",)),
    "attention_map": Technique("attention.text", "attention_map", ("prompt",)),
    "attention_rollout": Technique("attention.rollout", "attention_rollout", ("prompt",)),
    "vision_attention": Technique("attention.vision", "vision_attention", ("prompt",)),
    "direct_logit_attribution": Technique("attribution.direct_logit", "direct_logit_attribution", ("prompt",)),
    "input_attribution": Technique("attribution.input_gradients", "input_attribution", ("prompt", "metric")),
    "steer": Technique("steering.sweep", "steer", ("prompts", "metric")),
    "probe": Technique("probing.probes", "probe", ("prompts",)),
    "feature_regions": Technique("sae.regions", "feature_regions", ("prompts",)),
}
"""By the name that an experiment and a result have."""

PROMPTS = ("pairs", "prompts", "prompt")

PROMPT_LISTS, PROMPT_SINGLES = ("others", "positive", "negative"), ("other",)
"""Parameters that are prompts themselves: lists of them, and one."""


@dataclass(frozen=True)
class Experiment:
    """A checked experiment. `folder`: where its files are looked for."""

    technique: str
    model: str
    content: Mapping[str, Any]
    parameters: Mapping[str, Any]
    folder: Path

    @classmethod
    def read(cls, path: str | Path) -> Experiment:
        """Return the experiment in a file. Raises `InputError` for one that cannot be read or does not fit."""
        return cls.of(read_json(path, InputError), Path(path).parent)

    @classmethod
    def of(cls, data: Any, folder: str | Path = ".") -> Experiment:
        """Return the experiment that plain data describe. Raises `InputError` for data that do not fit."""
        if not isinstance(data, Mapping):
            raise InputError(f"An experiment is a JSON object; got a {type(data).__name__}.")
        name = data.get("technique")
        if name not in TECHNIQUES:
            raise InputError(f"An experiment's `technique` is one of {', '.join(TECHNIQUES)}; got {name!r}.")
        technique = TECHNIQUES[name]
        wanted = ("model", *technique.takes)
        missing = [key for key in wanted if key not in data]
        unknown = sorted(set(data) - {"technique", "parameters", *wanted})
        if missing or unknown:
            raise InputError(
                f"A {name} experiment has {', '.join(('technique', *wanted))} and may have parameters; got one"
                + (f" without {', '.join(missing)}" if missing else "")
                + (" and" if missing and unknown else "")
                + (f" with {', '.join(unknown)}" if unknown else "")
                + "."
            )
        if not isinstance(data["model"], str):
            raise InputError(f"An experiment's `model` is nano, a folder or a hub id; got {data['model']!r}.")
        parameters = data.get("parameters", {})
        _check_parameters(name, technique, parameters)
        content = {key: data[key] for key in technique.takes}
        _check_content(content)
        return cls(name, data["model"], content, parameters, Path(folder))

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as `of` takes it."""
        data: dict[str, Any] = {"technique": self.technique, "model": self.model, **self.content}
        return {**data, "parameters": dict(self.parameters)} if self.parameters else data

    def run(
        self,
        model: Model | None = None,
        *,
        store: str | Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Run the technique and return its result.

        `model`: default the one that the experiment names. `store`: a file of finished cells, to resume from.
        """
        model = load(self.model) if model is None else model
        technique = TECHNIQUES[self.technique]
        function = technique.resolve()
        parts = [self._part(model, name) for name in technique.takes]
        options = {n: self._option(model, n, value) for n, value in self.parameters.items()}
        hooks = {"store": store, "on_progress": on_progress}
        accepted = inspect.signature(function).parameters
        return function(model, *parts, **options, **{n: hook for n, hook in hooks.items() if n in accepted and hook})

    def _option(self, model: Model, name: str, value: Any) -> Any:
        if name in PROMPT_LISTS:
            return self._prompts(model, value)
        return prompt_from_spec(model, self._located(value)) if name in PROMPT_SINGLES else value

    def _part(self, model: Model, name: str) -> Any:
        value = self.content[name]
        if name == "metric":
            return metrics.metric_from_spec(model.tokenizer, value)
        if name == "prompt":
            return prompt_from_spec(model, self._located(value))
        if name == "prompts":
            return self._prompts(model, value)
        return [
            Pair.of(model, clean=self._located(pair["clean"]), corrupt=self._located(pair["corrupt"])) for pair in value
        ]

    def _prompts(self, model: Model, value: Sequence[Any]) -> list[Any]:
        return [prompt_from_spec(model, self._located(prompt)) for prompt in value]

    def _located(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt with its files looked for beside the experiment."""
        media = {key: [str(self.folder / file) for file in prompt.get(key, ())] for key in ("images", "videos")}
        return {**prompt, **{key: files for key, files in media.items() if files}}


def _check_parameters(name: str, technique: Technique, parameters: Any) -> None:
    known = technique.parameters()
    if not isinstance(parameters, Mapping):
        raise InputError(f"`parameters` is a JSON object; got {parameters!r}.")
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise InputError(f"A {name} experiment's parameters are {', '.join(known)}; got {', '.join(unknown)}.")
    listed = [prompt for key in PROMPT_LISTS for prompt in _listed(key, parameters.get(key, []))]
    for prompt in [*listed, *(parameters[key] for key in PROMPT_SINGLES if key in parameters)]:
        _check_prompt(prompt)


def _check_content(content: Mapping[str, Any]) -> None:
    if "metric" in content and not isinstance(content["metric"], Mapping):
        raise InputError(f'`metric` is an object such as {{"name": "kl"}}; got {content["metric"]!r}.')
    for key in [key for key in PROMPTS if key in content]:
        value = [content[key]] if key == "prompt" else _listed(key, content[key])
        if not value:
            raise InputError(f"An experiment has at least one of its `{key}`; got none.")
        for item in value:
            if key != "pairs":
                _check_prompt(item)
                continue
            if not isinstance(item, Mapping) or set(item) != {"clean", "corrupt"}:
                raise InputError(f'A pair is {{"clean": a prompt, "corrupt": a prompt}}; got {item!r}.')
            _check_prompt(item["clean"])
            _check_prompt(item["corrupt"])


def _listed(key: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InputError(f"`{key}` is a list; got {value!r}.")
    return value


def _check_prompt(prompt: Any) -> None:
    fits = isinstance(prompt, Mapping) and isinstance(prompt.get("question"), str)
    if not fits or not set(prompt) <= {"question", "images", "videos", "system"}:
        raise InputError(
            f'A prompt is {{"question": "…", "images": [files], "videos": [files], "system": "…"}}, of which the '
            f"question must be there; got {prompt!r}."
        )
    for key in ("images", "videos"):
        for file in _listed(key, prompt.get(key, [])):
            if not isinstance(file, str):
                raise InputError(f"`{key}` are names of files; got {file!r}.")
