"""The places of a module tree that take tensors, by our names, and how one is put there.

What reads weights, draws them or saves them meets the tree here. It does not know where tensors come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cutaway.checkpoint.weight_names import HEAD, TEXT

HEAD_WEIGHT, EMBEDDING_WEIGHT = HEAD + "weight", TEXT + "embed_tokens.weight"
"""The two names that share one tensor in a tied model."""


@dataclass(frozen=True)
class Slot:
    """A parameter or a saved buffer of `owner`, under the name `leaf`."""

    owner: nn.Module
    leaf: str
    shape: tuple[int, ...]

    @property
    def tensor(self) -> Tensor:
        """What stands there now."""
        return getattr(self.owner, self.leaf)

    def put(self, tensor: Tensor) -> None:
        """Puts `tensor` there, not copied; a parameter stays a parameter, as trainable as it was."""
        old = self.owner._parameters.get(self.leaf)
        if old is None:
            self.owner._buffers[self.leaf] = tensor
        elif isinstance(tensor, nn.Parameter):
            self.owner._parameters[self.leaf] = tensor
        else:
            self.owner._parameters[self.leaf] = nn.Parameter(tensor, requires_grad=old.requires_grad)


def slots(module: nn.Module) -> dict[str, Slot]:
    """Every place by its name; a tied tensor has two."""
    positions = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        buffers = {leaf: b for leaf, b in owner._buffers.items() if leaf not in owner._non_persistent_buffers_set}
        for leaf, tensor in (owner._parameters | buffers).items():
            if tensor is not None:
                positions[f"{path}.{leaf}" if path else leaf] = Slot(owner, leaf, tuple(tensor.shape))
    return positions


def tie(slots_by_name: dict[str, Slot]) -> None:
    """Makes the head the embedding, one tensor under two names."""
    slots_by_name[HEAD_WEIGHT].put(slots_by_name[EMBEDDING_WEIGHT].tensor)
