"""How long the mixture and the linear attention take beside transformers, at published sizes.

    python benchmarks/lines.py [--threads 1] [--tokens 2048] [--repeats 5]

Each pair has the same weights and input and runs in turn, so that a busy machine slows both; the smallest time counts.
The mixture has the sizes of Qwen3-VL-30B-A3B at half width (128 experts, 8 chosen), the linear attention those of
Qwen3.5-4B. It needs transformers and about 4 GB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cutaway.config import Experts, LinearAttention, Rope, TextConfig
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
        experts=Experts(128, 8, 384),
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
    found: dict[str, Callable[[Tensor], Tensor]] = {"cutaway": ours}
    for way in ("eager", "grouped_mm"):
        config = Qwen3VLMoeTextConfig(
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=384, hidden_size=hidden
        )
        config._experts_implementation = way
        theirs = Qwen3VLMoeTextSparseMoeBlock(config).eval()
        theirs.load_state_dict(ours.state_dict())
        found[f"transformers {way}"] = theirs
    return found


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
        "cutaway": lambda x: ours(x, cache=Cache(1, 8)),
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

    return {"cutaway": ours, "transformers torch": theirs}


def measure(title: str, ways: dict[str, Callable[[Tensor], Tensor]], x: Tensor, repeats: int) -> None:
    """Prints the smallest time of each way, as milliseconds and as a part of each other one's."""
    best = dict.fromkeys(ways, float("inf"))
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter  # what others run does not count
    outputs = {name: run(x) for name, run in ways.items()}
    for _ in range(repeats):
        for name, run in ways.items():
            start = clock()
            run(x)
            best[name] = min(best[name], clock() - start)
    ours, scale = best["cutaway"], float(outputs["cutaway"].abs().max())
    print(f"{title}, {x.shape[1]} tokens")
    for name, seconds in best.items():
        off = float((outputs[name] - outputs["cutaway"]).abs().max()) / scale
        print(f"  {name:24} {seconds * 1e3:9.1f} ms   cutaway takes {ours / seconds:4.2f} of it   differs by {off:.0e}")


@torch.no_grad()
def main() -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    for tokens in (1, given.tokens):
        measure("mixture, 128 experts, 8 chosen", mixtures(), torch.randn(1, tokens, 1024), given.repeats)
        measure("delta rule, 32 heads", rules(tokens), torch.randn(1, tokens, VALUE_HEADS * HEAD_DIM), given.repeats)
        measure("linear attention, 32 heads", linear_attentions(), torch.randn(1, tokens, 2560), given.repeats)


if __name__ == "__main__":
    main()
