"""Names: total in both directions on all six families, every spelling, experts in every layout."""

from __future__ import annotations

import pytest

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.weight_names import layout, orient, our_name, published_name
from cutaway.errors import CheckpointError
from tests.checkpoint.trees import FILES, names_of, our_shapes


@pytest.mark.parametrize("name", FILES)
def test_every_published_name_has_ours_and_back(name) -> None:
    family = name.removesuffix(".v5")
    result = layout(names_of(name))
    assert set(result.ignored) == {key for key in names_of(name) if key.startswith("mtp.")}
    assert set(result.sources) == set(our_shapes(family))
    for ours, source in result.sources.items():
        assert ours.startswith(("model.language_model.", "model.visual.", "lm_head."))
        if source.plain is not None:
            assert our_name(source.plain) == ours
            assert published_name(family, ours) == source.plain


@pytest.mark.parametrize("family", FAMILIES)
def test_names_that_were_written_over_the_years(family) -> None:
    spellings = {
        "model.language_model.": ["model.language_model.", "model.", "language_model.model.", "language_model."],
        "model.visual.": ["model.visual.", "visual."],
        "lm_head.": ["lm_head.", "language_model.lm_head."],
    }
    for ours in our_shapes(family):
        prefix = next(p for p in spellings if ours.startswith(p))
        for written in spellings[prefix]:
            assert our_name(written + ours.removeprefix(prefix)) == ours


def test_what_nobody_wrote_is_nobodys_name() -> None:
    assert our_name("transformer.h.0.attn.weight") is None
    assert list(layout(["transformer.h.0.attn.weight"]).sources) == ["transformer.h.0.attn.weight"]


def test_a_name_in_two_spellings_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"twice, as model\.norm\.weight and language_model\.model\.norm\.weight"):
        layout(["model.norm.weight", "language_model.model.norm.weight"])


def test_drafting_layers_and_rotary_buffers_are_passed_over_with_a_reason() -> None:
    result = layout(
        ["mtp.fc.weight", "model.mtp.norm.weight", "visual.rotary_pos_emb.inv_freq", "model.rotary_emb.inv_freq"]
    )
    assert not result.sources
    assert "mtp" in result.ignored["mtp.fc.weight"]
    assert "follow from the config" in result.ignored["visual.rotary_pos_emb.inv_freq"]
    assert len(result.ignored) == 4


EXPERTS = "model.language_model.layers.0.mlp.experts"


def oriented(gate_up: tuple[int, ...], down: tuple[int, ...], hidden: int, width: int, count: int = 5) -> set[bool]:
    """How the file with these two shapes is read: whether each is swapped."""
    names = {f"{EXPERTS}.gate_up_proj": gate_up, f"{EXPERTS}.down_proj": down}
    ours = {f"{EXPERTS}.gate_up_proj": (count, 2 * width, hidden), f"{EXPERTS}.down_proj": (count, hidden, width)}
    return {source.transposed for source in orient(layout(names), names, ours).values()}


@pytest.mark.parametrize(("hidden", "width"), [(32, 20), (40, 20), (20, 20)], ids=["plain", "H = 2I", "H = I"])
def test_both_ways_round_are_told_apart_even_where_one_is_square(hidden, width) -> None:
    assert oriented((5, hidden, 2 * width), (5, width, hidden), hidden, width) == {True}
    assert oriented((5, 2 * width, hidden), (5, hidden, width), hidden, width) == {False}


def test_shapes_that_fit_neither_way_are_left_to_be_reported() -> None:
    assert oriented((5, 7, 7), (5, 32, 20), 32, 20) == {False}


def test_single_experts_are_joined_in_order_of_number() -> None:
    names = [
        f"{EXPERTS}.{n}.{part}_proj.weight"
        for n in (0, 1, 2, 10, 3, 4, 5, 6, 7, 8, 9)
        for part in ("gate", "up", "down")
    ]
    result = layout(names)
    rows = result.sources[f"{EXPERTS}.gate_up_proj"].names
    assert rows[10] == (f"{EXPERTS}.10.gate_proj.weight", f"{EXPERTS}.10.up_proj.weight")
    assert result.sources[f"{EXPERTS}.down_proj"].names[2] == (f"{EXPERTS}.2.down_proj.weight",)
    assert len(result.sources) == 2


def test_an_expert_that_lacks_a_part_stays_as_it_is() -> None:
    names = [f"{EXPERTS}.{n}.{part}_proj.weight" for n in (0, 1) for part in ("gate", "up", "down")][:-1]
    assert sorted(layout(names).sources) == sorted(names)
