"""The one list of model families: which vision encoder a config gets, and the tree put together.

Weights are whatever torch's modules start with; reading them from files is the checkpoint part's work.
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

FAMILIES: dict[str, Callable[[VisionConfig, str], Encoder]] = {
    "qwen2_vl": qwen2.VisionEncoder,
    "qwen2_5_vl": qwen2_5.VisionEncoder,
    "qwen3_vl": qwen3.VisionEncoder,
    "qwen3_vl_moe": qwen3.VisionEncoder,
    "qwen3_5": qwen3.VisionEncoder,
    "qwen3_5_moe": qwen3.VisionEncoder,
}
"""The vision encoder of each family, by the config's `model_type`."""


def build(config: Config, *, attn_implementation: str = "sdpa", text_only: bool = False) -> VLM:
    """The module tree of `config` on torch's current default device (`with torch.device("meta"):` builds no weights).

    Raises `ConfigError` for a family or an attention implementation that does not exist.
    """
    if config.family not in FAMILIES:
        raise ConfigError(
            f"The model families are {', '.join(FAMILIES)}; the config says model_type {config.family!r}."
        )
    if attn_implementation not in IMPLEMENTATIONS:
        raise ConfigError(
            f"attn_implementation must be one of {', '.join(IMPLEMENTATIONS)}; got {attn_implementation!r}. "
            f'"sdpa" is the fast one, "eager" computes every pattern step by step, "varlen" packs prompts on CUDA.'
        )
    text = TextModel(config.text, attn_implementation, taps=len(config.vision.deepstack_indexes))
    visual = None if text_only else FAMILIES[config.family](config.vision, attn_implementation)
    model = VLM(config, text, visual)
    if text_only:
        for block in text.layers:
            block.mark_unavailable(
                "deepstack_output", 'the model was loaded with task="text-generation", without its vision encoder.'
            )
    return model.eval()
