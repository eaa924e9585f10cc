"""Counterfactual pairs differ in one property and in nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from training.nano.pairs import CHANGES, SIZE, pairs


@pytest.mark.parametrize("change", CHANGES)
def test_the_images_differ_within_the_box_alone(change: str) -> None:
    for pair in pairs(3, 12, change):
        left, top, right, bottom = pair.box
        differs = (pair.clean != pair.corrupt).any(-1)
        assert differs[top:bottom, left:right].any()
        differs[top:bottom, left:right] = False
        assert not differs.any()
        assert pair.clean.shape == pair.corrupt.shape == (SIZE, SIZE, 3)
        assert pair.answer != pair.foil
        assert pair.question.endswith("?")


def test_a_color_pair_keeps_the_outline_of_its_thing() -> None:
    for pair in pairs(0, 10, "color"):
        ground = pair.clean[0, 0]
        if (pair.clean[0] == ground).all() and (pair.clean[-1] == ground).all():  # a flat ground
            one, other = ((image != ground).any(-1) for image in (pair.clean, pair.corrupt))
            assert (one != other).mean() < 0.01


def test_a_count_pair_takes_one_thing_away() -> None:
    for pair in pairs(1, 10, "count"):
        assert int(pair.answer) == int(pair.foil) + 1


def test_the_same_seed_gives_the_same_pairs() -> None:
    one, two = (list(pairs(5, 3, "digit")) for _ in "12")
    assert all((a.clean == b.clean).all() and a.answer == b.answer for a, b in zip(one, two, strict=True))
    assert any((a.clean != b.clean).any() for a, b in zip(one, pairs(6, 3, "digit"), strict=True))


def test_an_unknown_property_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'mood'"):
        next(pairs(0, 1, "mood"))


def test_the_bundled_model_answers_both_images_of_a_color_pair(nano) -> None:
    """A share of them: the present weights were trained on a narrower world."""
    some = list(pairs(2, 12, "color"))
    right = [
        nano.ask(pair.question, images=[image], max_new_tokens=3, temperature=0) == answer
        for pair in some
        for image, answer in ((pair.clean, pair.answer), (pair.corrupt, pair.foil))
    ]
    assert np.mean(right) > 0.7
