"""`Chat`: a conversation of several turns, with images in any of them.

Every turn is prepared from all messages, as a model is trained to see them; what the cache already holds of that
prompt is not read again. It knows messages and a function that prepares them; the state is here, not on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cutaway.batch import Inputs
from cutaway.generate.loop import Generation, Result, pieces
from cutaway.generate.past import Past
from cutaway.generate.settings import Settings
from cutaway.generate.stop_strings import Decoder


class Chat:
    """A conversation. `ask` adds a turn and returns the answer, which is then a message too.

    - `prepare`: from messages to the `Inputs` of one row, answer opened. A message's content is a text or a list of
      parts such as ``{"type": "image", "image": …}`` and ``{"type": "text", "text": …}``.
    - `messages`: the turns so far; a system message goes here.
    - `reuse`: go on from the cache of the turn before. The answers are the same without; only the time is not.
    """

    def __init__(
        self,
        model: Any,
        prepare: Callable[[list[dict[str, Any]]], Inputs],
        settings: Settings,
        tokenizer: Decoder,
        *,
        messages: Sequence[dict[str, Any]] = (),
        reuse: bool = True,
    ) -> None:
        self.model, self.prepare, self.settings, self.tokenizer = model, prepare, settings, tokenizer
        self.messages = list(messages)
        self.reuse = reuse
        self.result: Result | None = None
        self._past: Past | None = None

    def ask(
        self, text: str, images: Sequence[Any] = (), videos: Sequence[Any] = (), *, stream: bool = False, **given: Any
    ) -> str | Iterator[str]:
        """The answer to a user turn: images, then videos, then the text. With `stream`, an iterator of its pieces.

        `given` are generation arguments for this turn alone. The turn and its answer become messages when the answer is
        complete; a stream that is dropped leaves the conversation as it was.
        """
        content = [{"type": "image", "image": image} for image in images]
        content += [{"type": "video", "video": video} for video in videos]
        turn = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        inputs = self.prepare([*self.messages, turn])
        settings = self.settings.changed(**given)
        generation = Generation(self.model, inputs, settings, tokenizer=self.tokenizer, past=self._past)
        self._past = None
        answer = self._answer(generation, turn)
        return answer if stream else "".join(answer)

    def _answer(self, generation: Generation, turn: dict[str, Any]) -> Iterator[str]:
        """The pieces of the answer; then the turn and its answer are messages."""
        try:
            yield from pieces(self.model, generation)
        finally:
            if self.reuse:
                self._past = generation.past
        self.result = generation.result
        self.messages += [turn, {"role": "assistant", "content": self.result.text}]
