"""The shapes that the docstrings of the model's functions give, checked call by call over random sizes.

Each function is wrapped in a signature that says its axes by name (jaxtyping), and beartype holds arguments and results
to it: an axis of one name has one length throughout a call.
"""

from __future__ import annotations

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Int, Int64, TypeCheckError, jaxtyped
from torch import Tensor

from cutaway.config import Rope
from cutaway.model import attention, delta_rule, experts, merge, rope

shaped = jaxtyped(typechecker=beartype)
few = st.integers(1, 3)
lengths = st.integers(1, 9)
dtypes = st.sampled_from([torch.float32, torch.bfloat16])


@shaped
def text_tables(
    ids: Int64[Tensor, "3 batch seq"], spec: Rope, head_dim: int
) -> tuple[Float32[Tensor, "batch 1 seq rotary"], Float32[Tensor, "batch 1 seq rotary"]]:
    return rope.text_tables(ids, spec, head_dim)


@shaped
def rotate(
    x: Float[Tensor, "batch heads seq head_dim"],
    cosines: Float32[Tensor, "batch 1 seq rotary"],
    sines: Float32[Tensor, "batch 1 seq rotary"],
) -> Float[Tensor, "batch heads seq head_dim"]:
    return rope.rotate(x, cosines, sines)


@shaped
def fused(
    queries: Float[Tensor, "batch heads seq head_dim"],
    keys: Float[Tensor, "batch kv_heads keys head_dim"],
    values: Float[Tensor, "batch kv_heads keys head_dim"],
    mask: Bool[Tensor, "batch 1 seq keys"] | None,
) -> Float[Tensor, "batch heads seq head_dim"]:
    return attention.fused(queries, keys, values, mask, 0.5)


@shaped
def pattern(
    queries: Float[Tensor, "batch heads seq head_dim"],
    keys: Float[Tensor, "batch kv_heads keys head_dim"],
    mask: Bool[Tensor, "batch 1 seq keys"] | None,
) -> Float[Tensor, "batch heads seq keys"]:
    return attention.pattern(queries, keys, mask, 0.5)


@shaped
def in_chunks(
    queries: Float32[Tensor, "batch key_heads seq key"],
    keys: Float32[Tensor, "batch key_heads seq key"],
    values: Float32[Tensor, "batch heads seq value"],
    decays: Float32[Tensor, "batch heads seq"],
    betas: Float32[Tensor, "batch heads seq"],
    state: Float32[Tensor, "batch heads key value"],
) -> tuple[Float32[Tensor, "batch heads seq value"], Float32[Tensor, "batch heads key value"]]:
    return delta_rule.in_chunks(queries, keys, values, decays, betas, state)


@shaped
def choose(
    logits: Float[Tensor, "*rows experts"], count: int
) -> tuple[Float[Tensor, "*rows chosen"], Int64[Tensor, "*rows chosen"]]:
    return experts.choose(logits, count)


@shaped
def scatter(
    embeddings: Float[Tensor, "batch seq hidden"],
    mask: Bool[Tensor, "batch seq"],
    features: Float[Tensor, "tokens hidden"],
) -> Float[Tensor, "batch seq hidden"]:
    return merge.scatter(embeddings, mask, features, "image")


@shaped
def sequence_order(
    images: Bool[Tensor, "batch seq"], videos: Bool[Tensor, "batch seq"]
) -> Int[Tensor, " tokens"] | None:
    return merge.sequence_order(images, videos)


@settings(deadline=None, max_examples=40)
@given(batch=few, heads=few, seq=lengths, interleaved=st.booleans(), part=st.sampled_from([1.0, 0.5]), dtype=dtypes)
def test_rotary(batch: int, heads: int, seq: int, interleaved: bool, part: float, dtype: torch.dtype) -> None:
    spec = Rope(1e4, (4, 2, 2), interleaved=interleaved, fraction=part)
    if part < 1:
        spec = Rope(1e4, (2, 1, 1), interleaved=interleaved, fraction=part)
    tables = text_tables(torch.randint(0, 50, (3, batch, seq)), spec, 16)
    x = torch.randn(batch, heads, seq, 16, dtype=dtype)
    assert rotate(x, *tables).dtype is dtype


@settings(deadline=None, max_examples=40)
@given(batch=few, groups=few, kv_heads=few, seq=lengths, more=st.integers(0, 4), masked=st.booleans(), dtype=dtypes)
def test_attention(
    batch: int, groups: int, kv_heads: int, seq: int, more: int, masked: bool, dtype: torch.dtype
) -> None:
    """With a mask there may be more keys than queries, as behind a cache."""
    length = seq + more if masked else seq
    queries = torch.randn(batch, groups * kv_heads, seq, 8, dtype=dtype)
    keys, values = torch.randn(2, batch, kv_heads, length, 8, dtype=dtype)
    mask = torch.ones(batch, 1, seq, length, dtype=torch.bool).tril(length - seq) if masked else None
    result, by = fused(queries, keys, values, mask), pattern(queries, keys, mask)
    weighted = by @ attention.repeat_heads(values, groups)
    torch.testing.assert_close(result, weighted, atol=2e-2 if dtype is torch.bfloat16 else 1e-5, rtol=2e-2)


@settings(deadline=None, max_examples=40)
@given(batch=few, groups=few, kv_heads=few, seq=lengths, more=st.integers(0, 4), masked=st.booleans())
def test_a_pattern_made_head_by_head_is_that_of_all_heads(
    batch: int, groups: int, kv_heads: int, seq: int, more: int, masked: bool
) -> None:
    """Without gradients the heads share one place for their scores; under autocast they do not."""
    length = seq + more if masked else seq
    queries, keys = torch.randn(batch, groups * kv_heads, seq, 8), torch.randn(batch, kv_heads, length, 8)
    mask = torch.rand(batch, 1, seq, length) < 0.7 if masked else None
    with torch.no_grad():
        whole = attention.probabilities(attention.masked_scores(queries, keys, mask, 0.5), torch.float32)
        assert torch.equal(pattern(queries, keys, mask), whole)
        with torch.autocast("cpu", torch.bfloat16):
            result, scores = pattern(queries, keys, mask), attention.masked_scores(queries, keys, mask, 0.5)
        assert scores.dtype is torch.bfloat16
        assert torch.equal(result, attention.probabilities(scores, torch.float32))


@settings(deadline=None, max_examples=30)
@given(batch=few, groups=few, key_heads=few, seq=st.integers(1, 130))
def test_delta_rule(batch: int, groups: int, key_heads: int, seq: int) -> None:
    heads = groups * key_heads
    queries, keys = torch.randn(2, batch, key_heads, seq, 4) / 2
    decays, betas = -torch.rand(batch, heads, seq), torch.rand(batch, heads, seq)
    state = torch.randn(batch, heads, 4, 6)
    in_chunks(queries, keys, torch.randn(batch, heads, seq, 6), decays, betas, state)


@settings(deadline=None, max_examples=30)
@given(rows=lengths, experts_=st.integers(2, 9), dtype=dtypes)
def test_router(rows: int, experts_: int, dtype: torch.dtype) -> None:
    weights, indices = choose(torch.randn(rows, experts_, dtype=dtype), 2)
    assert weights.dtype is dtype
    assert (indices < experts_).all()


@settings(deadline=None, max_examples=30)
@given(data=st.data(), batch=few, seq=lengths)
def test_merging(data: st.DataObject, batch: int, seq: int) -> None:
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=batch * seq, max_size=batch * seq))
    table = torch.tensor(kinds).view(batch, seq)
    images, videos = table == 1, table == 2
    scatter(torch.randn(batch, seq, 5), images, torch.randn(int(images.sum()), 5))
    order = sequence_order(images, videos)
    assert order is None or sorted(order.tolist()) == list(range(int((table > 0).sum())))


def test_the_check_itself_refuses_a_wrong_shape() -> None:
    with pytest.raises(TypeCheckError):
        scatter(torch.randn(1, 4, 5), torch.ones(1, 3, dtype=torch.bool), torch.randn(3, 5))
