"""Build the module tree of a config: the vision encoder that it names, the text decoder, the head.

Weights are whatever torch's modules start with; `cutaway.checkpoint` reads them from files. Families are not known
here: a config says what to build.
"""

from __future__ import annotations

from collections.abc import Callable

from cutaway.config import Config, VisionConfig
from cutaway.errors import ConfigError
from cutaway.model.attention import IMPLEMENTATIONS
from cutaway.model.text import TextModel
from cutaway.model.vision import qwen2, qwen2_5, qwen3
from cutaway.model.vision.encoder import Encoder
from cutaway.model.vlm import VLM

ENCODERS: dict[str, Callable[[VisionConfig, str], Encoder]] = {
    "qwen2": qwen2.VisionEncoder,
    "qwen2_5": qwen2_5.VisionEncoder,
    "qwen3": qwen3.VisionEncoder,
}
"""The vision encoders, by `VisionConfig.encoder`."""


def build(config: Config, *, attn_implementation: str = "sdpa", text_only: bool = False) -> VLM:
    """The module tree of `config` on torch's current default device (`with torch.device("meta"):` builds no weights).

    Raises `ConfigError` for a vision encoder or an attention implementation that does not exist.
    """
    if config.vision.encoder not in ENCODERS:
        raise ConfigError(f"VisionConfig.encoder must be one of {', '.join(ENCODERS)}; got {config.vision.encoder!r}.")
    if attn_implementation not in IMPLEMENTATIONS:
        raise ConfigError(
            f"attn_implementation must be one of {', '.join(IMPLEMENTATIONS)}; got {attn_implementation!r}. "
            f'"sdpa" is the fast one, "eager" computes every pattern step by step, "varlen" packs prompts on CUDA.'
        )
    text = TextModel(config.text, attn_implementation, deepstack_layers=len(config.vision.deepstack_indexes))
    visual = None if text_only else ENCODERS[config.vision.encoder](config.vision, attn_implementation)
    model = VLM(config, text, visual)
    if text_only:
        for block in text.layers:
            block.mark_unavailable(
                "deepstack_output", 'the model was loaded with task="text-generation", without its vision encoder.'
            )
    return model.eval()
