"""The whole way from patches and tokens to logits. This one file shows the flow; each step is in the file it names.

It takes an `Inputs`, in which positions are counted and placeholders expanded already. It knows neither images nor
text, and keeps nothing between calls: what is to be remembered is in the `Cache` that the caller holds.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.batch import IMAGE, VIDEO, Inputs
from cutaway.config import Config
from cutaway.errors import InputError
from cutaway.model.attention import recorded
from cutaway.model.cache import Cache
from cutaway.model.layers import Linear
from cutaway.model.merge import scatter, sequence_order
from cutaway.model.text import TextModel
from cutaway.model.vision.encoder import NO_VISION, Encoder, NoVision, VisionOutput
from cutaway.named import Alias, Named, Value
from cutaway.observe import current_observer


class VLMBackbone(Named):
    """Vision encoder and text decoder, everything but the head::

    forward(inputs)
    ├─ language_model.embed_tokens      token ids -> embeddings                    layers.py
    ├─ visual(patches)                  patches -> features, DeepStack terms       vision/
    ├─ scatter                          features into the placeholders' rows       merge.py
    └─ language_model                   blocks, DeepStack added after the first    text.py
    """

    token_embeddings = Value(
        "batch seq hidden", "what enters block 0: word embeddings and the visual features among them"
    )

    def __init__(self, text: TextModel, visual: Encoder | None) -> None:
        super().__init__()
        self.visual = visual if visual is not None else NoVision()
        self.language_model = text

    def forward(self, inputs: Inputs, cache: Cache | None = None, chunk: int | None = None) -> Tensor:
        """The normed stream [batch seq hidden]; with `chunk` the text decoder reads that many tokens at a time."""
        embeddings = self.language_model.embed_tokens(_own(inputs.input_ids))
        vision = self.encode(inputs)
        types = inputs.mm_token_type_ids
        if vision.images is not None:
            embeddings = scatter(embeddings, types == IMAGE, vision.images, "image")
        if vision.videos is not None:
            embeddings = scatter(embeddings, types == VIDEO, vision.videos, "video")
        embeddings = self.value("token_embeddings", embeddings)
        visual_mask = types > 0 if vision.deepstack else None
        if chunk is None or embeddings.shape[1] <= chunk:
            return self.language_model(
                embeddings,
                position_ids=inputs.position_ids,
                attention_mask=inputs.attention_mask,
                visual_mask=visual_mask,
                deepstack=vision.deepstack,
                cache=cache,
            )
        return self._in_chunks(embeddings, inputs, visual_mask, vision.deepstack, cache, chunk)

    def encode(self, inputs: Inputs) -> VisionOutput:
        """Run the vision encoder over all images and videos of the batch in one packed call.

        DeepStack terms come in sequence order, one row for each visual token.
        """
        parts = [
            (patches, grid)
            for patches, grid in (
                (inputs.pixel_values, inputs.image_grid_thw),
                (inputs.pixel_values_videos, inputs.video_grid_thw),
            )
            if patches is not None and grid is not None
        ]
        if not parts:
            self._check_no_placeholders(inputs)
            return VisionOutput()
        if isinstance(self.visual, NoVision):
            raise InputError(f"This batch has images, but {NO_VISION}")
        images = 0 if inputs.image_grid_thw is None else len(inputs.image_grid_thw)
        patches = torch.cat([p for p, _ in parts]) if len(parts) > 1 else _own(parts[0][0])
        grids = torch.cat([g for _, g in parts]).tolist()
        vision = self.visual(patches, grids=grids, images=images)
        types = inputs.mm_token_type_ids
        order = sequence_order(types == IMAGE, types == VIDEO) if vision.deepstack else None
        return vision if order is None else vision._replace(deepstack=tuple(term[order] for term in vision.deepstack))

    def _check_no_placeholders(self, inputs: Inputs) -> None:
        """Raise `InputError` for placeholders without images, which would be read as words."""
        if recorded(inputs.input_ids):  # the steps before this one were looked at
            return
        positions = int((inputs.mm_token_type_ids > 0).sum())
        if positions:
            raise InputError(
                f"Every placeholder takes one row of features; got {positions} placeholder tokens and no pixel_values. "
                f"Prepare text and images together with the model's processor."
            )

    def _in_chunks(
        self,
        embeddings: Tensor,
        inputs: Inputs,
        visual_mask: Tensor | None,
        deepstack: tuple[Tensor, ...],
        cache: Cache | None,
        chunk: int,
    ) -> Tensor:
        """Reads the prompt `chunk` tokens at a time; each chunk takes the DeepStack rows of its own placeholders."""
        if cache is None:
            raise InputError(
                "A prompt is read in chunks through a cache: pass `cache=model.new_cache(...)` with `chunk`."
            )
        past, outputs, terms = cache.length, [], ()
        if visual_mask is not None:
            terms = [torch.zeros_like(embeddings).masked_scatter(visual_mask[..., None], t) for t in deepstack]
        for start in range(0, embeddings.shape[1], chunk):
            span = slice(start, start + chunk)
            mask = None if visual_mask is None else visual_mask[:, span]
            outputs.append(
                self.language_model(
                    embeddings[:, span],
                    position_ids=inputs.position_ids[..., span],
                    attention_mask=inputs.attention_mask[:, : past + start + chunk],
                    visual_mask=mask,
                    deepstack=() if mask is None else tuple(t[:, span][mask] for t in terms),
                    cache=cache,
                )
            )
        return torch.cat(outputs, 1)


class VLM(Named):
    """A Qwen-VL model: `VLMBackbone` and the head. Modules have the names of the published Qwen3-VL checkpoints."""

    input_ids = Value(
        "batch seq", "the token ids, placeholders expanded", from_inputs=True, writable=False, dtype="int64"
    )
    attention_mask = Value("batch seq", "1 at tokens, 0 at padding", from_inputs=True, writable=False, dtype="int64")
    position_ids = Value(
        "3 batch seq", "time, height and width position of every token", from_inputs=True, writable=False, dtype="int64"
    )
    input_size = Value(
        "2", "the size of `input_ids`: samples and tokens", from_inputs=True, writable=False, dtype="int64"
    )
    token_embeddings = Alias("model.token_embeddings")
    logits = Value("batch seq vocab", "the head's output")
    next_token_probs = Value(
        "batch vocab", "softmax of the logits at each row's last token", computed=True, writable=False, dtype="float32"
    )

    visual, vision = Alias("model.visual"), Alias("model.visual")
    language_model = Alias("model.language_model")
    layers = Alias("model.language_model.layers")
    projector = Alias("model.visual.merger")

    def __init__(self, config: Config, text: TextModel, visual: Encoder | None) -> None:
        super().__init__()
        self.config = config
        self.num_layers, self.hidden_size = config.text.num_layers, config.text.hidden_size
        self.vocab_size, self.intermediate_size = config.text.vocab_size, config.text.intermediate_size
        self.num_heads, self.num_kv_heads = config.text.num_heads, config.text.num_kv_heads
        self.head_dim = config.text.head_dim
        self.model = VLMBackbone(text, visual)
        self.lm_head = Linear(config.text.hidden_size, config.text.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = text.embed_tokens.weight

    def forward(
        self, inputs: Inputs, cache: Cache | None = None, *, last_only: bool = False, chunk: int | None = None
    ) -> Tensor:
        """Logits [batch seq vocab], or [batch 1 vocab] for the last token of each row with `last_only`.

        `cache` holds what was read before and takes up what is read now. `chunk` reads a prompt that many tokens at a
        time.
        """
        hidden = self.model(inputs, cache, chunk)
        if (last_only or self.wants("next_token_probs")) and not self.wants("logits"):
            hidden = last_tokens(hidden, inputs.attention_mask)
        logits = self.value("logits", self.lm_head(hidden))
        if self.wants("next_token_probs"):
            last = logits if logits.shape[1] == 1 else last_tokens(logits, inputs.attention_mask)
            self.value("next_token_probs", F.softmax(last[:, 0].float(), dim=-1))
        return logits

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache with room for `capacity` tokens; it takes batch, dtype and device from what comes first."""
        return Cache(self.num_layers, capacity)


def _own(tensor: Tensor) -> Tensor:
    """The caller's tensor, or a copy where somebody watches: an edit in place must not reach the caller's batch."""
    return tensor if current_observer() is None else tensor.clone()


def last_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """[batch 1 …]: the rows of `x` [batch seq …] at the last token of each row that is no padding.

    `mask` is [batch past+seq].
    """
    seq = x.shape[1]
    if seq == 1:
        return x
    positions = torch.arange(seq, device=x.device).expand(x.shape[0], seq)
    last = torch.where(mask[:, -seq:].bool(), positions, 0).amax(1)
    return x[torch.arange(x.shape[0], device=x.device), last][:, None]
