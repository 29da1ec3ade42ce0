"""The caches of Dia's decoder, as its source had them in two states; imports torch.

Conventions: B = 2 guidance rows, K key and value heads of D, S slots. A cache is filled up to the step's position; a
step writes its own slot, the same at every call.
"""

from __future__ import annotations

import torch
from torch import nn


class KeysValues(nn.Module):
    """Keys and values as buffers."""

    key: torch.Tensor
    value: torch.Tensor

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("key", key, persistent=False)
        self.register_buffer("value", value, persistent=False)


class SliceCache(KeysValues):
    """The static cache of d4790dd: the slot is written by slice assignment, which casts in silence."""

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, position: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's own slot, and give a view of all slots filled."""
        self.key[:, :, position : position + 1] = key
        self.value[:, :, position : position + 1] = value
        return self.key[:, :, : position + 1], self.value[:, :, : position + 1]


class AppendingCache(KeysValues):
    """The cache before d4790dd: one key and value per query head, the step's own appended in a copy."""

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, position: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the step's own slot to a copy of those before it, and write it."""
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
        joined = tuple(
            torch.cat((past[:, :, :position], x), dim=2) for past, x in ((self.key, key), (self.value, value))
        )
        self.key[:, :, position : position + 1] = key
        self.value[:, :, position : position + 1] = value
        return joined[0], joined[1]
