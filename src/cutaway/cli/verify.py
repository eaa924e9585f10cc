"""`cutaway verify`: a checkpoint run here and by transformers, compared value by value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.show import as_json, print_table

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
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How many greedy tokens to compare.")] = 8,
    limit: Annotated[
        float | None, typer.Option(min=0, help="A larger difference is a fault; default by dtype, 1e-3 in float32.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every value of every layer, as JSON.")] = False,
) -> int:
    """Run a checkpoint here and in transformers on the same inputs, and compare them value by value.

    Text, an image, two images and a video, prepared by the checkpoint's own processor. A number is the largest
    difference divided by the value's largest number, over all layers; "same bits" means no difference at all. Needs
    transformers. The exit code is 0 when the two agree, 1 when they do not.
    """
    from cutaway.tasks.verify import verify as compare

    result = compare(model, dtype=dtype, device=device, max_new_tokens=max_new_tokens, limit=limit)
    if json:
        as_json(result)
    else:
        show(result)
    return 0 if result.agrees else DIFFERS


def show(result: Verification) -> None:
    """Print a table of values by cases, the tokens and the verdict."""
    print(f"{result.name}: {result.family}, {result.dtype} on {result.device}, transformers {result.transformers}\n")
    columns = [{**grouped(case.values)} for case in result.cases]
    rows = dict.fromkeys(row for column in columns for row in column)
    ordered = sorted(rows, key=lambda row: not row.startswith(("vision.", "projector.")))
    print_table(
        ("value", *(f"{case.name}>" for case in result.cases)),
        ([row, *(shown(column.get(row)) for column in columns)] for row in ordered),
        title="Largest differences",
    )
    print_table(
        ("case", "tokens>", "patches>", "values>", "same bits>", "worst", "greedy tokens"),
        (
            (c.name, c.tokens, c.patches, len(c.values), sum(v.equal for v in c.values), worst(c), tokens(c))
            for c in result.cases
        ),
        title="Cases",
    )
    print(verdict(result))


def grouped(values: Sequence[Compared]) -> dict[str, Compared]:
    """Return the worst value of each address with the layer number left out: ``layers.*.…``."""
    groups: dict[str, Compared] = {}
    for value in values:
        name = re.sub(r"\.\d+\.", ".*.", value.address)
        if name not in groups or value.difference > groups[name].difference:
            groups[name] = value
    return groups


def shown(value: Compared | None) -> str:
    """Format a difference for a cell of the table."""
    return "" if value is None else "same bits" if value.equal else f"{value.difference:.1e}"


def worst(case: Case) -> str:
    """Name the value that differs most, with its difference."""
    return "every bit is the same" if case.worst.equal else f"{case.worst.address} {case.worst.difference:.1e}"


def tokens(case: Case) -> str:
    """Say whether the greedy tokens are the same, or at which token they first differ."""
    if case.ids == case.their_ids:
        return f"the same {len(case.ids)}"
    pairs = zip(case.ids, case.their_ids, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(case.ids), len(case.their_ids)))
    return f"differ from token {at}: {case.ids[at]} here, {case.their_ids[at]} there"


def verdict(result: Verification) -> str:
    """Return the verdict in one sentence."""
    if result.agrees:
        return f"They agree: no difference is above {result.limit:.0e}."
    over = [v for case in result.cases for v in case.values if v.difference > result.limit]
    if not over:
        return f"They do NOT agree: no difference is above {result.limit:.0e}, but the greedy tokens differ."
    return f"They do NOT agree: {len(over)} differences are above {result.limit:.0e}, the first at {over[0].address}."
