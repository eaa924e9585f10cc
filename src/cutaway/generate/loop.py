"""`Generation`: an answer, token by token, as a loop that the caller turns.

It makes the inputs of each step and takes the logits of each step; between the two the caller runs the model, plainly
(`run`, `stream`) or inside a trace. It does not know how the model computes, nor what a prompt looks like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from cutaway.batch import Inputs
from cutaway.errors import InputError, LimitError
from cutaway.generate.cuda_graph import even, recording
from cutaway.generate.past import Past, visuals
from cutaway.generate.sample import Sampler
from cutaway.generate.settings import Settings
from cutaway.generate.stop_strings import Decoder, RowText
from cutaway.model.cache import Cache
from cutaway.observe import observer


@dataclass(frozen=True)
class Result:
    """What was generated, an entry per row.

    - `ids`: the chosen ids, an end token included.
    - `texts`: their text, without special tokens and without a stop string; None when no tokenizer was given.
    - `logprobs`: the natural logarithm of each chosen token's probability under the model's own distribution, before
      penalties, temperature and filters.
    - `finish_reasons`: "eos" an end token, "stop" a stop string, "length" `max_new_tokens`; None while a row goes on.
    """

    ids: list[list[int]]
    texts: list[str] | None
    logprobs: list[list[float]]
    finish_reasons: list[str | None]

    @property
    def text(self) -> str:
        """The text of a batch of one."""
        if self.texts is None or len(self.texts) != 1:
            rows = len(self.ids)
            raise InputError(
                f"`text` is the answer of a single row decoded by a tokenizer; here are {rows} row(s) and "
                f"{'no tokenizer' if self.texts is None else 'a text for each'}. Read `ids` or `texts`."
            )
        return self.texts[0]


class Generation:
    """One generation over a batch. Turn it like this::

        while (batch := generation.next_inputs()) is not None:
            generation.accept(model(batch, cache=generation.cache, last_only=True))

    A row that has ended is fed padding until all have; rows do not see each other. Rows may be padded on either side.
    Placeholder ids that the model itself chooses are text. Nothing is stored on the model.

    `tokenizer` is needed for text and stop strings alone. `past` is the `past` of an earlier generation: tokens that
    `inputs` shares with it are not read again. Raises `LimitError` when prompt and answer exceed the model's positions.
    """

    def __init__(
        self,
        model: Any,
        inputs: Inputs,
        settings: Settings,
        *,
        tokenizer: Decoder | None = None,
        past: Past | None = None,
    ) -> None:
        _check(model, inputs, settings, tokenizer, past)
        rows, length = inputs.input_ids.shape
        self.settings, self.inputs = settings, inputs
        self.step = 0
        self._merge = model.config.vision.spatial_merge_size
        self._sampler = Sampler(settings, inputs.input_ids, inputs.attention_mask)
        self._mask = torch.nn.functional.pad(inputs.attention_mask, (0, settings.max_new_tokens), value=1)
        self._types = torch.zeros_like(inputs.mm_token_type_ids[:, :1])
        self._running = torch.ones(rows, dtype=torch.bool, device=inputs.input_ids.device)
        self._texts = [RowText(tokenizer, settings.stop) for _ in range(rows)] if tokenizer else None
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        self._logprobs: list[list[float]] = [[] for _ in range(rows)]
        self._reasons: list[str | None] = [None] * rows
        self._left: tuple[int, Past] | None = None
        self.cache: Cache
        if past is None:
            room = length + settings.max_new_tokens
            self.cache, self._pending = model.new_cache(even(room) if settings.recorded else room), inputs
        else:
            self.cache, self._pending = past.take(inputs, self._merge)

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return all(reason is not None for reason in self._reasons)

    def next_inputs(self) -> Inputs | None:
        """What the model is to read next: the prompt, then one token per row; None when every row has ended."""
        if self._left is not None and self._left[1].used:
            raise InputError("Another generation went on from this one's past, and has its cache. Start a new one.")
        return None if self.done else self._pending

    @torch.no_grad()
    def accept(self, logits: Tensor) -> Tensor:
        """Chooses the next token of every row and returns them [batch]; an ended row gets the padding id.

        `logits` is [batch 1 vocab], or [batch seq vocab] with a place for every token of `next_inputs`.
        """
        if self.done:
            raise InputError("Every row has ended, so no further token is chosen. Read `result`.")
        chosen, logprobs = self._sampler.pick(self._last(logits))
        chosen = torch.where(self._running, chosen, self.settings.pad_token_id)
        numbers, shares = torch.stack((chosen.double(), logprobs.double())).tolist()  # the one wait for the device
        for row, reason in enumerate(self._reasons):
            if reason is None:
                self._add(row, int(numbers[row]), shares[row])
        self._pending = self._following(chosen)
        self.step += 1
        return chosen

    def take_text(self) -> list[str]:
        """Per row, the text that became certain since the last call; needs a tokenizer."""
        return [text.take() for text in self._rows()]

    def texts(self) -> list[str]:
        """Per row, the text so far; needs a tokenizer."""
        return [text.text for text in self._rows()]

    @property
    def result(self) -> Result:
        """What has been generated so far."""
        texts = None if self._texts is None else self.texts()
        return Result([list(i) for i in self._ids], texts, [list(p) for p in self._logprobs], list(self._reasons))

    @property
    def past(self) -> Past:
        """What the cache has read, prompt and answer, for a later prompt to go on from; a batch of one, unpadded."""
        if self._left is None or self._left[0] != self.step:
            self._left = self.step, self._past()
        return self._left[1]

    def _past(self) -> Past:
        if len(self._ids) != 1 or not bool(self.inputs.attention_mask.all()):
            raise InputError("Only a batch of one without padding can be gone on from.")
        new = torch.tensor(self._ids[0], dtype=torch.int64, device=self.inputs.input_ids.device)
        places = self.inputs.next_position + torch.arange(len(new), device=new.device)
        read = self.cache.length
        return Past(
            self.cache,
            torch.cat((self.inputs.input_ids[0], new))[:read],
            torch.cat((self.inputs.mm_token_type_ids[0], torch.zeros_like(new)))[:read],
            torch.cat((self.inputs.position_ids[:, 0], places.expand(3, -1)), 1)[:, :read],
            visuals(self.inputs, self._merge),
        )

    def _add(self, row: int, token: int, logprob: float) -> None:
        """Adds a token to a row, and ends the row where it has to end."""
        if math.isnan(logprob):
            raise InputError(
                f"The logits of row {row} hold NaN at step {self.step}, so no token can be chosen. An edit, or weights "
                f"in a dtype too narrow for them, made the numbers overflow."
            )
        self._ids[row].append(token)
        self._logprobs[row].append(logprob)
        text = None if self._texts is None else self._texts[row]
        ended = not self.settings.ignore_eos and token in self.settings.eos_token_id
        if ended:
            self._reasons[row] = "eos"
        elif text is not None and text.push(token):
            self._reasons[row] = "stop"
        elif len(self._ids[row]) == self.settings.max_new_tokens:
            self._reasons[row] = "length"
        if self._reasons[row] is not None:
            self._running[row] = False
            if text is not None and text.finish():
                self._reasons[row] = "stop"

    def _last(self, logits: Tensor) -> Tensor:
        """The logits [batch vocab] behind the last token of each row."""
        rows, read = self._pending.input_ids.shape
        if logits.dim() != 3 or logits.shape[0] != rows or logits.shape[1] not in (1, read):
            raise InputError(
                f"accept takes logits [batch 1 vocab] or [batch seq vocab], here [{rows} 1 …] or [{rows} {read} …]; "
                f"got {list(logits.shape)}."
            )
        if logits.shape[1] == 1:
            return logits[:, 0]
        mask = self._pending.attention_mask[:, -read:].long()
        last = (mask * torch.arange(1, read + 1, device=mask.device)).argmax(1)
        return logits[torch.arange(rows, device=last.device), last]

    def _following(self, chosen: Tensor) -> Inputs:
        """The inputs of the step that reads the chosen tokens [batch]."""
        place = self.inputs.next_position + self.step
        return Inputs(
            input_ids=chosen[:, None],
            attention_mask=self._mask[:, : self.inputs.input_ids.shape[1] + self.step + 1],
            mm_token_type_ids=self._types,
            position_ids=place[None, :, None].expand(3, -1, -1),
            next_position=place + 1,
        )

    def _rows(self) -> list[RowText]:
        if self._texts is None:
            raise InputError("Text needs a tokenizer: pass `tokenizer=` to the generation.")
        return self._texts


def run(
    model: Any,
    inputs: Inputs,
    settings: Settings,
    *,
    tokenizer: Decoder | None = None,
    past: Past | None = None,
) -> Result:
    """Generates to the end, without gradients."""
    generation = Generation(model, inputs, settings, tokenizer=tokenizer, past=past)
    finish(model, generation)
    return generation.result


def finish(model: Any, generation: Generation) -> None:
    """Turns a generation to its end, with nobody looking into it."""
    with quickest(model):
        forward(model, generation)
        steps = _recorded(model, generation)
        while (batch := generation.next_inputs()) is not None:
            if steps is None:
                forward(model, generation)
            else:
                generation.accept(steps(batch))


def _recorded(model: Any, generation: Generation) -> Callable[[Inputs], Tensor] | None:
    """The steps after the prompt's as a recording; None where that is not asked for or cannot be."""
    batch, cache = generation.next_inputs(), generation.cache
    if batch is None or not generation.settings.recorded or not isinstance(model, nn.Module):
        return None
    needed = generation.inputs.attention_mask.shape[1] + generation.settings.max_new_tokens
    if hooked(model) or observer.get() is not None or cache.recurrent or cache.capacity < needed:
        return None
    return recording(model, cache, batch)


def stream(
    model: Any, inputs: Inputs, settings: Settings, *, tokenizer: Decoder, past: Past | None = None
) -> Iterator[str]:
    """The answer to a batch of one as pieces of text, each as soon as it is certain; joined they are its `text`.

    Arguments are checked at the call, before the first piece is asked for.
    """
    if inputs.input_ids.shape[0] != 1:
        raise InputError(f"A stream is the text of one row; this batch has {inputs.input_ids.shape[0]}. Use `run`.")
    return pieces(model, Generation(model, inputs, settings, tokenizer=tokenizer, past=past))


def pieces(model: Any, generation: Generation) -> Iterator[str]:
    """Turns a generation of one row to its end, giving its text piece by piece."""
    steps = None
    while (batch := generation.next_inputs()) is not None:
        with quickest(model):  # not around the `yield`: the mode is the thread's, and the caller's code runs there
            if hooked(model):
                steps = None
            if steps is None:
                forward(model, generation)
            else:
                generation.accept(steps(batch))
            if generation.step == 1:
                steps = _recorded(model, generation)
        piece = generation.take_text()[0]
        if piece:
            yield piece


def quickest(model: Any) -> AbstractContextManager[Any]:
    """The torch mode for forwards that nobody looks into: inference mode, which spares each operation some bookkeeping.

    Tensors made in it cannot be trained on later, so where a hook may keep one the forwards run without gradients only.
    """
    return torch.no_grad() if hooked(model) else torch.inference_mode()


def hooked(model: Any) -> bool:
    """Whether a hook is set on a part of the model, or on every module there is."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return bool(has_global_hooks()) or any(part._forward_hooks or part._forward_pre_hooks for part in parts)


@torch.no_grad()
def forward(model: Any, generation: Generation) -> bool:
    """One step of a generation; False when there is none left."""
    batch = generation.next_inputs()
    if batch is None:
        return False
    chunk = generation.settings.prefill_chunk
    generation.accept(model(batch, cache=generation.cache, last_only=True, chunk=chunk))
    return True


def _check(model: Any, inputs: Inputs, settings: Settings, tokenizer: Decoder | None, past: Past | None) -> None:
    """Raises before anything is computed."""
    rows, length = inputs.input_ids.shape
    if inputs.attention_mask.shape != inputs.input_ids.shape:
        raise InputError(
            f"A generation begins with the whole prompt: attention_mask must be [batch seq] as input_ids, "
            f"{[rows, length]}; got {list(inputs.attention_mask.shape)}."
        )
    empty = (inputs.attention_mask.sum(1) == 0).nonzero().flatten().tolist()
    if empty or not length:
        raise InputError(f"A prompt needs at least one token; rows {empty or list(range(rows))} have none.")
    if settings.stop and tokenizer is None:
        raise InputError("`stop` is looked for in the text, which needs a tokenizer: pass `tokenizer=`.")
    if past is not None and (rows != 1 or not bool(inputs.attention_mask.all())):
        raise InputError("Only a batch of one without padding can go on from a past; leave `past` out.")
    limit, needed = model.config.text.max_positions, int(inputs.next_position.max()) + settings.max_new_tokens
    if needed > limit:
        raise LimitError(
            f"The model has {limit} positions; this prompt takes {needed - settings.max_new_tokens} and "
            f"max_new_tokens={settings.max_new_tokens} would take it to {needed}. Shorten the prompt, shrink its "
            f"images, or lower max_new_tokens."
        )
