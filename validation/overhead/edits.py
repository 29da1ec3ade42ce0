"""Small models that mix dtypes, as they ship and with the cast of a fix written into the source."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, HEADS, SLOTS = 64, 8, 4, 64


class Attention(nn.Module):
    """One step of attention to a cache in half, by a query in float32."""

    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor

    def __init__(self, edit: str = "") -> None:
        super().__init__()
        self.register_buffer("key", torch.randn(1, HEADS, SLOTS, WIDTH).half())
        self.register_buffer("value", torch.randn(1, HEADS, SLOTS, WIDTH).half())
        self.register_buffer("mask", torch.ones(1, 1, 1, SLOTS, dtype=torch.bool))
        self.forward: Callable[[torch.Tensor], torch.Tensor] = getattr(
            self, edit or "as_shipped"
        )  # no branch in what is timed

    def as_shipped(self, query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, self.key, self.value, attn_mask=self.mask)

    def query_to_half(self, query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query.to(self.key.dtype), self.key, self.value, attn_mask=self.mask)

    def kv_to_query(self, query: torch.Tensor) -> torch.Tensor:
        key, value = self.key.to(query.dtype), self.value.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)


class Layers(nn.Module):
    """Layers in half, of an input in float32."""

    def __init__(self, edit: str = "") -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH).half() / WIDTH**0.5 for _ in range(LAYERS))
        self.forward: Callable[[torch.Tensor], torch.Tensor] = getattr(self, edit or "as_shipped")

    def as_shipped(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.linear(x, weight)
        return x

    def query_to_half(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.linear(x.to(weight.dtype), weight)
        return x

    def kv_to_query(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.linear(x, weight.to(x.dtype))
        return x


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "attention": (Attention, (1, HEADS, 1, WIDTH)),
    "layers": (Layers, (1, WIDTH)),
}
EDITS = ("query_to_half", "kv_to_query")
