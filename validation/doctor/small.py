"""Small models of many kinds, clean as they are; a comment ``# @name`` marks a line at which a plant's dtypes meet.

Conventions: B rows, L positions, D the width, H heads; every model is built in one dtype by ``.to(dtype)``, and its
inputs are seeded. Mixed dtypes on purpose are written as good code writes them: cast in, cast out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

D = 32
H = 4
L = 12
VOCABULARY = 40

Built = tuple[nn.Module, tuple[Any, ...]]


class WideNorm(nn.Module):
    """A norm that computes in float32 and gives back its input's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width) + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.gain * normed.to(x.dtype)  # @norm_gain


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
        return x * self.cosine + turned * self.sine  # @rotation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).unflatten(-1, (H, -1)).transpose(1, 2)  # @query
        key = self.key(x).unflatten(-1, (H, -1)).transpose(1, 2)  # @key
        value = self.value(x).unflatten(-1, (H, -1)).transpose(1, 2)  # @value
        query, key = self.rotate(query), self.rotate(key)
        if self.indexed:
            slots = torch.arange(L, 2 * L)
            self.keys[:, :, slots] = key  # @keys_indexed
            self.values[:, :, slots] = value  # @values_indexed
        else:
            self.keys[:, :, L:] = key  # @keys_sliced
            self.values[:, :, L:] = value  # @values_sliced
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values)  # @attention
        return self.out(mixed.transpose(1, 2).flatten(-2))  # @out


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
        x = self.tokens(ids) + self.positions  # @positions
        x = x + self.attention(self.first_norm(x))  # @residual
        hidden = self.second_norm(x)
        hidden = F.silu(self.gate(hidden)) * self.up(hidden)
        x = x + self.down(hidden) * self.scale  # @scale
        return self.head(self.last_norm(x))  # @head


class Classifier(nn.Module):
    """Patches of a picture, a class token, torch's own encoder layer, batch norm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, D))
        self.places = nn.Parameter(torch.randn(1, 17, D))
        self.norm = nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.mean = nn.Parameter(torch.zeros(D))
        self.last = nn.BatchNorm1d(D)
        self.head = nn.Linear(D, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)  # @patches
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)  # @class_token
        x = x + self.places  # @places
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]  # @multihead
        x = self.last((x - self.mean).mean(dim=1))  # @mean
        return self.head(x)  # @class_head


class Diffuser(nn.Module):
    """A denoiser: sinusoidal times cast after the embedding, scale and shift, a skip joined by cat."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, D), nn.SiLU(), nn.Linear(D, 2 * D))
        self.enter = nn.Conv1d(4, D, 3, padding=1)
        self.inner = nn.Conv1d(D, D, 3, padding=1)
        self.leave = nn.Conv1d(2 * D, 4, 3, padding=1)
        self.norm = nn.GroupNorm(4, D)
        self.register_buffer("sigmas", torch.linspace(0.1, 1.0, 8)[:, None, None])
        self.mix = nn.Parameter(torch.full((1, D, 1), 0.5))

    def forward(self, x: torch.Tensor, steps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None].float() * torch.exp(-torch.arange(8) / 2.0)
        embedded = torch.cat((angles.cos(), angles.sin()), dim=-1).to(x.dtype)
        scale, shift = self.time(embedded)[:, :, None].chunk(2, dim=1)  # @time
        x = x * self.sigmas[steps]  # @sigmas
        entered = self.enter(x)  # @enter
        hidden = self.norm(entered) * (1 + scale) + shift  # @modulated
        hidden = self.inner(F.silu(hidden))  # @inner
        hidden = hidden + context[:, :, None]  # @context
        hidden = torch.lerp(entered, hidden, self.mix)  # @mix
        return self.leave(torch.cat((hidden, entered), dim=1))  # @skip


class Experts(nn.Module):
    """A router in float32, cast out again, and experts as one einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 3, bias=False)
        self.into = nn.Parameter(torch.randn(3, D, D) / math.sqrt(D))
        self.offset = nn.Parameter(torch.randn(3, D))
        self.shared = nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances = F.softmax(self.router(x), dim=-1, dtype=torch.float32).to(x.dtype)  # @router
        inner = torch.einsum("bld,edf->blef", x, self.into)  # @experts
        inner = inner + self.offset  # @offset
        mixed = (chances[..., None] * inner).sum(dim=2)  # @chances
        return x + self.shared(mixed)  # @shared


class Recurrent(nn.Module):
    """Torch's LSTM with a learned first state, then a cell stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(D, D, batch_first=True)
        self.hidden = nn.Parameter(torch.randn(1, 1, D))
        self.state = nn.Parameter(torch.randn(1, 1, D))
        self.cell = nn.LSTMCell(D, D)
        self.register_buffer("cell_state", torch.randn(1, D))
        self.decay = nn.Parameter(torch.rand(D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        first = self.hidden.expand(-1, rows, -1).contiguous(), self.state.expand(-1, rows, -1).contiguous()
        out, _ = self.rnn(x, first)  # @rnn
        hidden, state = out[:, -1], self.cell_state.expand(rows, -1)
        for position in range(3):
            hidden, state = self.cell(out[:, position], (hidden, state))  # @cell
        return hidden * self.decay  # @decay


class StateSpace(nn.Module):
    """A recurrence in place: a decaying state, held as a buffer from call to call and reset at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(D, D), nn.Linear(D, D)
        self.decay = nn.Parameter(torch.rand(D))
        self.bias = nn.Parameter(torch.randn(D))
        self.register_buffer("state", torch.zeros(2, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        driven = self.into(x)  # @driven
        self.state.zero_()
        seen = []
        for position in range(4):
            self.state.mul_(0.5).add_(driven[:, position])  # @state
            seen.append(self.state * self.decay)  # @state_decay
        stacked = torch.stack(seen, dim=1)
        stacked += self.bias  # @bias_in_place
        return self.out(stacked)  # @state_out


class Biased(nn.Module):
    """Attention by hand: a slope for distances, softmax in float32 and back, a float mask as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 3 * D)
        self.register_buffer("slopes", -(2.0 ** -torch.arange(1.0, H + 1))[:, None, None])
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))
        self.out = nn.Linear(D, D)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (H, -1)).transpose(1, 2)
            for part in self.project(x).chunk(3, dim=-1)  # @project
        )
        distance = (torch.arange(L)[None] - torch.arange(L)[:, None]).abs()
        scores = query @ key.transpose(-1, -2)
        scores = scores * self.temperature  # @temperature
        scores = scores + (self.slopes * distance).to(x.dtype) + mask.to(x.dtype)
        chances = scores.float().softmax(dim=-1).to(value.dtype)
        return self.out((chances @ value).transpose(1, 2).flatten(-2))  # @biased_out


def _built(model: nn.Module, dtype: torch.dtype, *inputs: torch.Tensor) -> Built:
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return model.to(dtype).eval().requires_grad_(False), cast


def _seeded(seed: int = 0) -> torch.Generator:
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def decoder(dtype: torch.dtype, *, indexed: bool = False) -> Built:
    """Token ids in, logits out."""
    generator = _seeded()
    return _built(Decoder(indexed=indexed), dtype, torch.randint(VOCABULARY, (2, L), generator=generator))


def classifier(dtype: torch.dtype) -> Built:
    """Pictures in, classes out."""
    generator = _seeded(1)
    return _built(Classifier(), dtype, torch.randn(2, 3, 16, 16, generator=generator))


def diffuser(dtype: torch.dtype) -> Built:
    """Noise, steps and a context in, noise out."""
    generator = _seeded(2)
    noise, context = torch.randn(2, 4, 16, generator=generator), torch.randn(2, D, generator=generator)
    return _built(Diffuser(), dtype, noise, torch.tensor([1, 5]), context)


def experts(dtype: torch.dtype) -> Built:
    """A mixture of experts."""
    return _built(Experts(), dtype, torch.randn(2, L, D, generator=_seeded(3)))


def recurrent(dtype: torch.dtype) -> Built:
    """LSTM and cell."""
    return _built(Recurrent(), dtype, torch.randn(2, L, D, generator=_seeded(4)))


def state_space(dtype: torch.dtype) -> Built:
    """A state in place."""
    return _built(StateSpace(), dtype, torch.randn(2, L, D, generator=_seeded(5)))


def biased(dtype: torch.dtype) -> Built:
    """Attention by hand."""
    generator = _seeded(6)
    mask = torch.zeros(L, L).masked_fill_(torch.ones(L, L, dtype=torch.bool).triu(1), -1e4)
    return _built(Biased(), dtype, torch.randn(2, L, D, generator=generator), mask)
