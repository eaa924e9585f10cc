"""`cutaway tokens`: how images and videos become tokens, and where each token lies in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.show import as_json, print_table

if TYPE_CHECKING:
    from cutaway.tasks.tokens import Medium


def tokens(
    files: Annotated[list[str], typer.Argument(metavar="IMAGE_OR_VIDEO...", help="Files, recognised by content.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Whose preparation to use: nano, a checkpoint folder, or a hub id.")
    ] = "nano",
    text: Annotated[str, typer.Option(help="The question that follows the files in the prompt.")] = "",
    draw: Annotated[
        Path | None, typer.Option(help="Write the first image, or frame, with its token grid to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show how images and videos become tokens: resized size, grid of patches, tokens, times, positions.

    Sizes are height × width in pixels, grids time × height × width in patches. A run is a stretch of tokens of one
    kind; its position ids are given from first to last on each of the three axes.
    """
    from cutaway.tasks.tokens import tokens as count

    layout = count(model, files, text=text, draw=draw)
    if json:
        as_json(layout)
        return
    names = len({Path(m.file).name for m in layout.media}) == len(layout.media)
    print_table(
        ("file", "kind", "original>", "resized>", "grid>", "patches>", "tokens>", "seconds of each grid"),
        (_row(m, names) for m in layout.media),
        title="Files",
    )
    print_table(
        ("run", "first token>", "tokens>", "time>", "height>", "width>"),
        ((r.kind, r.start, r.length, _span(r.time), _span(r.height), _span(r.width)) for r in layout.runs),
        title=f"The prompt: {layout.length} tokens; the answer's first position is {layout.next_position}",
    )


def _row(m: Medium, name_alone: bool) -> tuple[object, ...]:
    """The row of a file, under its path, or under its name alone where no other file has it."""
    sizes = map(_times, (m.original_size, m.resized_size, m.grid))
    return (
        Path(m.file).name if name_alone else m.file,
        m.kind,
        *sizes,
        m.patches,
        m.tokens,
        " ".join(f"{s:.1f}" for s in m.seconds),
    )


def _times(numbers: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in numbers)


def _span(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"
