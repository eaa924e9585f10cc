"""`cutaway attend`: where tokens of a prompt look, over the image."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutaway.cli.options import ExperimentFile, Figure, Json, ModelName, Out, Words
from cutaway.cli.results import Outputs, loaded

From = Annotated[
    str, typer.Option("--from", help='Who looks: "last", "question", "image 0", or a word of the question.')
]
Box = Annotated[str | None, typer.Option(help="Who looks instead: a region of the first image, left,top,right,bottom.")]


def attend(
    words: Words,
    model: ModelName = "nano",
    tokens: From = "last",
    box: Box = None,
    layer: Annotated[int | None, typer.Option(help="Draw the heads of this layer instead of all layers.")] = None,
    head: Annotated[int | None, typer.Option(help="Draw this head of --layer.")] = None,
    without_sinks: Annotated[bool, typer.Option("--without-sinks", help="Leave sinks clear in the figure.")] = False,
    rollout: Annotated[bool, typer.Option("--rollout", help="Follow attention through all layers at once.")] = False,
    vision: Annotated[bool, typer.Option("--vision", help="The vision encoder's own attention instead.")] = False,
    out: Out = None,
    figure: Figure = None,
    experiment: ExperimentFile = None,
    json: Json = False,
) -> None:
    """Show where tokens look: per layer and head, with the part that goes to sinks.

    A sink takes attention from any token, so a bright sink is no finding. With --vision patches of the first image
    look, those of --box or all.
    """
    from cutaway.tasks.analyses import analyse
    from cutaway.tasks.files import background, still
    from cutaway.tasks.files import box as parse_box

    _check(layer, head, rollout, vision, draws=figure is not None, clear=without_sinks)
    region = None if box is None else parse_box(box)
    outputs = Outputs(out, figure, experiment, json)
    loaded_model = loaded(model)
    technique = "vision_attention" if vision else "attention_rollout" if rollout else "attention_map"
    parameters = {"box": region} if vision else {"tokens": tokens if region is None else {"box": region}}
    drawn: dict[str, Any] = {} if rollout else {"layer": layer}
    if technique == "attention_map":
        drawn |= {"head": head, "sinks": not without_sinks}
    if figure is not None:
        drawn["background"] = (still if vision else background)(loaded_model, words[:-1])
    request: dict[str, Any] = {"question": words[-1], "files": words[:-1], "model_name": model}
    outputs.deliver(*analyse(loaded_model, technique, **request, parameters=parameters), **drawn)


def _check(layer: int | None, head: int | None, rollout: bool, vision: bool, *, draws: bool, clear: bool) -> None:
    """Raise for options that contradict each other, and for figure options without a figure."""
    if rollout and vision:
        raise typer.BadParameter("--rollout and --vision are two ways; give one.")
    if head is not None and layer is None:
        raise typer.BadParameter("--head is one of a layer: say --layer too.")
    if vision and (head is not None or clear):
        raise typer.BadParameter("--head and --without-sinks are not of --vision: leave them out.")
    if (layer is not None or clear) and (rollout or not draws):
        raise typer.BadParameter(
            "--layer, --head and --without-sinks say what --figure draws, and not of --rollout: "
            "give --figure, or leave them out."
        )
