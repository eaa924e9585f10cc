"""A small share of the campaign's inputs: each works or raises an error of the package."""

from __future__ import annotations

import pytest

from tests.attacks.campaign import PARTS, run_part


@pytest.mark.parametrize("part", sorted(PARTS))
def test_malformed_inputs_raise_errors_of_the_package_alone(part) -> None:
    report = run_part(part, share=0.02)
    assert not report.faults
    assert sum(report.outcomes.values()) == round(PARTS[part][1] * 0.02)
    assert report.worst[0] < 10
    assert report.megabytes < 1500
