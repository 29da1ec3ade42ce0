"""The attention that the attention cases run: one query against a static cache; imports torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class CachedAttention(nn.Module):
    """Scaled dot-product attention over a static cache, which the module holds as buffers."""

    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor

    def __init__(self, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, *, scale: float | None) -> None:
        super().__init__()
        self.register_buffer("key", key)
        self.register_buffer("value", value)
        self.register_buffer("mask", mask)
        self.scale = scale

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        """Attend."""
        return F.scaled_dot_product_attention(
            query,
            self.key,
            self.value,
            attn_mask=self.mask,
            scale=self.scale,
            enable_gqa=query.shape[1] != self.key.shape[1],
        )
