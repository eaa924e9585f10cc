"""The mixture and the linear attention beside transformers, at published sizes, on the same weights.

The mixture has the sizes of Qwen3-VL-30B-A3B at half width (128 experts, 8 chosen), the linear attention those of
Qwen3.5-4B. It needs about 4 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import OURS, Work
from cutaway.config import LinearAttention, MixtureSizes, Rope, TextConfig
from cutaway.model.cache import Cache
from cutaway.model.delta_net import GatedDeltaNet, unit_length
from cutaway.model.delta_rule import in_chunks
from cutaway.model.experts import MixtureMLP

KEY_HEADS, VALUE_HEADS, HEAD_DIM = 16, 32, 128


def sizes(hidden: int) -> TextConfig:
    """A text config of which only the mixture's and the linear attention's sizes matter."""
    return TextConfig(
        vocab_size=8,
        hidden_size=hidden,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        norm_eps=1e-6,
        max_positions=8,
        rope=Rope(1e6, (2, 1, 1), True),
        layer_types=("linear_attention",),
        mlp_types=("experts",),
        experts=MixtureSizes(128, 8, 384),
        linear=LinearAttention(KEY_HEADS, VALUE_HEADS, HEAD_DIM, HEAD_DIM, 4),
    )


def filled(module: nn.Module) -> nn.Module:
    """The module with small random weights."""
    for parameter in module.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.02)
    return module.eval()


def mixtures(hidden: int = 1024) -> dict[str, Callable[[Tensor], Tensor]]:
    """Our mixture and the reference's two ways on the CPU."""
    from transformers import Qwen3VLMoeTextConfig
    from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextSparseMoeBlock

    ours = filled(MixtureMLP(sizes(hidden)))
    results: dict[str, Callable[[Tensor], Tensor]] = {OURS: ours}
    for way in ("grouped_mm", "eager"):
        config = Qwen3VLMoeTextConfig(
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=384, hidden_size=hidden
        )
        config._experts_implementation = way
        theirs = Qwen3VLMoeTextSparseMoeBlock(config).eval()
        theirs.load_state_dict(ours.state_dict())
        results[f"transformers {way}"] = theirs
    return results


def linear_attentions(hidden: int = 2560) -> dict[str, Callable[[Tensor], Tensor]]:
    """Our linear attention and the reference's torch one, each with an empty cache, as in a prompt."""
    from transformers import Qwen3_5TextConfig
    from transformers.cache_utils import DynamicCache
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    ours = filled(GatedDeltaNet(sizes(hidden), 0))
    config: Any = Qwen3_5TextConfig(
        hidden_size=hidden,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=VALUE_HEADS,
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
    )
    theirs = Qwen3_5GatedDeltaNet(config, 0).eval()
    theirs.load_state_dict(ours.state_dict())
    return {
        OURS: lambda x: ours(x, cache=Cache(1, 8)),
        "transformers torch": lambda x: theirs(x, cache=DynamicCache(config=config)),
    }


def rules(tokens: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """The delta rule alone, without the projections, which are the same product on both sides."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    queries, keys = (unit_length(torch.randn(1, KEY_HEADS, tokens, HEAD_DIM)) for _ in range(2))
    decays, betas = -torch.rand(1, VALUE_HEADS, tokens), torch.rand(1, VALUE_HEADS, tokens)
    state = torch.zeros(1, VALUE_HEADS, HEAD_DIM, HEAD_DIM)
    turned = [x.transpose(1, 2).contiguous() for x in (queries, keys, decays, betas)]

    def ours(values: Tensor) -> Tensor:
        values = values.unflatten(-1, (VALUE_HEADS, HEAD_DIM)).transpose(1, 2)
        return in_chunks(queries * HEAD_DIM**-0.5, keys, values, decays, betas, state)[0].transpose(1, 2)

    def theirs(values: Tensor) -> Tensor:
        values = values.unflatten(-1, (VALUE_HEADS, HEAD_DIM))
        return torch_chunk_gated_delta_rule(
            turned[0], turned[1], values, turned[2], turned[3], output_final_state=True
        )[0]

    return {OURS: ours, "transformers torch": theirs}


def one_dense(hidden: int = 1024) -> dict[str, Callable[[Tensor], Tensor]]:
    """Our mixture beside a loop over all its experts, of which the cost must not be that."""
    ours = mixtures(hidden)[OURS]
    gate_up, down = ours.experts.gate_up_proj, ours.experts.down_proj  # type: ignore[attr-defined]

    def every(x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for first, last in zip(gate_up, down, strict=True):
            gate, up = F.linear(x, first).chunk(2, -1)
            total = total + F.linear(F.silu(gate) * up, last)
        return total

    return {OURS: ours, "every expert": every}


def on(ways: Callable[[], Mapping[str, Callable[[Tensor], Tensor]]], tokens: int, width: int) -> dict[str, Any]:
    """The ways, each on the same random stream [1 tokens width]."""
    x = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(0))
    return {name: partial(torch.no_grad()(way), x) for name, way in torch.no_grad()(ways)().items()}


def works(quick: bool) -> Sequence[Work]:
    tokens, width, wider = (8, 64, 64) if quick else (2048, 1024, 2560)
    shown = f"{tokens:,} tokens"
    return [
        Work(f"mixture, 8 of 128 experts, {shown}", partial(on, partial(mixtures, width), tokens, width), target=0.7),
        Work(
            "mixture beside all of its experts, 256 tokens", partial(on, partial(one_dense, width), tokens // 8, width)
        ),
        Work(
            f"delta rule alone, {shown}",
            partial(on, partial(rules, tokens), tokens, VALUE_HEADS * HEAD_DIM),
            target=0.7,
        ),
        Work(f"delta net, {shown}", partial(on, partial(linear_attentions, wider), tokens, wider), target=0.7),
    ]
