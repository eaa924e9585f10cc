"""Answer metrics: one number per run, computed from the logits that predict the answer.

Use them wherever runs are compared: patching, ablation, knockout, pathways, steering, input attribution. An answer of
several tokens is scored as a whole: its tokens but the last are appended to the prompt, so that one forward has all of
their logits. A metric does not edit the run that it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cutaway.analysis.common.arguments import check_model, describe
from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.run import run_values

Function = Callable[[Tensor, Tensor | None], Tensor]
"""From logits [samples positions vocab], and those of a reference run [1 positions vocab] or None, to [samples]."""

KL = "KL divergence"
"""The name of the metric of which less is better: ablating a needed part makes it rise."""


@dataclass(frozen=True)
class Metric:
    """A number for each sample of a batch of logits.

    - `name`, `unit`: as results and figures say them.
    - `function`: from float64 logits to [samples], see `Function`.
    - `answer`: ids of the answer that it scores; `extend` appends all but the last to the prompt.
    - `needs_reference`: it compares with the logits of a reference run; less is better.
    - `compared_ids`: the ids that it compares; they tell it from other metrics of its name in stored results.
    """

    name: str
    unit: str
    function: Function
    answer: tuple[int, ...] = ()
    needs_reference: bool = False
    compared_ids: tuple[int | str, ...] = ()

    @property
    def answer_length(self) -> int:
        """How many of the last positions the metric reads: the answer's tokens, or one."""
        return max(1, len(self.answer))

    def __call__(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Return float64 [samples] from `logits` [samples answer_length vocab]; gradients pass through."""
        if logits.dim() != 3 or logits.shape[1] != self.answer_length:
            raise InputError(
                f"The metric {self.name} reads logits [samples {self.answer_length} vocab]; got {list(logits.shape)}. "
                f"Take them from `answer_logits(model, metric.extend(inputs), metric.answer_length)`."
            )
        if self.needs_reference and reference is None:
            raise InputError(
                f"The metric {self.name} compares with a reference run; got none. Pass its logits as `reference`."
            )
        result = self.function(logits.double(), None if reference is None else reference.double())
        if not isinstance(result, Tensor) or result.shape != logits.shape[:1]:
            shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"A metric's function returns a number per sample, [{len(logits)}]; that of {self.name} returned "
                f"{shape}."
            )
        return result.double()

    def extend(self, inputs: Inputs) -> Inputs:
        """Return the batch with the answer's tokens but the last appended to every sample."""
        return append_tokens(inputs, self.answer[:-1])


def check_metric(metric: Any) -> Metric:
    """Return `metric` if it is a `Metric`. Raises `InputError` for anything else."""
    if not isinstance(metric, Metric):
        what = "a function" if callable(metric) else repr(metric)
        raise InputError(
            f'`metric` is a metric such as `metrics.log_probability(model.tokenizer, "red")`; got {what}. Make one of '
            f"a function of the logits with `metrics.custom_metric(function)`."
        )
    return metric


def append_tokens(inputs: Inputs, ids: tuple[int, ...]) -> Inputs:
    """Return the batch with text tokens appended to every sample, at the positions that would follow.

    Raises `InputError` for a batch that is padded on the right.
    """
    if not bool(inputs.attention_mask[:, -1].all()):
        raise InputError(
            "An answer is appended to the prompt's last token; got a batch padded on the right. Prepare it with "
            '`padding_side="left"`.'
        )
    if not ids:
        return inputs
    samples, count = inputs.input_ids.shape[0], len(ids)
    new = torch.tensor(ids, device=inputs.input_ids.device).expand(samples, count)
    position_ids = inputs.next_position[:, None] + torch.arange(count, device=inputs.next_position.device)
    return replace(
        inputs,
        input_ids=torch.cat((inputs.input_ids, new), 1),
        attention_mask=torch.cat((inputs.attention_mask, torch.ones_like(new)), 1),
        mm_token_type_ids=torch.cat((inputs.mm_token_type_ids, torch.zeros_like(new)), 1),
        position_ids=torch.cat((inputs.position_ids, position_ids.expand(3, samples, count)), 2),
        next_position=inputs.next_position + count,
    )


def answer_ids(tokenizer: Any, answer: str | int | list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """Return the token ids of an answer: a text as the model would write it, one id, or several.

    Raises `InputError` for anything else, an empty answer, or ids outside the vocabulary.
    """
    if isinstance(answer, bool) or not isinstance(answer, str | int | list | tuple):
        raise InputError(f"An answer is a text, a token id or a list of ids; got a {type(answer).__name__}.")
    encoded = tokenizer.encode(answer, special=False) if isinstance(answer, str) else answer
    ids: tuple[int, ...] = (encoded,) if isinstance(encoded, int) else tuple(encoded)
    if not ids:
        raise InputError("An answer has at least one token; got an empty one.")
    wrong = [id for id in ids if not isinstance(id, int) or not 0 <= id < len(tokenizer)]
    if wrong:
        raise InputError(f"Token ids are from 0 to {len(tokenizer) - 1}; got {wrong}.")
    return ids


def one_id(tokenizer: Any, word: str | int) -> int:
    """Return the id of a word that is one token. Raises `InputError` for a word of several."""
    ids = answer_ids(tokenizer, word)
    if len(ids) != 1:
        raise InputError(
            f"One token is wanted here; got {word!r}, which is {len(ids)}: {tokenizer.strings(ids)}. Give one of them, "
            f"or score the whole answer with `probability` or `log_probability`."
        )
    return ids[0]


def logit_difference(tokenizer: Any, answer: str | int, foil: str | int) -> Metric:
    """Return the logit of `answer` less that of `foil`, one token each; positive where the model prefers the answer."""
    right, wrong = one_id(tokenizer, answer), one_id(tokenizer, foil)
    if right == wrong:
        raise InputError(
            f"A logit difference compares two tokens; got the same one twice, {answer!r} and {foil!r}. Give another "
            f"foil."
        )
    difference: Function = lambda logits, _: logits[:, -1, right] - logits[:, -1, wrong]  # noqa: E731
    name = f"logit difference, {_quoted(tokenizer, [right])} less {_quoted(tokenizer, [wrong])}"
    return Metric(name, "logits", difference, compared_ids=(right, wrong))


def log_probability(tokenizer: Any, answer: str | int | list[int]) -> Metric:
    """Return the log probability of the complete answer, of one token or several, in nats."""
    ids = answer_ids(tokenizer, answer)
    name = f"log probability of {_quoted(tokenizer, ids)}"
    return Metric(name, "nats", lambda logits, _: _sequence_log_probability(logits, ids), ids)


def probability(tokenizer: Any, answer: str | int | list[int]) -> Metric:
    """Return the probability of the complete answer, of one token or several."""
    ids = answer_ids(tokenizer, answer)
    name = f"probability of {_quoted(tokenizer, ids)}"
    return Metric(name, "probability", lambda logits, _: _sequence_log_probability(logits, ids).exp(), ids)


def kl_divergence() -> Metric:
    """Return the KL divergence of the last position's distribution from the reference run's, in nats."""

    def divergence(logits: Tensor, reference: Tensor | None) -> Tensor:
        assert reference is not None  # `Metric.__call__` checks it
        here, there = logits[:, -1].log_softmax(-1), reference[:, -1].log_softmax(-1)
        return (there.exp() * (there - here)).sum(-1)

    return Metric(KL, "nats", divergence, needs_reference=True)


def custom_metric(
    function: Callable[[Tensor], Tensor], *, name: str = "custom metric", unit: str = "", answer: tuple[int, ...] = ()
) -> Metric:
    """Return a metric of your own: `function` takes float64 logits [samples positions vocab] and returns [samples].

    A result store tells metrics apart by `name` and `answer`: give another function another name. Raises `InputError`
    for something that cannot be called.
    """
    if not callable(function):
        raise InputError(f"A custom metric is a function of the logits; got {function!r}.")
    return Metric(name, unit, lambda logits, _: function(logits), answer)


def metric_from_spec(tokenizer: Any, spec: Mapping[str, Any]) -> Metric:
    """Return a metric from plain data: ``{"name": "logit_difference", "answer": "red", "foil": "blue"}``."""
    if not isinstance(spec, Mapping):
        raise InputError(f'A metric is written {{"name": "log_probability", "answer": "red"}}; got {spec!r}.')
    makers: dict[str, tuple[Callable[..., Metric], tuple[str, ...]]] = {
        "logit_difference": (logit_difference, ("answer", "foil")),
        "probability": (probability, ("answer",)),
        "log_probability": (log_probability, ("answer",)),
        "kl": (lambda _: kl_divergence(), ()),
    }
    name = spec.get("name")
    if not isinstance(name, str) or name not in makers:
        raise InputError(f"A metric's `name` is one of {', '.join(makers)}; got {name!r}.")
    make, needed = makers[name]
    keys = set(spec) - {"name"}
    if keys != set(needed):
        wanted = ", ".join(f"`{n}`" for n in needed) or "nothing else"
        raise InputError(f"The metric {name} takes {wanted}; got {', '.join(sorted(keys)) or 'nothing'}.")
    return make(tokenizer, *(spec[key] for key in needed))


def answer_logits(
    model: Model, inputs: Inputs, answer_length: int = 1, *, edit: Mapping[str, Any] | None = None, grad: bool = False
) -> Tensor:
    """Return the logits [samples answer_length vocab] at the last positions of one forward, with edits by address.

    The head runs at those positions alone. `edit` as in `model.run`; `grad` keeps the graph for a backward pass.
    """
    check_model(model, "A forward")
    if not isinstance(inputs, Inputs):
        raise InputError(f"A prompt must be prepared inputs: use `model.prepare(…)`; got {describe(inputs)}.")
    root = model.root
    return run_values(root, lambda: root.lm_head(root.model(inputs)[:, -answer_length:]), edit=edit, grad=grad).result


def measure(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    *,
    edit: Mapping[str, Any] | None = None,
    reference: Tensor | None = None,
) -> Tensor:
    """Return the metric [samples] of one forward; the answer's tokens are appended to `inputs` here."""
    check_metric(metric)
    if not isinstance(inputs, Inputs):
        raise InputError(f"A prompt must be prepared inputs: use `model.prepare(…)`; got {describe(inputs)}.")
    return metric(answer_logits(model, metric.extend(inputs), metric.answer_length, edit=edit), reference)


def _quoted(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return an answer's text in quotes, for the name of its metric."""
    return repr("".join(tokenizer.strings(ids)))


def _sequence_log_probability(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Return [samples]: the summed log probability of `ids`, one per position of `logits` [samples ids vocab]."""
    index = torch.tensor(ids, device=logits.device)[:, None].expand(len(logits), -1, 1)  # [samples ids 1]
    return logits.log_softmax(-1).gather(-1, index)[..., 0].sum(-1)
