"""From the names in a file to the names of our modules, and back, for all six families.

Our names are those that Qwen3-VL is published with: ``model.visual.*``, ``model.language_model.*`` and
``lm_head.weight``; what follows the prefix is each family's own. So the table is one of prefixes, one for each
family, and everything else is experts: a mixture's weights are kept fused, [experts out in], whatever the file does.

Which way round a fused tensor lies in a file of Qwen3-VL-MoE is not always to be seen from its shape: published files
and those of transformers 4 have [experts in out], those of transformers 5 [experts out in], and with a hidden size
equal to the stacked width the shape fits both. A file has one layout throughout, and the two weights of an expert
cannot both be square, so the pair decides together: if either fits one way only, that is the file's way.

This module handles names and shapes. It never touches a tensor's numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cutaway.checkpoint.families import FAMILIES
from cutaway.errors import CheckpointError

TEXT, VISUAL, HEAD = "model.language_model.", "model.visual.", "lm_head."
"""The prefixes of our own names."""

SPELLINGS = {
    "model.language_model.": TEXT,  # Qwen3-VL and Qwen3.5 as published; what transformers 5 has inside on every family
    "model.visual.": VISUAL,
    "language_model.model.": TEXT,  # transformers 4.50 to 4.51, and text models taken out of such a file
    "language_model.lm_head.": HEAD,
    "language_model.": TEXT,  # a base model saved without its head
    "visual.": VISUAL,  # Qwen2-VL and Qwen2.5-VL as published
    "lm_head.": HEAD,
    "model.": TEXT,  # Qwen2-VL and Qwen2.5-VL as published, and text models saved alone
}
"""Every prefix that a file may have, the longer ones first, and ours for it."""

IGNORED = {
    re.compile(r"^(model\.)?mtp\."): "a layer for drafting tokens (mtp), which answers do not pass through",
    re.compile(r"(^|\.)rotary_(pos_)?emb\.inv_freq$"): "rotary frequencies, which follow from the config",
}
"""Names that are passed over, and why."""

_EXPERT = re.compile(r"^(?P<block>.*\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight$")
_FUSED = re.compile(r"^(?P<block>.*\.mlp\.experts)\.(?P<part>gate_up|down)_proj$")


@dataclass(frozen=True)
class Source:
    """How one of our tensors comes out of a file.

    - `names`: the published tensors. One; or, for a mixture kept expert by expert, a row per expert, each of one (down)
      or two (gate, up) tensors that are joined along their first axis.
    - `transposed`: the last two axes are swapped in the file.
    """

    names: tuple[tuple[str, ...], ...]
    transposed: bool = False

    @property
    def plain(self) -> str | None:
        """The published name, when the tensor lies in the file as one."""
        return self.names[0][0] if len(self.names) == len(self.names[0]) == 1 else None


@dataclass(frozen=True)
class FileLayout:
    """What a file holds, in our names: a `Source` per name of ours, and what was `ignored`, with the reason."""

    sources: dict[str, Source] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)


def our_name(published: str) -> str | None:
    """Our name for a tensor of a file, None when no spelling has it. Expert-by-expert names keep their number."""
    for prefix, ours in SPELLINGS.items():
        if published.startswith(prefix):
            return ours + published[len(prefix) :]
    return None


def published_name(family: str, ours: str) -> str:
    """The name under which one of our tensors is published for this family."""
    entry = FAMILIES[family]
    for prefix, published in ((TEXT, entry.text_prefix), (VISUAL, entry.visual_prefix)):
        if ours.startswith(prefix):
            return published + ours[len(prefix) :]
    return ours


def layout(names: Iterable[str]) -> FileLayout:
    """The file's tensors in our names. Raises `CheckpointError` when two of them claim one name."""
    result = FileLayout()
    experts: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        reason = next((why for pattern, why in IGNORED.items() if pattern.search(name)), None)
        ours = our_name(name)
        if reason is not None:
            result.ignored[name] = reason
        elif ours is not None and (match := _EXPERT.match(ours)):
            experts.setdefault(match["block"], {}).setdefault(int(match["number"]), {})[match["part"]] = name
        else:
            _claim(result, ours or name, Source(((name,),)))
    for block, numbered in experts.items():
        _stack(result, block, numbered)
    return result


def _claim(result: FileLayout, ours: str, source: Source) -> None:
    if ours in result.sources:
        both = f"{result.sources[ours].names[0][0]} and {source.names[0][0]}"
        raise CheckpointError(f"The file has {ours} twice, as {both}: remove one of the two.")
    result.sources[ours] = source


def _stack(result: FileLayout, block: str, numbered: dict[int, dict[str, str]]) -> None:
    """Joins the tensors of single experts; an expert that lacks a part leaves them as they are, to be reported."""
    whole = list(numbered) and sorted(numbered) == list(range(len(numbered)))
    if not whole or any(len(parts) != 3 for parts in numbered.values()):
        for parts in numbered.values():
            for name in parts.values():
                _claim(result, name, Source(((name,),)))
        return
    rows = [numbered[n] for n in range(len(numbered))]
    _claim(result, f"{block}.gate_up_proj", Source(tuple((row["gate"], row["up"]) for row in rows)))
    _claim(result, f"{block}.down_proj", Source(tuple((row["down"],) for row in rows)))


def orient(
    layout: FileLayout, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, Source]:
    """The sources with fused experts turned our way round.

    `shapes` are the file's, by published name; `expected` ours, by our name. A pair that fits neither way stays as it
    is, and its shapes are reported.
    """
    turned = dict(layout.sources)
    for ours, source in layout.sources.items():
        match = _FUSED.match(ours)
        if not match or match["part"] != "down" or source.plain is None:
            continue
        pair = [f"{match['block']}.{part}_proj" for part in ("gate_up", "down")]
        known = [name for name in pair if name in turned and name in expected and turned[name].plain is not None]
        resident = {name: shapes[turned[name].names[0][0]] for name in known}
        as_is = all(resident[name] == expected[name] for name in known)
        swapped = all(_swap(resident[name]) == expected[name] for name in known)
        if swapped and not as_is:
            turned.update({name: Source(turned[name].names, transposed=True) for name in known})
    return turned


def _swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape
