"""`cutaway verify`: a checkpoint run here and by transformers, compared value by value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.show import as_json, table

if TYPE_CHECKING:
    from cutaway.tasks.verify import Case, Compared, Verification

DIFFERS = 1
"""The exit code when the two do not agree."""


def verify(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, the bundled model nano, or a hub id.")],
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16; float32 tells a fault from rounding best.")
    ] = "float32",
    device: Annotated[
        str | None, typer.Option(help="Where to run, such as cuda; default the GPU, else the CPU.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How many of the likeliest tokens to compare.")] = 8,
    limit: Annotated[
        float | None, typer.Option(min=0, help="A larger difference is a fault; default by dtype, 1e-3 in float32.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every value of every block, as JSON.")] = False,
) -> int:
    """Run a checkpoint here and in transformers on the same inputs, and compare them value by value.

    Text, an image, two images and a video, prepared by the checkpoint's own processor. A number is the largest
    difference as a part of the value's largest number, over all blocks; "same bits" means no difference at all. Needs
    transformers. The exit code is 0 when the two agree, 1 when they do not.
    """
    from cutaway.tasks.verify import verify as compare

    found = compare(model, dtype=dtype, device=device, max_new_tokens=max_new_tokens, limit=limit)
    if json:
        as_json(found)
    else:
        show(found)
    return 0 if found.agrees else DIFFERS


def show(found: Verification) -> None:
    """Prints a table of values against cases, the tokens, the verdict."""
    print(f"{found.name}: {found.family}, {found.dtype} on {found.device}, beside transformers {found.transformers}\n")
    columns = [{**grouped(case.values)} for case in found.cases]
    rows = dict.fromkeys(row for column in columns for row in column)
    ordered = sorted(rows, key=lambda row: not row.startswith(("vision.", "projector.")))
    table(
        ("value", *(f"{case.name}>" for case in found.cases)),
        ([row, *(shown(column.get(row)) for column in columns)] for row in ordered),
        title="Largest differences",
    )
    table(
        ("case", "tokens>", "patches>", "values>", "same bits>", "worst", "likeliest tokens"),
        (
            (c.name, c.tokens, c.patches, len(c.values), sum(v.equal for v in c.values), worst(c), tokens(c))
            for c in found.cases
        ),
        title="Cases",
    )
    print(verdict(found))


def grouped(values: Sequence[Compared]) -> dict[str, Compared]:
    """Of the values that differ in a block's number alone the one that differs most, under ``layers.*.…``."""
    groups: dict[str, Compared] = {}
    for value in values:
        name = re.sub(r"\.\d+\.", ".*.", value.address)
        if name not in groups or value.difference > groups[name].difference:
            groups[name] = value
    return groups


def shown(value: Compared | None) -> str:
    """A difference as a cell."""
    return "" if value is None else "same bits" if value.equal else f"{value.difference:.1e}"


def worst(case: Case) -> str:
    """The value that differs most, with its difference."""
    return "every bit is the same" if case.worst.equal else f"{case.worst.address} {case.worst.difference:.1e}"


def tokens(case: Case) -> str:
    """Whether the likeliest tokens are the same, else where they part."""
    if case.ids == case.their_ids:
        return f"the same {len(case.ids)}"
    pairs = zip(case.ids, case.their_ids, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(case.ids), len(case.their_ids)))
    return f"part at token {at}: {case.ids[at]} here, {case.their_ids[at]} there"


def verdict(found: Verification) -> str:
    """One sentence."""
    if found.agrees:
        return f"They agree: no difference is above {found.limit:.0e}."
    over = [v for case in found.cases for v in case.values if v.difference > found.limit]
    if not over:
        return f"They do NOT agree: no difference is above {found.limit:.0e}, but the likeliest tokens differ."
    return f"They do NOT agree: {len(over)} differences are above {found.limit:.0e}, the first at {over[0].address}."
