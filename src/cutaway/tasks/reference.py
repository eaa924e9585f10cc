"""transformers beside us: its model of a folder, run on our inputs, its modules' outputs caught by hooks.

The only part of the package that names transformers, and only when it is called. It does not know what is compared.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.batch import Inputs
from cutaway.errors import InputError

OLDEST = 5
"""The oldest major version whose models take our inputs."""


def require(family: str | None = None) -> None:
    """Raises `InputError` unless a transformers is installed that knows the family."""
    if find_spec("transformers") is None:
        raise InputError(
            "The comparison needs transformers, which is not installed. Install it beside cutaway: pip install "
            f"'transformers>={OLDEST}'."
        )
    import transformers

    version = transformers.__version__
    if int(version.split(".")[0]) < OLDEST:
        raise InputError(
            f"The comparison needs transformers {OLDEST} or newer; {version} is installed. Install it: pip install "
            f"'transformers>={OLDEST}'."
        )
    if family is not None and family not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"transformers {version} has no model family {family!r}, so there is nothing to compare with. Install a "
            f"newer one: pip install -U transformers."
        )


class Reference:
    """transformers' model of a checkpoint folder. `version` is that of the library."""

    def __init__(self, folder: Path, *, mixture: bool, dtype: torch.dtype, device: torch.device) -> None:
        import transformers

        self.version = transformers.__version__
        settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
        if mixture:  # its grouped kernel does not take every width and dtype
            settings["experts_implementation"] = "eager"
        with _quiet():
            try:
                model: Any = transformers.AutoModelForImageTextToText.from_pretrained(str(folder), **settings)
            except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
                raise InputError(
                    f"transformers {self.version} cannot load {folder}, which loads here: {error}. Without its model "
                    f"there is nothing to compare with; try another version of it."
                ) from error
        self.model = model.to(device).eval()
        known = inspect.signature(self.model.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"  # renamed during version 5

    @torch.no_grad()
    def run(
        self, inputs: Inputs, module_paths: Mapping[str, str], max_new_tokens: int
    ) -> tuple[dict[str, Tensor], tuple[int, ...]]:
        """The outputs of the modules at `places` (path -> name to return it under), and the likeliest tokens."""
        with _quiet(), torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            with self._watched(module_paths) as seen:
                out = self.model(**inputs, position_ids=inputs.position_ids, use_cache=True)
            return seen, self._greedy(inputs, out, max_new_tokens)

    def _greedy(self, inputs: Inputs, out: Any, count: int) -> tuple[int, ...]:
        """Goes on from the prompt's forward through its cache, with our positions."""
        ids, mask = [int(out.logits[0, -1].argmax())], inputs.attention_mask
        for step in range(count - 1):
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            token = torch.tensor([[ids[-1]]], device=mask.device)
            position = (inputs.next_position + step)[None, :, None].expand(3, -1, -1)
            out = self.model(
                input_ids=token,
                attention_mask=mask,
                mm_token_type_ids=torch.zeros_like(token),
                position_ids=position,
                use_cache=True,
                **{self._cache: getattr(out, self._cache)},
            )
            ids.append(int(out.logits[0, -1].argmax()))
        return tuple(ids)

    @contextmanager
    def _watched(self, positions: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
        """Keeps what the modules return, on the CPU; of the language model the embeddings that it is given."""
        seen: dict[str, Tensor] = {}
        modules, hooks = dict(self.model.named_modules()), []
        for path, name in positions.items():
            if path == "model.language_model":
                hooks.append(modules[path].register_forward_pre_hook(_record_embeddings(seen, name), with_kwargs=True))
            elif path in modules:
                hooks.append(modules[path].register_forward_hook(_returned(seen, name)))
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


def _returned(seen: dict[str, Tensor], name: str) -> Any:
    def keep(_module: Any, _args: Any, output: Any) -> None:
        seen[name] = (output[0] if isinstance(output, tuple) else output).cpu()

    return keep


def _record_embeddings(seen: dict[str, Tensor], name: str) -> Any:
    def keep(_module: Any, _args: Any, kwargs: Mapping[str, Any]) -> None:
        seen[name] = kwargs["inputs_embeds"].cpu()

    return keep


@contextmanager
def _quiet() -> Iterator[None]:
    """Without bars and advice; the library's settings are put back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
