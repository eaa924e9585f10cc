"""`cutaway inspect`: the parts of a model and what they weigh, without loading a weight."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.show import as_json, number, parameters, print_table, size


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="The bundled model nano, a checkpoint folder, a hub id, or a published size (see cutaway models)."
        ),
    ],
    depth: Annotated[int, typer.Option(min=1, help="How many levels of the tree to show.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show a model's tree, its sizes, its parameters part by part, and the memory it takes.

    Only the config is read; no weight is loaded, so the largest model is as quick as the smallest. Equal layers
    share a row. The key-value cache grows by the bytes shown with each token of each sequence.
    """
    from cutaway.tasks.inspect import inspect as look

    inspection = look(model, depth=depth)
    if json:
        as_json(inspection)
        return
    count = f"{parameters(inspection.parameters)} parameters ({number(inspection.parameters)})"
    print(f"{inspection.name}: {inspection.family}, {count}\n")
    print_table(("", ""), ((name, number(value)) for name, value in inspection.sizes.items()), title="Sizes")
    rows = (("  " * p.level + p.name, p.kind, p.count, p.parameters, size(p.parameters * 2)) for p in inspection.parts)
    print_table(("part", "class", "equal>", "parameters of all>", "in bfloat16>"), rows, title="Parts")
    print_table(
        ("weights in>", "weights>", "cache a token>", "state a sequence>"),
        ((m.dtype, size(m.weights), size(m.cache_per_token), size(m.state_per_sequence)) for m in inspection.memory),
        title="Memory",
    )
