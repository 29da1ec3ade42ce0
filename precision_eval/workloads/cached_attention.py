"""The attention that the attention workloads run: one query against a static cache; imports torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class CachedAttention(nn.Module):
    """Scaled dot-product attention over a static cache, which the module holds as buffers.

    Parameters
    ----------
    key, value : torch.Tensor, shape (batch, cache_heads, slots, head_dim)
    mask : torch.Tensor of bool, shape (1, 1, s, slots)
        True where a query attends.
    scale : float or None
        Of the logits; ``None`` is 1/√head_dim.
    """

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
        """Attend.

        Parameters
        ----------
        query : torch.Tensor, shape (batch, query_heads, s, head_dim)
            ``query_heads`` is a multiple of the cache's heads.

        Returns
        -------
        torch.Tensor, shape (batch, query_heads, s, head_dim)
        """
        return F.scaled_dot_product_attention(
            query,
            self.key,
            self.value,
            attn_mask=self.mask,
            scale=self.scale,
            enable_gqa=query.shape[1] != self.key.shape[1],
        )
