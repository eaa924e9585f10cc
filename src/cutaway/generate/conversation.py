"""`Chat`: a conversation of several turns, with images and videos in any of them. `Model.chat` makes one.

Every turn is prepared from all messages, as the model was trained to see them. What the cache has already read of that
prompt is not read again; the answers are the same without the cache. An answer is kept as the ids that were generated,
so the next prompt contains exactly those wherever the chat template shows the answer unchanged. The state is in the
`Chat`, never on the model. This module knows no templates and opens no files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, GeneratedText, Inputs
from cutaway.errors import InputError
from cutaway.generate.loop import Generation, Result, stream
from cutaway.generate.settings import Settings
from cutaway.generate.stop_strings import TextTokenizer
from cutaway.model.cache import Cache

Message = dict[str, Any]


class Chat:
    """A conversation. `ask` adds a turn and returns the answer, which is then a message too::

        chat = model.chat(system="Be brief.")
        chat.ask("What is this?", images=["seven.png"])
        chat.ask("Are you sure?")

    - `messages`: the conversation so far, a list of dicts with `role` and `content`. It may be changed between turns;
      the content of an answer is a string that also has the `ids` it was generated as.
    - `text`: the last answer. `result`: its ids, log-probabilities and why it ended.
    - `reuse`: whether a turn goes on from the cache of the turn before it.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        tokenizer: TextTokenizer,
        *,
        prepare: Callable[[list[Message]], Inputs],
        user_turn: Callable[[str, Any, Any], list[Message]],
        messages: Sequence[Message] = (),
        media_options: Collection[str] = (),
        reuse: bool = True,
    ) -> None:
        """`prepare` makes `Inputs` of one sample from messages, `user_turn` messages from a text, images and videos.

        `media_options` are the names of options that `prepare` has and a turn cannot change.
        """
        self._model, self._settings, self._tokenizer = model, settings, tokenizer
        self._prepare, self._user_turn, self._media_options = prepare, user_turn, media_options
        self.messages: list[Message] = list(messages)
        self.reuse = reuse
        self._results: list[Result] = []
        self._cached: CachedPrefix | None = None

    @property
    def text(self) -> str:
        """The last answer of `ask`. Raises `InputError` before the first."""
        return self.result.text

    @property
    def result(self) -> Result:
        """Ids, log-probabilities and finish reason of the last answer. Raises `InputError` before the first."""
        if not self._results:
            raise InputError("There is no answer yet. Ask something first: `chat.ask(...)`.")
        return self._results[-1]

    @overload
    def ask(
        self, text: str, images: Any = None, videos: Any = None, *, stream: Literal[False] = False, **options: Any
    ) -> str: ...

    @overload
    def ask(
        self, text: str, images: Any = None, videos: Any = None, *, stream: Literal[True], **options: Any
    ) -> Iterator[str]: ...

    def ask(
        self, text: str, images: Any = None, videos: Any = None, *, stream: bool = False, **options: Any
    ) -> str | Iterator[str]:
        """The answer to a user's turn: images, then videos, then the text. With `stream`, an iterator of its pieces.

        `options` are generation arguments for this turn alone. The turn and its answer become messages when the answer
        is complete; a stream that is left early leaves the conversation as it was.
        """
        if not isinstance(text, str):
            raise InputError(f"A turn is a text with `images=` and `videos=`; got {type(text).__name__}.")
        whole = [name for name in options if name in self._media_options]
        if whole:
            raise InputError(
                f"`{whole[0]}` belongs to the whole conversation, as earlier images are prepared again with it. Give "
                f"it to `model.chat({whole[0]}=…)`."
            )
        turn = self._user_turn(text, images, videos)
        settings = self._settings.changed(**options)
        inputs = self._prepare([*self.messages, *turn])
        cached, self._cached = self._cached, None
        cache, unread = (None, None) if cached is None else cached.continued(inputs)
        generation = Generation(self._model, inputs, settings, tokenizer=self._tokenizer, cache=cache, unread=unread)
        answer = self._answer(generation, turn)
        return answer if stream else "".join(answer)

    def undo(self) -> None:
        """Take back the last turn: its question and everything after it. Raises `InputError` when there is none."""
        users = [index for index, message in enumerate(self.messages) if message.get("role") == "user"]
        if not users:
            raise InputError("There is no turn to undo: the conversation has no message of a user.")
        if any(message.get("role") == "assistant" for message in self.messages[users[-1] :]) and self._results:
            self._results.pop()
        del self.messages[users[-1] :]

    def _answer(self, generation: Generation, turn: list[Message]) -> Iterator[str]:
        """The pieces of the answer; then the turn and its answer become messages."""
        try:
            yield from stream(self._model, generation)
        finally:
            if self.reuse:
                self._cached = CachedPrefix.of(generation, self._model.config.vision.spatial_merge_size)
        result = generation.result
        ids = result.ids[0][:-1] if result.finish_reasons[0] == "eos" else result.ids[0]
        self._results.append(result)
        self.messages += [*turn, {"role": "assistant", "content": GeneratedText(result.text, ids)}]

    def __repr__(self) -> str:
        turns = sum(message.get("role") == "user" for message in self.messages)
        return f"<Chat of {turns} turn(s); ask with `chat.ask(...)`>"


@dataclass(frozen=True, eq=False)
class PromptMedium:
    """An image or video of a prompt: kind, first and last position, grid [3], patches [patches width]."""

    kind: int
    first: int
    last: int
    grid: Tensor
    patches: Tensor

    def equals(self, other: PromptMedium | None) -> bool:
        """Whether both are the same image or video, pixel for pixel, at the same positions."""
        return (
            other is not None
            and (self.kind, self.first, self.last) == (other.kind, other.first, other.last)
            and torch.equal(self.grid, other.grid)
            and torch.equal(self.patches, other.patches)
        )


@dataclass(frozen=True, eq=False)
class CachedPrefix:
    """The tokens of one sample that a cache has read, so that a later prompt that begins alike need not be read again.

    `ids`, `types` [tokens] and `positions` [3 tokens] are those of the prompt and of the answer; `media` its images and
    videos; `merge` the model's `spatial_merge_size`.
    """

    cache: Cache
    ids: Tensor
    types: Tensor
    positions: Tensor
    media: list[PromptMedium]
    merge: int

    @classmethod
    def of(cls, generation: Generation, merge: int) -> CachedPrefix:
        """What the cache of a generation (one sample, unpadded) has read."""
        inputs, read = generation.inputs, generation.cache.length
        new = torch.tensor(generation.result.ids[0], dtype=torch.int64, device=inputs.input_ids.device)
        positions = inputs.next_position + torch.arange(len(new), device=new.device)
        return cls(
            generation.cache,
            torch.cat((inputs.input_ids[0], new))[:read],
            torch.cat((inputs.mm_token_type_ids[0], torch.zeros_like(new)))[:read],
            torch.cat((inputs.position_ids[:, 0], positions.expand(3, -1)), 1)[:, :read],
            media_of(inputs, merge),
            merge,
        )

    def continued(self, inputs: Inputs) -> tuple[Cache, Inputs]:
        """The cache, cropped to what `inputs` (one sample, unpadded) has in common with it, and the inputs after that.

        At least one token is left to read. A cache with a recurrent state cannot be cropped, and is emptied unless all
        of it is in common.
        """
        start = self.common(inputs)
        if start < self.cache.length and self.cache.recurrent:
            start = 0
        self.cache.crop(start)
        return self.cache, remaining(inputs, start, self.merge)

    def common(self, inputs: Inputs) -> int:
        """How many tokens at the beginning of `inputs` are those that the cache has read, images and all."""
        count = min(self.ids.shape[0], inputs.input_ids.shape[1] - 1, self.cache.length)
        same = (
            (self.ids[:count] == inputs.input_ids[0, :count])
            & (self.types[:count] == inputs.mm_token_type_ids[0, :count])
            & (self.positions[:, :count] == inputs.position_ids[:, 0, :count]).all(0)
        )
        differing = (~same).nonzero()
        start = int(differing[0]) if len(differing) else count
        known = {medium.first: medium for medium in self.media}
        for medium in media_of(inputs, self.merge):
            if medium.first < start and (medium.last >= start or not medium.equals(known.get(medium.first))):
                start = medium.first
        return start


def media_of(inputs: Inputs, merge: int) -> list[PromptMedium]:
    """Every image and video of a batch of one, in order of their positions."""
    media = []
    for kind, patches, grids in (
        (IMAGE, inputs.pixel_values, inputs.image_grid_thw),
        (VIDEO, inputs.pixel_values_videos, inputs.video_grid_thw),
    ):
        if patches is None or grids is None:
            continue
        positions = (inputs.mm_token_type_ids[0] == kind).nonzero().flatten().tolist()
        patch = token = 0
        for grid in grids:
            size = int(grid.prod())
            end = token + size // merge**2
            if end > len(positions) or end == token:
                raise InputError(
                    f"An image or video takes one placeholder token for every {merge}×{merge} patches; got "
                    f"{len(positions)} placeholder tokens, and the grids need more."
                )
            media.append(PromptMedium(kind, positions[token], positions[end - 1], grid, patches[patch : patch + size]))
            patch, token = patch + size, end
    return sorted(media, key=lambda medium: medium.first)


def remaining(inputs: Inputs, start: int, merge: int) -> Inputs:
    """The inputs (one sample) from position `start` on, with a mask for all of it and the images that are left."""
    if start == 0:
        return inputs
    left = [medium for medium in media_of(inputs, merge) if medium.first >= start]

    def arrays(kind: int) -> tuple[Tensor | None, Tensor | None]:
        media = [medium for medium in left if medium.kind == kind]
        if not media:
            return None, None
        return torch.cat([medium.patches for medium in media]), torch.stack([medium.grid for medium in media])

    pixel_values, image_grid_thw = arrays(IMAGE)
    pixel_values_videos, video_grid_thw = arrays(VIDEO)
    seconds = inputs.second_per_grid_ts
    videos = 0 if video_grid_thw is None else len(video_grid_thw)
    return replace(
        inputs,
        input_ids=inputs.input_ids[:, start:],
        mm_token_type_ids=inputs.mm_token_type_ids[:, start:],
        position_ids=inputs.position_ids[:, :, start:],
        pixel_values=pixel_values,
        image_grid_thw=image_grid_thw,
        pixel_values_videos=pixel_values_videos,
        video_grid_thw=video_grid_thw,
        second_per_grid_ts=None if seconds is None or not videos else seconds[-videos:],
        geometry=None,
    )
