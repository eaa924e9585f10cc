"""Token-by-token generation: `Generation` is a loop that the caller turns, `generate` and `stream` turn it to its end.

`Generation` makes the inputs of every step and chooses tokens from the logits of every step; between the two the caller
runs the model, directly or inside a trace. Use it where each step is to be seen; `Model.generate` is the public way. It
does not know how the model computes, nor what a prompt looks like.
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
from cutaway.generate.cuda_graph import GraphSteps
from cutaway.generate.sample import Sampler
from cutaway.generate.settings import Settings
from cutaway.generate.stop_strings import SampleText, TextTokenizer
from cutaway.model.cache import Cache
from cutaway.observe import observer


@dataclass(frozen=True)
class Result:
    """What was generated, with an entry for every sample of the batch.

    - `ids`: the chosen ids, an end token included.
    - `texts`: their text without special tokens, ended before a stop string; None when there is no tokenizer.
    - `logprobs`: the natural logarithm of each chosen token's probability under the model's own distribution, before
      penalties, temperature and filters.
    - `finish_reasons`: "eos" for an end token, "stop" for a stop string, "length" for `max_new_tokens`; None while a
      sample goes on.
    - `texts_with_special_tokens`: as `texts`, with special tokens such as `<|box_start|>` and the end token.
    """

    ids: list[list[int]]
    texts: list[str] | None
    logprobs: list[list[float]]
    finish_reasons: list[str | None]
    texts_with_special_tokens: list[str] | None = None

    @property
    def text(self) -> str:
        """The text of a batch of one."""
        return self._only("text", self.texts)

    @property
    def text_with_special_tokens(self) -> str:
        """The text of a batch of one, special tokens and the end token included."""
        return self._only("text_with_special_tokens", self.texts_with_special_tokens)

    def _only(self, name: str, texts: list[str] | None) -> str:
        if texts is None:
            raise InputError(f"`{name}` needs a tokenizer, and there is none here. Read `ids`.")
        if len(texts) != 1:
            raise InputError(f"`{name}` is the answer of a batch of one; got {len(texts)} samples. Read `texts`.")
        return texts[0]


class Generation:
    """One generation over a batch, advanced by its caller::

        while (batch := generation.next_inputs()) is not None:
            generation.accept(model(batch, cache=generation.cache, last_only=True))

    A sample that has ended is fed padding until all have; samples do not influence each other. They may be padded on
    either side. Placeholder ids that the model itself chooses are text. Nothing is stored on the model.

    - `tokenizer`: needed for text and stop strings alone.
    - `cache`, `unread`: a cache that has read the beginning of `inputs`, and the part of `inputs` after it; without
      them the whole of `inputs` is read into a new cache.

    Raises `LimitError` when prompt and answer exceed the model's positions, `InputError` for what cannot be generated.
    """

    def __init__(
        self,
        model: Any,
        inputs: Inputs,
        settings: Settings,
        *,
        tokenizer: TextTokenizer | None = None,
        cache: Cache | None = None,
        unread: Inputs | None = None,
    ) -> None:
        _check(model, inputs, settings, tokenizer)
        batch, length = inputs.input_ids.shape
        self.settings, self.inputs = settings, inputs
        self.step = 0
        self.cache: Cache = model.new_cache(length + settings.max_new_tokens) if cache is None else cache
        self._pending = inputs if unread is None else unread
        self._sampler = Sampler(settings, inputs.input_ids, inputs.attention_mask)
        self._mask = torch.nn.functional.pad(inputs.attention_mask, (0, settings.max_new_tokens), value=1)
        self._types = torch.zeros_like(inputs.mm_token_type_ids[:, :1])
        self._running = torch.ones(batch, dtype=torch.bool, device=inputs.input_ids.device)
        self._texts = [SampleText(tokenizer, settings.stop) for _ in range(batch)] if tokenizer else None
        self._ids: list[list[int]] = [[] for _ in range(batch)]
        self._logprobs: list[list[float]] = [[] for _ in range(batch)]
        self._reasons: list[str | None] = [None] * batch

    @property
    def done(self) -> bool:
        """Whether every sample has ended."""
        return all(reason is not None for reason in self._reasons)

    def next_inputs(self) -> Inputs | None:
        """What the model reads next: the prompt, then one token per sample; None when every sample has ended."""
        return None if self.done else self._pending

    @torch.no_grad()
    def accept(self, logits: Tensor) -> Tensor:
        """Choose the next token of every sample and return them [batch]; an ended sample gets the padding id.

        `logits` is [batch 1 vocab], or [batch seq vocab] with an entry for every token of `next_inputs`.
        """
        if self.done:
            raise InputError("Every sample has ended, so no further token is chosen. Read `result`.")
        tokens, logprobs = self._sampler.pick(self._last(logits))
        tokens = torch.where(self._running, tokens, self.settings.pad_token_id)
        ids, values = torch.stack((tokens.double(), logprobs.double())).tolist()  # the one wait for the device
        for sample, reason in enumerate(self._reasons):
            if reason is None:
                self._add(sample, int(ids[sample]), values[sample])
        self._pending = self._next_step(tokens)
        self.step += 1
        return tokens

    def new_text(self) -> list[str]:
        """For every sample the text that became certain since the last call; needs a tokenizer."""
        return [text.new() for text in self._sample_texts()]

    def texts(self) -> list[str]:
        """For every sample the text so far; needs a tokenizer."""
        return [text.text for text in self._sample_texts()]

    @property
    def result(self) -> Result:
        """What has been generated so far."""
        texts = self._texts
        return Result(
            ids=[list(ids) for ids in self._ids],
            texts=None if texts is None else [text.text for text in texts],
            logprobs=[list(logprobs) for logprobs in self._logprobs],
            finish_reasons=list(self._reasons),
            texts_with_special_tokens=None if texts is None else [text.text_with_special_tokens for text in texts],
        )

    def _add(self, sample: int, token: int, logprob: float) -> None:
        """Add a token to a sample, and end the sample where it has to end."""
        if math.isnan(logprob):
            raise InputError(
                f"The logits of sample {sample} hold NaN at step {self.step}, so no token can be chosen. An edit, or "
                f"weights in a dtype too narrow for them, made the numbers overflow."
            )
        self._ids[sample].append(token)
        self._logprobs[sample].append(logprob)
        self._reasons[sample] = self._end_reason(sample, token)
        if self._reasons[sample] is not None:
            self._running[sample] = False

    def _end_reason(self, sample: int, token: int) -> str | None:
        """Why a sample ends with this token, which is given to its text as well; None where it goes on."""
        text = None if self._texts is None else self._texts[sample]
        if not self.settings.ignore_eos and token in self.settings.eos_token_id:
            if text is not None and text.finish(end_token=token):
                return "stop"
            return "eos"
        if text is not None and text.push(token):
            return "stop"
        if len(self._ids[sample]) == self.settings.max_new_tokens:
            return "stop" if text is not None and text.finish() else "length"
        return None

    def _last(self, logits: Tensor) -> Tensor:
        """The logits [batch vocab] at the last token of each sample."""
        batch, read = self._pending.input_ids.shape
        if logits.dim() != 3 or logits.shape[0] != batch or logits.shape[1] not in (1, read):
            raise InputError(
                f"accept takes logits [batch 1 vocab] or [batch seq vocab], here [{batch} 1 …] or [{batch} {read} …]; "
                f"got {list(logits.shape)}."
            )
        if logits.shape[1] == 1:
            return logits[:, 0]
        mask = self._pending.attention_mask[:, -read:].long()
        last = (mask * torch.arange(1, read + 1, device=mask.device)).argmax(1)
        return logits[torch.arange(batch, device=last.device), last]

    def _next_step(self, tokens: Tensor) -> Inputs:
        """The inputs of the step that reads the chosen tokens [batch]."""
        position = self.inputs.next_position + self.step  # [batch]
        return Inputs(
            input_ids=tokens[:, None],
            attention_mask=self._mask[:, : self.inputs.input_ids.shape[1] + self.step + 1],
            mm_token_type_ids=self._types,
            position_ids=position[None, :, None].expand(3, -1, -1),  # [3 batch 1]
            next_position=position + 1,
        )

    def _sample_texts(self) -> list[SampleText]:
        if self._texts is None:
            raise InputError("Text needs a tokenizer, and this generation has none. Read `result.ids`.")
        return self._texts


def generate(model: Any, inputs: Inputs, settings: Settings, *, tokenizer: TextTokenizer | None = None) -> Result:
    """Generate to the end, without gradients."""
    generation = Generation(model, inputs, settings, tokenizer=tokenizer)
    run_to_end(model, generation)
    return generation.result


def run_to_end(model: Any, generation: Generation) -> None:
    """Run all steps that are left, with nobody looking into the forward."""
    with without_gradients(model):
        run_step(model, generation)
        graph = _graph_steps(model, generation)
        while (batch := generation.next_inputs()) is not None:
            if graph is None:
                run_step(model, generation)
            else:
                generation.accept(graph(batch))


def stream(model: Any, generation: Generation) -> Iterator[str]:
    """Run a generation of one sample to its end, giving its text piece by piece, each as soon as it is certain.

    The number of samples is checked at the call, before the first piece is asked for.
    """
    batch = generation.inputs.input_ids.shape[0]
    if batch != 1:
        raise InputError(f"A stream is the text of one sample; got a batch of {batch}. Use `generate` for a batch.")
    return _stream(model, generation)


def _stream(model: Any, generation: Generation) -> Iterator[str]:
    graph = None
    while (batch := generation.next_inputs()) is not None:
        with without_gradients(
            model
        ):  # not around the `yield`: the mode is the thread's, and the caller's code runs there
            if has_hooks(model):
                graph = None
            if graph is None:
                run_step(model, generation)
            else:
                generation.accept(graph(batch))
            if generation.step == 1:
                graph = _graph_steps(model, generation)
        piece = generation.new_text()[0]
        if piece:
            yield piece


@torch.no_grad()
def run_step(model: Any, generation: Generation) -> bool:
    """Run one step of a generation; False when there is none left."""
    batch = generation.next_inputs()
    if batch is None:
        return False
    chunk = generation.settings.prefill_chunk
    generation.accept(model(batch, cache=generation.cache, last_only=True, chunk=chunk))
    return True


def without_gradients(model: Any) -> AbstractContextManager[Any]:
    """The torch mode for forwards that nobody looks into: inference mode, which saves bookkeeping for each operation.

    Tensors made in it cannot be trained on later, so where a hook may keep one the mode is `no_grad`.
    """
    return torch.no_grad() if has_hooks(model) else torch.inference_mode()


def has_hooks(model: Any) -> bool:
    """Whether a hook is set on a part of the model, or globally on every module."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return bool(has_global_hooks()) or any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def _graph_steps(model: Any, generation: Generation) -> Callable[[Inputs], Tensor] | None:
    """The steps after the prompt as a CUDA graph; None where that is not asked for or would hide something."""
    batch, cache = generation.next_inputs(), generation.cache
    if batch is None or not generation.settings.recorded or not isinstance(model, nn.Module):
        return None
    needed = generation.inputs.attention_mask.shape[1] + generation.settings.max_new_tokens
    if has_hooks(model) or observer.get() is not None or cache.recurrent or cache.capacity < needed:
        return None
    return GraphSteps(model, cache, batch)


def _check(model: Any, inputs: Inputs, settings: Settings, tokenizer: TextTokenizer | None) -> None:
    """Raise before anything is computed."""
    batch, length = inputs.input_ids.shape
    if inputs.attention_mask.shape != inputs.input_ids.shape:
        raise InputError(
            f"A generation begins with the whole prompt: attention_mask must be [batch seq] as input_ids, "
            f"{[batch, length]}; got {list(inputs.attention_mask.shape)}."
        )
    empty = (inputs.attention_mask.sum(1) == 0).nonzero().flatten().tolist()
    if empty or not length:
        raise InputError(
            f"A prompt needs at least one token; got none for sample(s) {empty or list(range(batch))}. Leave them out."
        )
    if settings.stop and tokenizer is None:
        raise InputError(
            "`stop` is looked for in the text of the answer, and this model has no tokenizer to make it. Leave `stop` "
            "out, or give the ids that are to end the answer as `eos_token_id`."
        )
    if settings.recorded and not inputs.input_ids.is_cuda:
        raise InputError(
            f"recorded=True runs the steps as a CUDA graph, which needs a model on a CUDA device; got one on "
            f"{inputs.input_ids.device}. Leave `recorded` out."
        )
    limit, needed = model.config.text.max_positions, int(inputs.next_position.max()) + settings.max_new_tokens
    if needed > limit:
        raise LimitError(
            f"The model has {limit} positions; this prompt takes {needed - settings.max_new_tokens} and "
            f"max_new_tokens={settings.max_new_tokens} would take it to {needed}. Shorten the prompt, shrink its "
            f"images, or lower max_new_tokens."
        )
