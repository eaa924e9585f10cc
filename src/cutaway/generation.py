"""`Answer`: a generation that can be read as text, or traced step by step.

It joins the loop of `generate` to the steps of `trace`, neither of which imports the other. It knows nothing of
prompts, images or the names of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from cutaway.batch import Inputs
from cutaway.generate.loop import Generation, Result, run_to_end
from cutaway.trace.steps import Steps
from cutaway.trace.torch_state import TorchState


class GenerationForwards:
    """The forwards of a generation, one for each step. `batch` is what the current step reads.

    The prompt is read at once, whatever `prefill_chunk` says: in pieces, every value would be computed once for each,
    and an edit by positions would mean other tokens in each.
    """

    def __init__(self, root: nn.Module, generation: Generation) -> None:
        self.root, self.generation = root, generation
        self.batch: Inputs = generation.inputs

    def next_forward(self) -> Callable[[], Tensor] | None:
        """The next step's forward; None when every sample has ended."""
        batch = self.generation.next_inputs()
        if batch is None:
            return None
        self.batch, cache = batch, self.generation.cache
        return lambda: self.root(batch, cache=cache, last_only=True)

    def accept(self, result: Tensor) -> Tensor:
        """Choose the next tokens [batch] from a step's logits."""
        return self.generation.accept(result)


class Answer(Steps):
    """A generation, not run yet: it runs when its text is read, or step by step in a `with`::

        model.generate(prompt, max_new_tokens=8).text

        with model.generate(prompt, max_new_tokens=8) as run:
            for step in run:
                model.layers[6].layer_output[:] += direction
        run.text

    Inside the `with`, text and ids are those of the steps so far.
    """

    forwards: GenerationForwards

    @property
    def result(self) -> Result:
        """Ids, texts and probabilities of every sample, and why it ended."""
        if self._state is None and not self._edits and not self.grad:
            self._state = TorchState()
            run_to_end(self.root, self.forwards.generation)
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
        """The text of every sample."""
        return self.result.texts or []

    @property
    def text_with_special_tokens(self) -> str:
        """The text of a batch of one, with special tokens such as ``<|box_start|>`` and the end token."""
        return self.result.text_with_special_tokens

    @property
    def ids(self) -> list[list[int]]:
        """The generated ids of every sample, an end token included."""
        return self.result.ids

    @property
    def logprobs(self) -> list[list[float]]:
        """The natural logarithm of each generated id's probability under the model, for every sample."""
        return self.result.logprobs

    def __repr__(self) -> str:
        generation = self.forwards.generation
        samples = generation.inputs.input_ids.shape[0]
        if self._state is None:
            return f"<Answer of {samples} sample(s), not run yet: read `text` or `ids`, or step it in a `with`>"
        return f"<Answer of {samples} sample(s), {max(map(len, generation.result.ids), default=0)} tokens so far>"

    @property
    def geometry(self) -> Any:
        """Where the prompt's tokens lie in its images and videos; None when the caller prepared the inputs."""
        return self.forwards.generation.inputs.geometry
