"""`Answer`: a generation that can be read as text or stood beside, step by step.

It joins the generation's loop to the steps of a trace, neither of which knows the other. It knows no prompts, no
images and no names of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from cutaway.batch import Inputs
from cutaway.generate import loop
from cutaway.generate.loop import Generation, Result
from cutaway.trace.steps import Steps
from cutaway.trace.torch_state import TorchState


class Forwards:
    """The forwards of a generation, one a step. `batch` is what the current one reads."""

    def __init__(self, root: nn.Module, generation: Generation) -> None:
        self.root, self.generation = root, generation
        self.batch: Inputs = generation.inputs

    def next_forward(self) -> Callable[[], Tensor] | None:
        """The next step's forward; None when every row has ended."""
        batch = self.generation.next_inputs()
        if batch is None:
            return None
        self.batch, cache, chunk = batch, self.generation.cache, self.generation.settings.prefill_chunk
        return lambda: self.root(batch, cache=cache, last_only=True, chunk=chunk)

    def accept(self, result: Tensor) -> Tensor:
        """Chooses the next tokens [batch] from a step's logits."""
        return self.generation.accept(result)


class Answer(Steps):
    """A generation that is to run: by itself when it is asked for its text, or step by step in a `with`::

        model.generate(prompt, max_new_tokens=8).text

        with model.generate(prompt, max_new_tokens=8) as run:
            for step in run:
                model.layers[6].layer_output[:] += direction
        run.text

    Inside the `with` it is as far as it has come.
    """

    forwards: Forwards

    @property
    def result(self) -> Result:
        """Ids, texts and probabilities of every row, and why it ended."""
        if self._state is None and not self._edits and not self.grad:
            self._state = TorchState()
            loop.finish(self.root, self.forwards.generation)
        elif self._state is None:
            with self:
                pass
        return self.forwards.generation.result

    @property
    def text(self) -> str:
        """The text of a batch of one."""
        return self.result.text

    @property
    def texts(self) -> list[str]:
        """The text of every row."""
        return self.result.texts or []

    @property
    def ids(self) -> list[list[int]]:
        """The chosen ids of every row, an end token included."""
        return self.result.ids

    @property
    def logprobs(self) -> list[list[float]]:
        """The natural logarithm of each chosen id's probability under the model, per row."""
        return self.result.logprobs

    def __repr__(self) -> str:
        generation = self.forwards.generation
        rows = generation.inputs.input_ids.shape[0]
        if self._state is None:
            return f"<Answer of {rows} row(s), not run yet: ask for `text` or `ids`, or step it in a `with`>"
        return f"<Answer of {rows} row(s), {max(map(len, generation.result.ids), default=0)} tokens so far>"

    @property
    def geometry(self) -> Any:
        """Where the prompt's tokens lie in its images and videos; None when the caller prepared them."""
        return self.forwards.generation.inputs.geometry
