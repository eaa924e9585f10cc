"""Run an analysis on files and words, as the command line gives them, through one table of techniques.

`analyse` builds the experiment that the arguments describe, runs it on a loaded model, and returns the result with the
experiment as JSON, so that `cutaway run` can repeat it. Use `cutaway.analysis` directly when prompts are already at
hand. What an experiment is, `cutaway.tasks.experiments` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutaway.analysis.common.metrics import answer_logits
from cutaway.analysis.common.prompts import prompt_from_spec
from cutaway.analysis.common.sweep import OnProgress
from cutaway.analysis.lens.tuned_lens import TunedLens
from cutaway.analysis.lens.tuned_lens import train_tuned_lens as train
from cutaway.api import Model
from cutaway.errors import InputError
from cutaway.inputs.media import kind_of
from cutaway.tasks.experiments import Experiment
from cutaway.tasks.files import images_in, labelled

NEAREST = 64
"""Among how many of the most probable tokens a runner-up that is another word is looked for."""

Files = Sequence[str | Path]
Content = dict[str, Any]
"""Keys of an experiment: prompts, metric, and parameters that the files and words decide."""


def analyse(
    model: Model,
    technique: str,
    *,
    model_name: str = "nano",
    parameters: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **request: Any,
) -> tuple[Any, dict[str, Any]]:
    """Run a technique on files and words; return the result and the experiment that repeats it.

    - `technique`: a name of `COMPOSERS`; `request` are the arguments of its function there (question, files, answer …).
    - `parameters`: keyword arguments of the analysis function; None stands for the function's default.
    - `model_name`: what the experiment calls the model, so that it can be loaded again.
    - `store`: a file or folder of finished parts, from which a stopped run goes on. `on_progress`: called with (parts
      done, parts in all).

    Raises `InputError` for an unknown technique and for arguments that the technique cannot use.
    """
    if technique not in COMPOSERS:
        raise InputError(f"A technique is one of {', '.join(COMPOSERS)}; got {technique!r}.")
    content = COMPOSERS[technique](model, **request)
    options = {**content.pop("parameters", {}), **(parameters or {})}
    experiment = Experiment.of(
        {
            "technique": technique,
            "model": model_name,
            **content,
            "parameters": {name: value for name, value in options.items() if value is not None},
        }
    )
    return experiment.run(model, store=store, on_progress=on_progress), experiment.to_json()


def train_tuned_lens(
    model: Model, question: str, folder: str | Path, *, on_progress: OnProgress | None = None, **options: Any
) -> TunedLens:
    """Train a tuned lens on the question about every image of a folder; `options` are those of the training function.

    Raises `InputError` for a folder with fewer than two images.
    """
    images = images_in(folder)
    if len(images) < 2:
        raise InputError(f"A tuned lens is trained on at least two images; got {len(images)} in {folder}. Add some.")
    prompts = [prompt_from_spec(model, prompt_spec(question, [image])) for image in images]
    return train(model, prompts, on_progress=on_progress, **options)


def prompt_spec(question: str, files: Files = ()) -> dict[str, Any]:
    """Return a prompt as experiments write it: the question, and files sorted into images and videos by content."""
    kinds = [kind_of(file) for file in files]
    spec: dict[str, Any] = {"question": question}
    for kind, name in (("image", "images"), ("video", "videos")):
        media = [str(Path(file).resolve()) for file, file_kind in zip(files, kinds, strict=True) if file_kind == kind]
        if media:
            spec[name] = media
    return spec


def metric_spec(
    model: Model, prompts: Sequence[dict[str, Any]], answer: str | None = None, foil: str | None = None
) -> dict[str, Any]:
    """Return the metric as experiments write it.

    With `answer` and `foil` it is their logit difference, with `answer` alone its log probability. Without either, one
    prompt is measured by the log probability of the model's first token; two by the logit difference of the model's
    first tokens to them.
    """
    if foil is not None and answer is None:
        raise InputError("A foil is what the answer is contrasted with; got a foil alone. Give the answer too.")
    if answer is None:
        if len(prompts) == 1:
            return {"name": "log_probability", "answer": first_token(model, prompts[0])}
        first = [first_token(model, prompt) for prompt in prompts[:2]]
        if first[0] == first[1]:
            word = model.tokenizer.strings(first[:1])[0]
            raise InputError(
                f"Two prompts are compared by answers that differ; the model begins both answers with {word!r}. "
                f"Choose prompts that it answers differently, or give the answer and the foil."
            )
        return {"name": "logit_difference", "answer": first[0], "foil": first[1]}
    if foil is None:
        return {"name": "log_probability", "answer": answer}
    return {"name": "logit_difference", "answer": answer, "foil": foil}


def two_likeliest(model: Model, prompt: dict[str, Any]) -> tuple[int, int]:
    """Return the ids of the most probable first token and of the most probable one that is another word.

    ``' red'`` and ``'Red'`` are other spellings of ``'red'``: their difference says nothing about the answer.
    """
    ids = answer_logits(model, prompt_from_spec(model, prompt))[0, -1].argsort(descending=True)
    ids = ids[ids < len(model.tokenizer)][:NEAREST].tolist()
    words = [word.strip().casefold() for word in model.tokenizer.strings(ids)]
    return ids[0], next((id for id, word in zip(ids, words, strict=True) if word and word != words[0]), ids[1])


def first_token(model: Model, prompt: dict[str, Any]) -> int:
    """Return the id of the most probable first token of the answer to a prompt."""
    return int(answer_logits(model, prompt_from_spec(model, prompt))[0, -1].argmax())


def _one_prompt(_model: Model, question: str, files: Files = ()) -> Content:
    return {"prompt": prompt_spec(question, files)}


def _direct_attribution(
    model: Model, question: str, files: Files = (), answer: str | int | None = None, foil: str | int | None = None
) -> Content:
    prompt = prompt_spec(question, files)
    if answer is None and foil is not None:
        raise InputError("A foil is what the answer is contrasted with; got a foil alone. Give the answer too.")
    if answer is None:
        answer, foil = two_likeliest(model, prompt)
    return {"prompt": prompt, "parameters": {"answer": answer, "foil": foil}}


def _input_attribution(
    model: Model, question: str, files: Files = (), answer: str | None = None, foil: str | None = None
) -> Content:
    prompt = prompt_spec(question, files)
    return {"prompt": prompt, "metric": metric_spec(model, [prompt], answer, foil)}


def _patching(
    model: Model,
    question: str,
    files: Files,
    corrupt_question: str | None = None,
    answer: str | None = None,
    foil: str | None = None,
) -> Content:
    """`files`: the clean one and the corrupt one."""
    clean, corrupt = files
    pair = {"clean": prompt_spec(question, [clean]), "corrupt": prompt_spec(corrupt_question or question, [corrupt])}
    return {"pairs": [pair], "metric": metric_spec(model, [pair["clean"], pair["corrupt"]], answer, foil)}


def _ablation(
    model: Model,
    question: str,
    files: Files = (),
    others: Files = (),
    answer: str | None = None,
    foil: str | None = None,
) -> Content:
    """`others`: images or videos that the same question is asked about, for means and resampling."""
    prompt = prompt_spec(question, files)
    content: Content = {"prompts": [prompt], "metric": metric_spec(model, [prompt], answer, foil)}
    if others:
        content["parameters"] = {"others": [prompt_spec(question, [file]) for file in others]}
    return content


def _routes(
    model: Model, question: str, files: Files, other: str | Path | None = None, answer: str | None = None
) -> Content:
    """`other`: an image or video that the same question is asked about, whose values a closed route carries."""
    prompt = prompt_spec(question, files)
    metric = {"name": "probability", "answer": first_token(model, prompt) if answer is None else answer}
    swapped = {} if other is None else {"other": prompt_spec(question, [other])}
    return {"prompt": prompt, "metric": metric, "parameters": swapped}


def _steering(
    model: Model,
    question: str,
    files: Files = (),
    toward: Files = (),
    away: Files = (),
    toward_questions: Sequence[str] = (),
    away_questions: Sequence[str] = (),
    answer: str | None = None,
    foil: str | None = None,
) -> Content:
    """`toward`, `away`: files that the question is asked about; the `_questions` are asked about `files`."""
    sides = {}
    for name, media, texts in (("positive", toward, toward_questions), ("negative", away, away_questions)):
        sides[name] = [prompt_spec(question, [file]) for file in media] + [prompt_spec(text, files) for text in texts]
        if not sides[name]:
            raise InputError(
                "A direction leads from one set of prompts to another; got none on one side. Give images or questions "
                "to steer toward and to steer away from."
            )
    prompt = prompt_spec(question, files)
    compared = [sides["positive"][0], sides["negative"][0]] if answer is None and foil is None else [prompt]
    return {"prompts": [prompt], "metric": metric_spec(model, compared, answer, foil), "parameters": sides}


def _probing(_model: Model, question: str, folder: str | Path, labels: str | Path | None = None) -> Content:
    """`folder`: a folder of images for each class, or images that the JSON file `labels` names."""
    files, targets = labelled(folder, labels)
    return {"prompts": [prompt_spec(question, [file]) for file in files], "parameters": {"labels": targets}}


def _sae_regions(_model: Model, question: str, folder: str | Path, dictionary: str | Path) -> Content:
    prompts = [prompt_spec(question, [file]) for file in images_in(folder)]
    sources = [prompt["images"][0] for prompt in prompts]
    return {"prompts": prompts, "parameters": {"sae": str(Path(dictionary).resolve()), "sources": sources}}


COMPOSERS: dict[str, Callable[..., Content]] = {
    "patching": _patching,
    "ablation": _ablation,
    "pathways": _routes,
    "knockout": _routes,
    "logit_lens": _one_prompt,
    "nearest_tokens": _one_prompt,
    "attention_map": _one_prompt,
    "attention_rollout": _one_prompt,
    "vision_attention": _one_prompt,
    "direct_logit_attribution": _direct_attribution,
    "input_attribution": _input_attribution,
    "steer": _steering,
    "probe": _probing,
    "feature_regions": _sae_regions,
}
"""Technique -> the function that turns files and words into an experiment's prompts, metric and parameters."""
