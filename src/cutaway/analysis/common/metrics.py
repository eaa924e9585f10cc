"""Answer metrics: one number a run, read off the logits at the places that predict the answer.

A metric reads the last `places` positions of the prompt. An answer of several tokens is scored as a whole: its tokens
but the last are appended to the prompt, so that one forward has the logits of them all. This module knows logits and
token ids; what is edited in the run is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cutaway.api import Model
from cutaway.batch import Inputs
from cutaway.errors import InputError
from cutaway.trace.values import run_values

Function = Callable[[Tensor, Tensor | None], Tensor]
"""Logits [rows places vocab], and those of a reference run [1 places vocab] or None, to a number a row."""

KL = "KL divergence"
"""The metric of which less is better: taking a needed part away makes it rise."""


@dataclass(frozen=True)
class Metric:
    """A number for each row of a batch of logits.

    - `answer`: ids of the answer it scores; all but the last are appended to the prompt by `extend`.
    - `needs_reference`: it compares with the logits of a reference run, so that less is better.
    - `about`: what else tells it from metrics of its name, such as the ids that it compares.
    """

    name: str
    unit: str
    function: Function
    answer: tuple[int, ...] = ()
    needs_reference: bool = False
    about: tuple[int | str, ...] = ()

    @property
    def places(self) -> int:
        """How many of the last positions it reads."""
        return max(1, len(self.answer))

    def __call__(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """float64 [rows], from `logits` [rows places vocab]; gradients pass through."""
        if logits.dim() != 3 or logits.shape[1] != self.places:
            raise InputError(
                f"The metric {self.name} reads logits [rows {self.places} vocab]; got {list(logits.shape)}. "
                f"`answer_logits(model, metric.extend(inputs), metric.places)` gives them."
            )
        if self.needs_reference and reference is None:
            raise InputError(f"The metric {self.name} compares with a reference run: pass its logits as `reference`.")
        found = self.function(logits.double(), None if reference is None else reference.double())
        if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"The metric {self.name} must return a number a row, [{len(logits)}]; it gave {shape}.")
        return found.double()

    def extend(self, inputs: Inputs) -> Inputs:
        """The batch with the answer's tokens but the last appended to every row."""
        return extended(inputs, self.answer[:-1])


def extended(inputs: Inputs, ids: tuple[int, ...]) -> Inputs:
    """The batch with text tokens appended to every row. Rows must end in a token, padded on the left if at all."""
    if not bool(inputs.attention_mask[:, -1].all()):
        raise InputError('An answer follows the prompt: pad a batch on the left (`padding_side="left"`).')
    if not ids:
        return inputs
    rows, count = inputs.input_ids.shape[0], len(ids)
    new = torch.tensor(ids, device=inputs.input_ids.device).expand(rows, count)
    places = inputs.next_position[:, None] + torch.arange(count, device=inputs.next_position.device)
    return replace(
        inputs,
        input_ids=torch.cat((inputs.input_ids, new), 1),
        attention_mask=torch.cat((inputs.attention_mask, torch.ones_like(new)), 1),
        mm_token_type_ids=torch.cat((inputs.mm_token_type_ids, torch.zeros_like(new)), 1),
        position_ids=torch.cat((inputs.position_ids, places.expand(3, rows, count)), 2),
        next_position=inputs.next_position + count,
    )


def ids_of(tokenizer: Any, answer: str | int | list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """The token ids of an answer: a text as the model would write it, one id, or several."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | list | tuple):
        raise InputError(f"An answer is a text, a token id or a list of them; a {type(answer).__name__} came.")
    found = tokenizer.encode(answer, special=False) if isinstance(answer, str) else answer
    ids: tuple[int, ...] = (found,) if isinstance(found, int) else tuple(found)
    if not ids:
        raise InputError("An answer has at least one token; the text is empty.")
    wrong = [id for id in ids if not isinstance(id, int) or not 0 <= id < len(tokenizer)]
    if wrong:
        raise InputError(f"Token ids are from 0 to {len(tokenizer) - 1}; got {wrong}.")
    return ids


def one_id(tokenizer: Any, word: str | int) -> int:
    """The id of a word of one token. Raises `InputError` for a word that has several."""
    ids = ids_of(tokenizer, word)
    if len(ids) != 1:
        raise InputError(
            f"One token is wanted, and {word!r} is {len(ids)}: {tokenizer.strings(ids)}. Give one of them (as an id "
            f"or a text); the metrics `probability` and `log_probability` score whole answers."
        )
    return ids[0]


def logit_difference(tokenizer: Any, answer: str | int, foil: str | int) -> Metric:
    """The logit of `answer` less that of `foil`, each one token; positive where the model leans to the answer."""
    right, wrong = one_id(tokenizer, answer), one_id(tokenizer, foil)
    if right == wrong:
        raise InputError(f"A difference compares two tokens; {answer!r} and {foil!r} are the same one. Give another.")
    compared: Function = lambda logits, _: logits[:, -1, right] - logits[:, -1, wrong]  # noqa: E731
    name = f"logit difference, {_said(tokenizer, [right])} less {_said(tokenizer, [wrong])}"
    return Metric(name, "logits", compared, about=(right, wrong))


def log_probability(tokenizer: Any, answer: str | int | list[int]) -> Metric:
    """The log-probability of the complete answer, of one token or several, in nats."""
    ids = ids_of(tokenizer, answer)
    name = f"log-probability of {_said(tokenizer, ids)}"
    return Metric(name, "nats", lambda logits, _: _sequence(logits, ids), ids)


def probability(tokenizer: Any, answer: str | int | list[int]) -> Metric:
    """The probability of the complete answer, of one token or several."""
    ids = ids_of(tokenizer, answer)
    name = f"probability of {_said(tokenizer, ids)}"
    return Metric(name, "probability", lambda logits, _: _sequence(logits, ids).exp(), ids)


def kl() -> Metric:
    """The Kullback-Leibler divergence of the last position's distribution from the reference run's, in nats."""

    def divergence(logits: Tensor, reference: Tensor | None) -> Tensor:
        assert reference is not None  # `Metric` has refused a call without
        here, there = logits[:, -1].log_softmax(-1), reference[:, -1].log_softmax(-1)
        return (there.exp() * (there - here)).sum(-1)

    return Metric(KL, "nats", divergence, needs_reference=True)


def own(
    function: Callable[[Tensor], Tensor], *, name: str = "own metric", unit: str = "", answer: tuple[int, ...] = ()
) -> Metric:
    """A metric of one's own: `function` takes float64 logits [rows places vocab] and returns [rows].

    Finished cells on disk are told apart by `name` and `answer`: give another function another name.
    """
    return Metric(name, unit, lambda logits, _: function(logits), answer)


def from_spec(tokenizer: Any, spec: Mapping[str, Any]) -> Metric:
    """A metric from plain data: ``{"name": "logit_difference", "answer": "red", "foil": "blue"}``."""
    makers: dict[str, tuple[Callable[..., Metric], tuple[str, ...]]] = {
        "logit_difference": (logit_difference, ("answer", "foil")),
        "probability": (probability, ("answer",)),
        "log_probability": (log_probability, ("answer",)),
        "kl": (lambda _: kl(), ()),
    }
    name = spec.get("name")
    if name not in makers:
        raise InputError(f"A metric's `name` is one of {', '.join(makers)}; got {name!r}.")
    make, needed = makers[name]
    given = set(spec) - {"name"}
    if given != set(needed):
        wanted = ", ".join(f"`{n}`" for n in needed) or "nothing else"
        raise InputError(f"The metric {name} takes {wanted}; got {', '.join(sorted(given)) or 'nothing'}.")
    return make(tokenizer, *(spec[key] for key in needed))


def answer_logits(
    model: Model, inputs: Inputs, places: int = 1, *, edit: Mapping[str, Any] | None = None, grad: bool = False
) -> Tensor:
    """Logits [batch places vocab] at the last positions of one forward, with edits by address.

    The head runs at those positions alone.
    """
    model.require_weights("The forward")
    root = model.root
    return run_values(root, lambda: root.lm_head(root.model(inputs)[:, -places:]), edit=edit, grad=grad).result


def measure(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    *,
    edit: Mapping[str, Any] | None = None,
    reference: Tensor | None = None,
) -> Tensor:
    """The metric [batch] of one forward on a prompt, the answer appended here."""
    return metric(answer_logits(model, metric.extend(inputs), metric.places, edit=edit), reference)


def _said(tokenizer: Any, ids: Sequence[int]) -> str:
    """An answer as the name of its metric says it, so that a result tells what was measured."""
    return repr("".join(tokenizer.strings(ids)))


def _sequence(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    """[rows]: the summed log-probability of `ids`, one a place."""
    chosen = torch.tensor(ids, device=logits.device)[:, None].expand(len(logits), -1, 1)
    return logits.log_softmax(-1).gather(-1, chosen)[..., 0].sum(-1)
