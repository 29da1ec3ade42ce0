"""Small models that are clean as they are: mixed dtypes on purpose, cast in and cast out as good code writes them.

B rows, L positions, D the width, H heads. Every model is built in one dtype by ``.to(dtype)``; its inputs are seeded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from validation.doctor.scenes import Built, Make

D = 32
H = 4
L = 12
VOCABULARY = 40


def _heads(x: torch.Tensor) -> torch.Tensor:
    """(B, L, D) → (B, H, L, D/H)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


class WideNorm(nn.Module):
    """A norm that computes in float32 and gives back its input's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width) + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.gain * normed.to(x.dtype)


class CachedAttention(nn.Module):
    """Attention with a rotation and a static cache, written by a slice or by an index."""

    def __init__(self, *, indexed: bool) -> None:
        super().__init__()
        self.indexed = indexed
        self.query, self.key, self.value, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
        angles = torch.arange(L)[:, None] / 100 ** (torch.arange(D // H // 2) / (D // H // 2))
        self.register_buffer("cosine", angles.cos().repeat(1, 2))
        self.register_buffer("sine", angles.sin().repeat(1, 2))
        self.register_buffer("keys", torch.randn(2, H, 2 * L, D // H))
        self.register_buffer("values", torch.randn(2, H, 2 * L, D // H))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return x * self.cosine + turned * self.sine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = _heads(self.query(x))
        key = _heads(self.key(x))
        value = _heads(self.value(x))
        query, key = self.rotate(query), self.rotate(key)
        if self.indexed:
            slots = torch.arange(L, 2 * L)
            self.keys[:, :, slots] = key
            self.values[:, :, slots] = value
        else:
            self.keys[:, :, L:] = key
            self.values[:, :, L:] = value
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Decoder(nn.Module):
    """Token and learned positions, one attention, one gated MLP, a tied head."""

    def __init__(self, *, indexed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, D)
        self.register_buffer("positions", 0.1 * torch.randn(L, D))
        self.first_norm, self.second_norm, self.last_norm = WideNorm(D), WideNorm(D), WideNorm(D)
        self.attention = CachedAttention(indexed=indexed)
        self.gate, self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.scale = nn.Parameter(torch.ones(D))
        self.head = nn.Linear(D, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        x = x + self.attention(self.first_norm(x))
        hidden = self.second_norm(x)
        hidden = F.silu(self.gate(hidden)) * self.up(hidden)
        x = x + self.down(hidden) * self.scale
        return self.head(self.last_norm(x))


class Biased(nn.Module):
    """Attention by hand: a slope for distances, softmax in float32 and back, a float mask as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 3 * D)
        self.register_buffer("slopes", -(2.0 ** -torch.arange(1.0, H + 1))[:, None, None])
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))
        self.out = nn.Linear(D, D)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = map(_heads, self.project(x).chunk(3, dim=-1))
        distance = (torch.arange(L)[None] - torch.arange(L)[:, None]).abs()
        scores = query @ key.transpose(-1, -2)
        scores = scores * self.temperature
        scores = scores + (self.slopes * distance).to(x.dtype) + mask.to(x.dtype)
        chances = scores.float().softmax(dim=-1).to(value.dtype)
        return self.out((chances @ value).transpose(1, 2).flatten(-2))


class FloatIsland(nn.Module):
    """A submodule held in float32 on purpose, cast in and out; and a loss scale of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.island, self.leave = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.register_buffer("scale", torch.tensor(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x) * self.scale
        wide = self.island(x.to(self.island.weight.dtype))
        return self.leave(wide.to(x.dtype)) / self.scale


class WideResidual(nn.Module):
    """A residual kept in float32 on purpose, as state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x.to(torch.float32)
        for layer in self.layers:
            residual = residual + layer(residual.to(layer.weight.dtype))
        return residual.to(x.dtype)


class Interleaved(nn.Module):
    """A rotation in float32 that writes its halves into a new tensor of the input's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)
        self.register_buffer("angles", torch.rand(L, D // 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        cosine, sine = self.angles.float().cos(), self.angles.float().sin()
        even, odd = x[..., ::2].float(), x[..., 1::2].float()
        turned = torch.empty_like(x)
        turned[..., ::2] = even * cosine - odd * sine
        turned[..., 1::2] = odd * cosine + even * sine
        return turned


# ---- makers, each model with its inputs


def _built(model: nn.Module, dtype: torch.dtype, *inputs: torch.Tensor) -> Built:
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return model.to(dtype).eval().requires_grad_(False), cast


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Draw inputs, and seed the weights that are drawn after them."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _maker(name: str, model: Callable[[], nn.Module], seed: int, *shapes: tuple[int, ...]) -> Make:
    """Make a function that builds a model whose inputs are normal draws."""

    def make(dtype: torch.dtype) -> Built:
        inputs = _normal(seed, *shapes)
        return _built(model(), dtype, *inputs)

    make.__name__ = name
    return make


def decoder(dtype: torch.dtype, *, indexed: bool = False) -> Built:
    torch.manual_seed(0)
    ids = torch.randint(VOCABULARY, (2, L), generator=torch.Generator().manual_seed(0))
    return _built(Decoder(indexed=indexed), dtype, ids)


def biased(dtype: torch.dtype) -> Built:
    (x,) = _normal(6, (2, L, D))
    return _built(Biased(), dtype, x, torch.full((L, L), -1e4).triu(1))


def float_island(dtype: torch.dtype) -> Built:
    (x,) = _normal(14, (2, L, D))
    model = FloatIsland()
    built = _built(model, dtype, x)
    model.island.float()
    return built


wide_residual = _maker("wide_residual", WideResidual, 15, (2, L, D))
interleaved = _maker("interleaved", Interleaved, 16, (2, L, D))

MODELS: tuple[Make, ...] = (decoder, biased, float_island, wide_residual, interleaved)
