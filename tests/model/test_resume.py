"""The text model from a block on: the stream that enters a block gives what the whole forward gives."""

from __future__ import annotations

import pytest
import torch

from cutaway.analysis.common.prompts import question
from cutaway.checkpoint.families import FAMILIES
from cutaway.model.cache import SharedPast
from tests.analysis.models import noise_image, small
from tests.parity import record


@pytest.mark.parametrize("family", list(FAMILIES))
def test_from_any_block_on_the_logits_are_the_same(family) -> None:
    model = small(family)
    root, inputs = model.root, question(model, "What?", images=[noise_image(0)], min_pixels=1024)
    logits, seen = record(root, inputs)
    text = root.model.language_model
    mask = inputs.mm_token_type_ids > 0
    terms = [seen.values.get((id(block), "deepstack_output")) for block in text.layers]
    options = {
        "position_ids": inputs.position_ids,
        "attention_mask": inputs.attention_mask,
        "visual_mask": mask,
        "deepstack": tuple(term for term in terms if term is not None),
    }
    with torch.no_grad():
        for first, block in enumerate(text.layers):
            resumed = root.lm_head(text(seen(block, "input"), first=first, **options))
            assert torch.equal(resumed, logits), f"from block {first}"
        last = root.lm_head(text(seen(text.norm, "input"), first=len(text.layers), **options))
    assert torch.equal(last, logits)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_many_rows_go_on_from_one_past(family) -> None:
    model = small(family)
    root, inputs = model.root, question(model, "What?")
    text, seq, cut = root.model.language_model, inputs.input_ids.shape[1], 4
    embeddings = text.embed_tokens(inputs.input_ids)
    cache = root.new_cache(seq)
    with torch.no_grad():
        whole = text(embeddings, position_ids=inputs.position_ids, attention_mask=inputs.attention_mask)
        before = {"position_ids": inputs.position_ids[..., :cut], "attention_mask": inputs.attention_mask[:, :cut]}
        text(embeddings[:, :cut], **before, cache=cache)
        rows = text(
            embeddings[:, cut:].expand(3, -1, -1),
            position_ids=inputs.position_ids[..., cut:].expand(3, 3, -1),
            attention_mask=inputs.attention_mask.expand(3, -1),
            cache=SharedPast(cache, 3),
        )
    assert torch.allclose(rows, whole[:, cut:].expand_as(rows), atol=1e-5 * float(whole.abs().max()))
