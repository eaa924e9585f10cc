"""Where a checkpoint lies, and its tensors by name, opened lazily.

A name is the bundled model, a folder, or a hub id. Tensors come out of one safetensors file, or of several with an
index; nothing is read from disk until a tensor is asked for. This module does not know what a tensor is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway.checkpoint.published_sizes import known
from cutaway.errors import CheckpointError
from cutaway.storage import check_regular, read_json

BUNDLED = {"nano": Path(__file__).parent.parent / "nano"}
"""Models that come with the package."""

WANTED_FILES: tuple[str, ...] = ("*.json", "*.jinja", "*.txt", "*.safetensors")
"""What is fetched from the hub: settings, templates, vocabularies and weights; never code or pickles."""

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_OTHER_FORMATS = {
    ".bin": "a pickle of PyTorch",
    ".pt": "a pickle of PyTorch",
    ".pth": "a pickle of PyTorch",
    ".gguf": "llama.cpp's format",
    ".h5": "TensorFlow's format",
    ".msgpack": "Flax's format",
    ".npz": "numpy's format",
}


def locate(name: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder of a checkpoint: a bundled name, a folder, or a hub id (fetched into the hub's own cache).

    `revision` is a branch, tag or commit of a hub repository. Without `weights` only settings and vocabularies are
    fetched. Raises `CheckpointError` when there is nothing under that name, or it cannot be reached.
    """
    if str(name) in BUNDLED and not Path(name).exists():
        return _bundled(str(name))
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file: give the folder that holds config.json and the weights.")
    if not _is_hub_id(str(name)):
        size = f" For this size: 'Qwen/{name}-Instruct', say." if known(str(name)) else ""
        raise CheckpointError(
            f"There is no folder {str(name)!r}. Give a folder, a hub id such as 'Qwen/Qwen3-VL-4B-Instruct', or a "
            f"bundled model: {', '.join(BUNDLED)}.{size}"
        )
    return _fetch(str(name), revision, weights)


def _bundled(name: str) -> Path:
    folder = BUNDLED[name]
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"The bundled model {name!r} is not in this installation: reinstall the package.")
    return folder


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1


def _fetch(name: str, revision: str | None, weights: bool) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    wanted = list(WANTED_FILES) if weights else list(WANTED_FILES[:-1])
    at = f"{name} (revision {revision})" if revision else name
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{at} is gated: accept its terms on its page and log in with `hf auth login`, then load it again."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{name} has no revision {revision!r}. Look at the repository's branches and tags."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"There is no hub repository {at} that you can see, and no such folder here. Check the name; for a private "
            f"one log in with `hf auth login`."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"{at} is not in the hub's cache, and the hub cannot be reached (offline, or HF_HUB_OFFLINE is set). Load "
            f"it once with a connection, or give a folder."
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{at} could not be fetched from the hub ({error}). Try again, or give a folder."
        ) from error


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by published name; reading one maps its bytes, and nothing else is kept.

    Headers are read at once, so `shape` and `dtype` cost nothing. One file is open at a time: read in the order of the
    shards, and a tensor that is dropped again takes no memory beyond its own shard. Use it in a `with`.
    """

    def __init__(self, folder: Path, shards: dict[str, list[str] | None]) -> None:
        self.folder = folder
        self._entries: dict[str, _Entry] = {}
        self._open: tuple[str, Any] | None = None
        for shard, listed in shards.items():
            self._read_header(shard, listed)
        self.close()

    def _read_header(self, shard: str, listed: list[str] | None) -> None:
        file = self._file(shard)
        resident = set(file.keys())
        names = resident if listed is None else set(listed)
        if lost := sorted(names - resident):
            raise CheckpointError(
                f"{self.folder / shard} lacks {len(lost)} of the tensors that the index lists there, such as {lost[0]}."
                f" Fetch the checkpoint again: file and index do not belong together."
            )
        for name in sorted(names):
            part = file.get_slice(name)
            self._entries[name] = _Entry(shard, tuple(part.get_shape()), part.get_dtype())

    def _file(self, shard: str) -> Any:
        if self._open is not None and self._open[0] == shard:
            return self._open[1]
        self.close()
        path = self.folder / shard
        if not path.exists():
            raise CheckpointError(f"{path} is missing, and the index lists it. Fetch the checkpoint again.")
        check_regular(path)
        try:
            file = safe_open(path, framework="pt").__enter__()
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} is not a whole safetensors file ({error}){_what_it_is(path)}. Fetch it again."
            ) from error
        self._open = (shard, file)
        return file

    def close(self) -> None:
        """Closes the open file; tensors already read stay valid."""
        if self._open is not None:
            self._open[1].__exit__(None, None, None)
            self._open = None

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._file(self._entries[name].shard).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{name} cannot be read from {self.shard(name)} ({error}).") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shard(self, name: str) -> str:
        """The name of the file that holds the tensor."""
        return self._entries[name].shard

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, from the file's header."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """The tensor's dtype as safetensors spells it (``"BF16"``), from the file's header."""
        return self._entries[name].dtype

    def __enter__(self) -> Tensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Entry:
    shard: str
    shape: tuple[int, ...]
    dtype: str


def open_tensors(folder: str | Path) -> Tensors:
    """The tensors of a checkpoint folder: of `model.safetensors`, of an index and its shards, or of the one file there.

    Raises `CheckpointError` for files that are missing, damaged or in another format.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        return Tensors(folder, _shards(folder / INDEX))
    if (folder / SINGLE).exists():
        return Tensors(folder, {SINGLE: None})
    refuse_adapter(folder)
    result = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(result) == 1:
        return Tensors(folder, {result[0]: None})
    if result:
        raise CheckpointError(
            f"{folder} has {len(result)} safetensors files and no {INDEX}, so which belong to the model cannot be "
            f"told. "
            f"Fetch the index too."
        )
    raise CheckpointError(_no_weights(folder))


def has_weights(folder: Path) -> bool:
    """Return whether weights lie in `folder` already, so that their headers can be read."""
    return (folder / INDEX).exists() or (folder / SINGLE).exists()


def _shards(index: Path) -> dict[str, list[str] | None]:
    shards: dict[str, list[str]] = {}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} is not an index of safetensors files: it has no weight_map. Fetch it again.")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index} must name safetensors files of its own folder; got {str(shard)[:200]!r} for {name[:200]}. "
                f"Fetch it again."
            )
        shards.setdefault(shard, []).append(name)
    return {shard: shards[shard] for shard in sorted(shards)}


ADAPTER = "adapter_config.json"


def refuse_adapter(folder: Path) -> None:
    """Raise `CheckpointError` for a folder that holds an adapter and no model, naming the model that it is for."""
    if not (folder / ADAPTER).exists() and not (folder / "adapter_model.safetensors").exists():
        return
    base = read_json(folder / ADAPTER).get("base_model_name_or_path") if (folder / ADAPTER).exists() else None
    raise CheckpointError(
        f"{folder} holds a LoRA adapter, not a model{f'; its base is {base!r}' if base else ''}. Merge it into its "
        f"base with PEFT (merge_and_unload, then save_pretrained) and load the merged folder."
    )


def _no_weights(folder: Path) -> str:
    if not folder.is_dir():
        return f"There is no folder {folder}."
    other = [path for path in sorted(folder.iterdir()) if path.suffix in _OTHER_FORMATS]
    if other:
        return (
            f"{folder} has its weights in {other[0].name} ({_OTHER_FORMATS[other[0].suffix]}), and only safetensors "
            f"files are read. Take the release with safetensors, or convert it: load it with transformers and call "
            f"save_pretrained."
        )
    return f"{folder} has no weights: it must hold {SINGLE}, or {INDEX} and its shards."


_MISLABELLED = {
    b"version https://git-lfs": "it is a git-lfs pointer, not the file itself; run `git lfs pull`",
    b"PK\x03\x04": "it is a pickle of PyTorch under another name",
    b"\x80": "it is a pickle under another name",
    b"GGUF": "it is a gguf file under another name",
    b"<": "it is a web page, not the file itself",
}


def _what_it_is(path: Path) -> str:
    """What a file that is no safetensors file seems to be, for the message."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        return ": it is empty"
    reason = next((text for start, text in _MISLABELLED.items() if head.startswith(start)), None)
    return f": {reason}" if reason else ""
