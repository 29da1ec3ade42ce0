"""Small models of many kinds, clean as they are; a comment ``# @name`` marks a line at which a plant's dtypes meet.

B rows, L positions, D the width, H heads; every model is built in one dtype by ``.to(dtype)``, and its
inputs are seeded. Mixed dtypes on purpose are written as good code writes them: cast in, cast out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

D = 32
H = 4
L = 12
VOCABULARY = 40

Built = tuple[nn.Module, tuple[Any, ...]]
Make = Callable[[torch.dtype], Built]


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
        query = _heads(self.query(x))  # @query
        key = _heads(self.key(x))  # @key
        value = _heads(self.value(x))  # @value
        query, key = self.rotate(query), self.rotate(key)
        if self.indexed:
            slots = torch.arange(L, 2 * L)
            self.keys[:, :, slots] = key  # @keys_indexed
            self.values[:, :, slots] = value  # @values_indexed
        else:
            self.keys[:, :, L:] = key  # @keys_sliced
            self.values[:, :, L:] = value  # @values_sliced
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
        entered = self.enter(x)
        hidden = self.norm(entered) * (1 + scale) + shift  # @modulated
        hidden = self.inner(F.silu(hidden))  # @inner
        hidden = hidden + context[:, :, None]  # @context
        hidden = torch.lerp(entered, hidden, self.mix)  # @mix
        return self.leave(torch.cat((hidden, entered), dim=1))


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
        return x + self.shared((chances[..., None] * inner).sum(dim=2))


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
        driven = self.into(x)
        self.state.zero_()
        seen = []
        for position in range(4):
            self.state.mul_(0.5).add_(driven[:, position])  # @state
            seen.append(self.state * self.decay)  # @state_decay
        stacked = torch.stack(seen, dim=1)
        stacked += self.bias  # @bias_in_place
        return self.out(stacked)


class Biased(nn.Module):
    """Attention by hand: a slope for distances, softmax in float32 and back, a float mask as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 3 * D)
        self.register_buffer("slopes", -(2.0 ** -torch.arange(1.0, H + 1))[:, None, None])
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))
        self.out = nn.Linear(D, D)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = map(_heads, self.project(x).chunk(3, dim=-1))  # @project
        distance = (torch.arange(L)[None] - torch.arange(L)[:, None]).abs()
        scores = query @ key.transpose(-1, -2)
        scores = scores * self.temperature  # @temperature
        scores = scores + (self.slopes * distance).to(x.dtype) + mask.to(x.dtype)
        chances = scores.float().softmax(dim=-1).to(value.dtype)
        return self.out((chances @ value).transpose(1, 2).flatten(-2))  # @biased_out


# ---- sound


class Mel(nn.Module):
    """Windowed frames, a filter bank, log in float32, statistics taken off, cast to what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("bank", torch.rand(32, 20))
        self.register_buffer("mean", torch.randn(20))
        self.project = nn.Linear(20, D)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        frames = samples.unfold(-1, 32, 16) * self.window  # @window
        energy = frames.square() @ self.bank  # @bank
        logs = (energy.float() + 1e-5).log().to(self.project.weight.dtype)
        return self.project(logs - self.mean)  # @mel_mean


class Quantiser(nn.Module):
    """Nearest codes of two codebooks, the second on what the first left over."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(D, 8)
        self.register_buffer("first", torch.randn(16, 8))
        self.register_buffer("second", torch.randn(16, 8))
        self.register_buffer("weights", torch.rand(8))
        self.leave = nn.Linear(8, D)

    def nearest(self, x: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
        distance = (x[..., None, :] - codebook).square().sum(dim=-1)  # @distance
        return F.embedding(distance.argmin(dim=-1), codebook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = self.enter(x) * self.weights  # @weights
        coarse = self.nearest(entered, self.first)
        fine = self.nearest(entered - coarse, self.second)
        return self.leave(coarse + fine)


class Vocoder(nn.Module):
    """Snake activations, a transposed convolution, noise of a learned level, tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(D, D, 3, padding=1)
        self.alpha = nn.Parameter(torch.rand(D, 1) + 0.5)
        self.raise_rate = nn.ConvTranspose1d(D, 8, 4, stride=2, padding=1)
        self.level = nn.Parameter(torch.full((8, 1), 0.1))
        self.leave = nn.Conv1d(8, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        x = x + (x * self.alpha).sin().square() / 2.0  # @alpha
        x = self.raise_rate(x)  # @raise_rate
        x = x + self.level * noise  # @noise
        return self.leave(F.leaky_relu(x)).tanh()


class CrossReader(nn.Module):
    """Reads a memory by cross attention, with a speaker mixed in and a gate on the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.speaker = nn.Linear(8, D, bias=False)
        self.gate = nn.Parameter(torch.zeros(D))
        self.norm = nn.LayerNorm(D)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, speaker: torch.Tensor) -> torch.Tensor:
        x = x + self.speaker(speaker)[:, None]  # @speaker
        query, key, value = map(_heads, (self.query(x), self.key(memory), self.value(memory)))  # @memory
        read = F.scaled_dot_product_attention(query, key, value)  # @read
        read = self.out(read.transpose(1, 2).flatten(-2))
        return self.norm(x + torch.tanh(self.gate) * read)  # @gate


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
    """Token ids in, logits out."""
    torch.manual_seed(0)
    ids = torch.randint(VOCABULARY, (2, L), generator=torch.Generator().manual_seed(0))
    return _built(Decoder(indexed=indexed), dtype, ids)


def diffuser(dtype: torch.dtype) -> Built:
    """Noise, steps and a context in, noise out."""
    noise, context = _normal(2, (2, 4, 16), (2, D))
    return _built(Diffuser(), dtype, noise, torch.tensor([1, 5]), context)


def biased(dtype: torch.dtype) -> Built:
    """Attention by hand, with a causal mask."""
    (x,) = _normal(6, (2, L, D))
    return _built(Biased(), dtype, x, torch.full((L, L), -1e4).triu(1))


def float_island(dtype: torch.dtype) -> Built:
    """Clean; the island is float32."""
    (x,) = _normal(14, (2, L, D))
    model = FloatIsland()
    built = _built(model, dtype, x)
    model.island.float()
    return built


classifier = _maker("classifier", Classifier, 1, (2, 3, 16, 16))
experts = _maker("experts", Experts, 3, (2, L, D))
recurrent = _maker("recurrent", Recurrent, 4, (2, L, D))
state_space = _maker("state_space", StateSpace, 5, (2, L, D))
mel = _maker("mel", Mel, 10, (2, 160))
quantiser = _maker("quantiser", Quantiser, 11, (2, L, D))
vocoder = _maker("vocoder", Vocoder, 12, (2, D, 20), (2, 1, 40))
cross_reader = _maker("cross_reader", CrossReader, 13, (2, L, D), (2, 9, D), (2, 8))
wide_residual = _maker("wide_residual", WideResidual, 15, (2, L, D))
interleaved = _maker("interleaved", Interleaved, 16, (2, L, D))

MODELS: tuple[Make, ...] = (
    decoder, classifier, diffuser, experts, recurrent, state_space, biased, mel, quantiser, vocoder, cross_reader,
    float_island, wide_residual, interleaved,
)  # fmt: skip
