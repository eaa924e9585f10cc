"""The contract of a value for every name on every family, on a batch of two images and a video."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway.api import load
from cutaway.checkpoint.families import FAMILIES
from tests.trace.contract import check


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_keeps_its_contract(family, oracle, red, wide):
    model = load(oracle / "ckpt" / family, dtype="float32", device="cpu")
    video = np.random.default_rng(0).integers(0, 255, (4, 64, 64, 3), dtype=np.uint8)
    inputs = model.prepare(
        model.prompt("What?", images=2, videos=1), images=[red, wide], videos=[video], video_metadata=[{"fps": 2.0}]
    )
    findings = check(
        model.root,
        lambda: model.root(inputs),
        input_values=model.input_values(inputs),
        free=("query", "key", "tokens"),
        inert=("state_input",),  # nothing was read before
        later=("state_output",),
    )
    assert not findings.unreached
    assert findings.sizes["hidden"] == model.hidden_size
    assert len(findings.served) == sum(row.why_unavailable is None for row in model.values())
