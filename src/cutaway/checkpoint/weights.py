"""Weights out of a checkpoint folder into a module tree: in their final dtype and place, or one error that says all.

The tree may be on `meta`; parameters are put in place, not copied over. On the CPU with the file's own dtype they are
the mapped file itself. What is missing, unexpected or wrongly shaped is found from headers before anything is read.
This module does not know what a module computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cutaway.checkpoint.config_reader import read_config_file
from cutaway.checkpoint.files import Tensors, open_tensors
from cutaway.checkpoint.parameters import EMBEDDING_WEIGHT, HEAD_WEIGHT, Slot, slots, tie
from cutaway.checkpoint.weight_names import TEXT, VISUAL, Source, layout, orient
from cutaway.config import Config
from cutaway.errors import CheckpointError, InputError

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and in all."""

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SCALES = re.compile(
    r"\.(weight_scale(_inv)?|input_scale|qweight|qzeros|scales|g_idx|absmax|quant_map|quant_state.*|SCB)$"
)


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    - `tensors`, `bytes`: how many were put in place, and their size in the file.
    - `tied`: the head is the embedding, one tensor under two names.
    - `ignored`: published names that no module has a use for, with the reason (`mtp.*`, rotary frequencies).
    - `skipped`: published names of the vision encoder, left in the file by a text-only load.
    - `notes`: what a reader should know, in sentences.
    """

    folder: Path
    dtype: torch.dtype
    device: torch.device
    tensors: int
    bytes: int
    tied: bool
    ignored: dict[str, str]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def choose_dtype(dtype: str | torch.dtype | None, config: Config, folder: str | Path | None = None) -> torch.dtype:
    """The dtype that ``"auto"`` or a name stands for: the config's, else that of the embedding in the folder's file,
    else float32. Raises `InputError` for a name that is no floating dtype.
    """
    if dtype in (None, "auto"):
        if config.dtype is not None:
            return getattr(torch, config.dtype)
        return torch.float32 if folder is None else _stored_dtype(folder)
    names = {str(known).removeprefix("torch."): known for known in _PLAIN.values()}
    selection = names.get(str(dtype).removeprefix("torch."))
    if selection is None:
        raise InputError(f"dtype must be 'auto' or one of {', '.join(names)}, not {dtype!r}.")
    return selection


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device that weights go to: the one given, else the GPU if torch has one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        position = torch.device(device)
        torch.empty(0, device=position)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    if position.type == "meta":
        raise InputError("device 'meta' holds no weights; pass dispatch=False for the tree alone.")
    return position


def _stored_dtype(folder: str | Path) -> torch.dtype:
    with open_tensors(folder) as tensors:
        sources = layout(tensors).sources
        source = sources.get(EMBEDDING_WEIGHT) or next(iter(sources.values()))
        return _PLAIN.get(tensors.dtype(source.names[0][0]), torch.float32)


def load_weights(
    module: nn.Module,
    folder: str | Path,
    config: Config,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    text_only: bool = False,
    progress: Progress | None = None,
) -> LoadReport:
    """Puts the weights of a checkpoint folder into `module`, which has our names, and returns what was done.

    With `text_only` the vision encoder's tensors stay in the file. Raises `CheckpointError`, once and with every name,
    when tensors are missing, unexpected, wrongly shaped or quantised; the module is then as it was.
    """
    folder, device = Path(folder), torch.device(device)
    positions = slots(module)
    with open_tensors(folder) as tensors:
        result = layout(tensors)
        _refuse_quantised(folder, tensors, result.ignored)
        expected = {name: slot.shape for name, slot in positions.items()}
        sources = orient(result, {name: tensors.shape(name) for name in tensors}, expected)
        skipped = tuple(name for name in sources if text_only and name.startswith(VISUAL))
        for name in skipped:
            del sources[name]
        _refuse_adapted(folder, tensors)
        tied = config.tie_word_embeddings and HEAD_WEIGHT in positions
        _compare(folder, config, positions, sources, tensors, tied)
        notes = []
        if tied and HEAD_WEIGHT in sources and not _same_head(sources, tensors):
            tied = False
            notes.append("The file has an lm_head.weight of its own, which differs from the embedding: it is used, and "
                         "the config's tie_word_embeddings is not.")  # fmt: skip
        if tied:
            sources.pop(HEAD_WEIGHT, None)
        notes += _rounded(sources, tensors, dtype)
        total = _fill(positions, sources, tensors, dtype, device, progress)
    if tied:
        tie(positions)
    return LoadReport(folder, dtype, device, len(sources), total, tied, result.ignored, skipped, tuple(notes))


def _refuse_quantised(folder: Path, tensors: Tensors, ignored: dict[str, str]) -> None:
    odd = {name: tensors.dtype(name) for name in tensors if tensors.dtype(name) not in _PLAIN and name not in ignored}
    scales = [name for name in tensors if _SCALES.search(name)]
    if not odd and not scales:
        return
    example = next((f"{name} is {kind}" for name, kind in odd.items()), f"there is {scales[0]}" if scales else "")
    raise CheckpointError(
        f"The weights in {folder} are quantised ({example}), and numbers that need a scale are not read. Take the "
        f"unquantised release of this model, usually the same name without -FP8, -AWQ, -GPTQ or -bnb at its end."
    )


def check_depth(folder: str | Path, config: Config, *, text_only: bool) -> None:
    """Raise `CheckpointError` where the config has more layers than the weights of `folder`, before any is built."""
    with open_tensors(folder) as tensors:
        names = tuple(layout(tensors).sources)
    kinds = [("num_hidden_layers", TEXT + "layers", config.text.num_layers)]
    kinds += [] if text_only else [("vision_config.depth", VISUAL + "blocks", config.vision.num_layers)]
    for key, prefix, stated in kinds:
        pattern = re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})\.")
        numbers = [int(match[1]) for match in map(pattern.match, names) if match]
        if numbers and stated > 2 * (max(numbers) + 1):
            raise CheckpointError(
                f"{key} is {stated} in config.json, and the weights in {folder} have {max(numbers) + 1} layers. Fetch "
                f"both from the same release."
            )


def _refuse_adapted(folder: Path, tensors: Tensors) -> None:
    parts = [name for name in tensors if ".lora_" in name or name.startswith("base_model.")]
    if parts:
        raise CheckpointError(
            f"The weights in {folder} are those of a LoRA adapter ({parts[0]}), not of a model. Merge it into its base "
            f"with PEFT (merge_and_unload, then save_pretrained) and load the merged folder."
        )


def _rounded(sources: dict[str, Source], tensors: Tensors, dtype: torch.dtype) -> list[str]:
    """A note on the weights that only some of a file keeps in a wider dtype than the model's."""
    kinds = {name: _PLAIN[tensors.dtype(source.names[0][0])] for name, source in sources.items()}
    wider = [name for name, kind in kinds.items() if kind.itemsize > dtype.itemsize]
    if not wider or len(wider) == len(kinds):
        return []
    stored = ", ".join(sorted({str(kinds[name]).removeprefix("torch.") for name in wider}))
    return [
        f"{len(wider)} weights are stored in {stored} and were rounded to {str(dtype).removeprefix('torch.')}: "
        f"{', '.join(_collapse(wider)[:4])}. Load with dtype={stored.split(', ')[0]!r} to keep them as stored."
    ]


def _compare(
    folder: Path, config: Config, positions: dict[str, Slot], sources: dict[str, Source], tensors: Tensors, tied: bool
) -> None:
    missing = [name for name in positions if name not in sources and not (tied and name == HEAD_WEIGHT)]
    unexpected = [name for name in sources if name not in positions]
    shapes = {name: _shape(source, tensors) for name, source in sources.items() if name in positions}
    wrong = [f"{name}: {list(shape)} in the file, {list(positions[name].shape)} by the config"
             for name, shape in shapes.items() if shape != positions[name].shape]  # fmt: skip
    if not (missing or unexpected or wrong):
        return
    parts = [f"The weights in {folder} do not fit its config ({config.family})."]
    for title, names in (("Missing", missing), ("Unexpected", unexpected), ("Wrongly shaped", wrong)):
        if names:
            parts.append(f"{title} ({len(names)}):\n  " + "\n  ".join(_collapse(names)))
    parts.append(_advice(missing, folder))
    raise CheckpointError("\n".join(parts))


def _advice(missing: list[str], folder: Path) -> str:
    if missing == [HEAD_WEIGHT]:
        missing_head = "Fetch every shard again; a model that was saved without its head has to be saved with it."
        if (folder / "config.json").exists() and read_config_file(folder).get("tie_word_embeddings") is False:
            return f"The head is missing, and config.json says that it is not tied to the embedding. {missing_head}"
        return (
            "The head is missing, and config.json does not tie it to the embedding: if the model was trained "
            f'tied, set "tie_word_embeddings": true at the top of config.json. {missing_head}'
        )
    if missing and all(name.startswith(VISUAL) for name in missing):
        return "The file has no whole vision encoder: load it with task='text-generation', or fetch all its shards."
    return "Check that config.json and the weights come from the same release, and that every shard was fetched."


def _collapse(names: Iterable[str]) -> list[str]:
    """The names with runs of layer numbers as one line: ``layers.0-27.mlp.up_proj.weight``."""
    groups: dict[str, list[int]] = {}
    lines: list[str] = []
    for name in names:
        parts = re.split(r"\.(\d+)(?=\.)", name, maxsplit=1)
        if len(parts) == 3:
            groups.setdefault(f"{parts[0]}.#{parts[2]}", []).append(int(parts[1]))
        else:
            lines.append(name)
    return lines + [name.replace("#", _runs(sorted(numbers)), 1) for name, numbers in groups.items()]


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _shape(source: Source, tensors: Tensors) -> tuple[int, ...]:
    """The shape that our tensor would get from the file."""
    if source.plain is not None:
        shape = tensors.shape(source.plain)
        return (*shape[:-2], shape[-1], shape[-2]) if source.transposed else shape
    rows = {tuple(tensors.shape(name) for name in row) for row in source.names}
    if len(rows) != 1:
        return (len(source.names), -1, -1)  # the experts differ among themselves
    row = next(iter(rows))
    return (len(source.names), sum(shape[0] for shape in row), *row[0][1:])


def _same_head(sources: dict[str, Source], tensors: Tensors) -> bool:
    return torch.equal(_take(sources[HEAD_WEIGHT], tensors), _take(sources[EMBEDDING_WEIGHT], tensors))


def _take(source: Source, tensors: Tensors) -> Tensor:
    if source.plain is not None:
        tensor = tensors[source.plain]
        return tensor.transpose(-1, -2) if source.transposed else tensor
    return torch.stack([torch.cat([tensors[name] for name in row]) for row in source.names])


def _fill(
    positions: dict[str, Slot],
    sources: dict[str, Source],
    tensors: Tensors,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> int:
    """Reads shard by shard, so that a file is closed before the next is opened. Returns the bytes read."""
    order = sorted(sources, key=lambda name: tensors.shard(sources[name].names[0][0]))
    sizes = {name: positions[name].shape for name in order}
    total = sum(_bytes(sizes[name], tensors.dtype(sources[name].names[0][0])) for name in order)
    done = 0
    for name in order:
        slot, tensor = positions[name], _take(sources[name], tensors)
        done += tensor.numel() * tensor.element_size()
        slot.put(tensor.to(device=device, dtype=dtype).contiguous())
        if progress is not None:
            progress(done, total)
    return done


def _bytes(shape: tuple[int, ...], kind: str) -> int:
    count = torch.Size(shape).numel()
    return count * _PLAIN[kind].itemsize
