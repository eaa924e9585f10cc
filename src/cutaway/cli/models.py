"""`cutaway models`: the published sizes, by the names that `cutaway inspect` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.show import as_json, parameters, print_table, size


def models(
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the published sizes of every family.

    Parameters are counted on a model built without weights; memory is that of the weights in bfloat16.
    """
    from cutaway.tasks.models import published_models

    sizes = published_models()
    if json:
        as_json(sizes)
        return
    print_table(
        ("model", "family", "parameters>", "bfloat16>", "text: layers × width>", "vision: layers × width>"),
        (
            (
                m.name,
                m.family,
                parameters(m.parameters),
                size(m.bytes_bfloat16),
                f"{m.text_layers} × {m.text_width}",
                f"{m.vision_layers} × {m.vision_width}",
            )
            for m in sizes
        ),
    )
